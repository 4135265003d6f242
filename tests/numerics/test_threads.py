"""Threads within a block, work side by side on them, and memory that the allocator keeps."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from takg.numerics import side_by_side, threads_for
from takg.numerics._threads import _WORTH_THREADS, _keep_freed_memory


class Library:
    """A C library with mallopt, which notes what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def mallopt(self, option: int, value: int) -> int:
        self.calls.append((option, value))
        return 1


@pytest.fixture(autouse=True)
def not_asked_yet() -> Iterator[None]:
    _keep_freed_memory.cache_clear()
    yield
    _keep_freed_memory.cache_clear()


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    one = Library()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: one)
    return one


@pytest.mark.parametrize(("n", "within"), [(0, 1), (_WORTH_THREADS - 1, 1), (_WORTH_THREADS, 2)])
def test_small_matrices_get_one_thread_and_large_ones_all(n: int, within: int) -> None:
    with threads_for(n):
        assert torch.get_num_threads() == within
    assert torch.get_num_threads() == 2


def test_threads_are_as_before_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError, match="division"), threads_for(10):
        _ = 1 / 0
    assert torch.get_num_threads() == 2


def is_tiny_kept() -> bool:
    return bool((torch.full((64,), 1e-300, dtype=torch.float64) * 1e-15 != 0).all())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [10, 100_000])
def test_numbers_without_full_precision_count_as_0_within_and_not_after(n: int, threads: int) -> None:
    torch.set_num_threads(threads)
    assert is_tiny_kept()
    with threads_for(n):
        assert not is_tiny_kept()
        with threads_for(n):
            assert not is_tiny_kept()
        assert not is_tiny_kept()
    assert is_tiny_kept()


def test_they_count_as_0_in_every_slice_and_after_an_error_no_more() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError), threads_for(10):
        assert side_by_side(lambda some: is_tiny_kept(), 2) == [False, False]
        raise ZeroDivisionError
    assert is_tiny_kept()


def test_who_has_them_count_as_0_anyway_keeps_it_so() -> None:
    torch.set_flush_denormal(True)
    try:
        with threads_for(10):
            pass
        assert not is_tiny_kept()
    finally:
        torch.set_flush_denormal(False)


def test_the_allocator_is_asked_once_to_keep_what_is_freed(library: Library) -> None:
    for n in (10, 20, _WORTH_THREADS):
        with threads_for(n):
            pass
    # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h; larger is refused for the latter.
    assert [option for option, _ in library.calls] == [-1, -3]
    assert library.calls[1][1] <= 4 * 1024**2 * ctypes.sizeof(ctypes.c_long)
    assert all(2**20 < value < 2**31 for _, value in library.calls)


def test_threads_are_set_where_there_is_no_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with threads_for(10):
        assert torch.get_num_threads() == 1


def test_no_library_is_looked_for_elsewhere_than_on_linux(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with threads_for(10):
        assert torch.get_num_threads() == 1
    assert library.calls == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_the_allocator_of_this_machine_takes_both_values() -> None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        pytest.skip("another C library than glibc")
    asked = Library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda name: asked)
        with threads_for(10):
            pass
    assert [library.mallopt(*call) for call in asked.calls] == [1, 1]


# Work side by side

SECONDS = 20  # after which something that should not wait is taken to wait forever


def sides(count: int) -> int:
    return len(side_by_side(lambda some: some, count))


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 10, 97])
def test_slices_hold_every_number_once_and_in_order(threads: int, count: int) -> None:
    torch.set_num_threads(threads)
    with threads_for(10):
        found = side_by_side(lambda some: list(range(1000))[some], count)
    assert [i for part in found for i in part] == list(range(count))
    assert len(found) == max(1, min(threads, count, 4))
    assert all(found) or count == 0


def test_no_numbers_are_one_empty_slice() -> None:
    assert side_by_side(lambda some: range(5)[some], 0) == [range(0)]
    with threads_for(10):
        assert side_by_side(lambda some: range(5)[some], 0) == [range(0)]


def test_one_number_is_one_slice_in_the_thread_of_the_caller() -> None:
    with threads_for(10):
        assert side_by_side(lambda some: (some, threading.get_ident()), 1) == [(slice(0, 1), threading.get_ident())]


def test_outside_of_a_block_there_is_one_slice_in_the_thread_of_the_caller() -> None:
    alone = [(slice(0, 8), threading.get_ident())]
    assert side_by_side(lambda some: (some, threading.get_ident()), 8) == alone
    with threads_for(10):
        assert sides(8) == 2
    assert side_by_side(lambda some: (some, threading.get_ident()), 8) == alone
    with pytest.raises(ZeroDivisionError, match="division"), threads_for(10):
        _ = 1 / 0
    assert sides(8) == 1


def test_matrices_that_take_all_threads_leave_none_to_spare() -> None:
    with threads_for(_WORTH_THREADS):
        assert sides(8) == 1


def test_a_block_within_a_block_has_the_threads_of_the_outer_one() -> None:
    torch.set_num_threads(3)
    with threads_for(10):
        with threads_for(20):
            assert sides(8) == 3
        assert sides(8) == 3
    assert sides(8) == 1


@pytest.mark.parametrize(("threads", "meeting"), [(2, 2), (3, 3), (4, 4), (7, 4)])
def test_slices_run_at_the_same_time(threads: int, meeting: int) -> None:
    torch.set_num_threads(threads)
    barrier = threading.Barrier(meeting)

    def meet(some: slice) -> int:
        barrier.wait(timeout=SECONDS)  # raises unless all of them come here
        return threading.get_ident()

    with threads_for(10):
        for _ in range(3):
            found = side_by_side(meet, 8)
            assert found[0] == threading.get_ident()
            assert len(set(found)) == meeting


def test_tensors_get_one_thread_in_every_slice() -> None:
    torch.set_num_threads(3)
    with threads_for(10):
        assert side_by_side(lambda some: torch.get_num_threads(), 3) == [1, 1, 1]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_is_raised_after_all_other_slices_have_ended(failing: int) -> None:
    torch.set_num_threads(3)
    has_failed = threading.Event()
    ended = []

    def work(some: slice) -> None:
        if some.start == failing:
            has_failed.set()
            raise ValueError(f"in slice {failing}")
        assert has_failed.wait(SECONDS)
        time.sleep(0.05)
        ended.append(some.start)

    with pytest.raises(ValueError, match=f"in slice {failing}"), threads_for(10):
        side_by_side(work, 3)
    assert sorted(ended) == sorted({0, 1, 2} - {failing})
    assert torch.get_num_threads() == 3


def test_of_several_errors_that_of_the_first_slice_is_raised() -> None:
    torch.set_num_threads(3)
    everyone = threading.Barrier(3)

    def fail(some: slice) -> None:
        everyone.wait(timeout=SECONDS)
        raise ValueError(f"in slice {some.start}")

    with pytest.raises(ValueError, match="in slice 0"), threads_for(10):
        side_by_side(fail, 3)


def test_work_goes_on_after_an_error() -> None:
    def fail(some: slice) -> None:
        raise ValueError(f"in slice {some.start}")

    with threads_for(10):
        for _ in range(5):  # more often than there are threads that it could have ended
            with pytest.raises(ValueError, match="in slice 0"):
                side_by_side(fail, 2)
        assert sides(8) == 2


def in_time(function: Callable[[], None]) -> None:
    """Fail, and do not wait forever, where the function does."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"still waiting after {SECONDS} s"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("threads", [2, 4])
def test_slices_may_work_side_by_side_themselves(threads: int) -> None:
    everyone = threading.Barrier(threads)

    def inner(some: slice) -> list[int]:
        return [i for part in side_by_side(lambda one: list(range(100)[one]), 6) for i in part]

    def outer(some: slice) -> list[list[int]]:
        everyone.wait(timeout=SECONDS)  # all threads are taken when the first of them asks for more
        return side_by_side(inner, 6)

    def work() -> None:
        torch.set_num_threads(threads)
        with threads_for(10):
            for _ in range(20):
                found = side_by_side(outer, 8)
                assert len(found) == threads
                assert all(one == list(range(6)) for part in found for one in part)

    in_time(work)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_a_slice_within_a_slice_is_raised(failing: int) -> None:
    def inner(some: slice) -> None:
        raise ValueError("deep down")

    def outer(some: slice) -> None:
        if some.start == failing:
            side_by_side(inner, 4)

    def work() -> None:
        torch.set_num_threads(2)
        with pytest.raises(ValueError, match="deep down"), threads_for(10):
            side_by_side(outer, 2)

    in_time(work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_of_a_process_whose_threads_have_worked_has_its_own() -> None:
    torch.set_num_threads(2)
    with threads_for(10):
        side_by_side(lambda some: None, 2)
    child = os.fork()
    if child == 0:
        with threads_for(10):
            os._exit(len(side_by_side(lambda some: None, 2)))
    deadline = time.monotonic() + SECONDS
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail(f"still waiting after {SECONDS} s")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 2
