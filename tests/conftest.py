import signal

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small matrices gain nothing from a second thread and lose much when the machine is busy."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard() -> None:
    """Shells have what they start in the background ignore interrupts, and so would all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
