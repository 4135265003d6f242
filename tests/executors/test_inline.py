import pytest

from takg.executors import Inline


def test_a_call_is_over_when_submit_returns() -> None:
    done: list[int] = []
    future = Inline().submit(done.append, 3)
    assert (done, future.done(), future.result()) == ([3], True, None)


def test_an_error_is_kept_for_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no")

    future = Inline().submit(fail)
    with pytest.raises(ValueError, match="no"):
        future.result()


def test_an_interrupt_is_not_kept_but_raised() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        Inline().submit(interrupt)
