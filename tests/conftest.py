import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small matrices gain nothing from a second thread and lose much when the machine is busy."""
    torch.set_num_threads(1)
