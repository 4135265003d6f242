"""Threads within a block, and memory that the allocator keeps."""

import ctypes
import sys
from collections.abc import Iterator

import pytest
import torch

from takg.numerics import threads_for
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
