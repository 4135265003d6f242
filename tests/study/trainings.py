"""Trainings that do what trainings do. Those of several processes say what they saw in files beside the checkpoints."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from takg.study import Evaluation


def loss(config: Any, epochs: float) -> float:
    return float((config["x"] - 0.3) ** 2 + (config["y"] - 0.6) ** 2 + 1.0 / epochs)


def trained(evaluation: Evaluation) -> None:
    """As it should be: go on from the checkpoint, report every epoch, save at the end."""
    file = evaluation.checkpoint / "epoch"
    begun = int(file.read_text()) if evaluation.resumed else 0
    for epoch in evaluation.steps("epochs"):
        assert epoch == begun + 1
        evaluation.report(loss(evaluation.config, epoch), epochs=epoch)
        begun = epoch
    file.write_text(str(begun))


def unsaved(evaluation: Evaluation) -> None:
    for epoch in evaluation.steps("epochs"):
        evaluation.report(loss(evaluation.config, epoch), epochs=epoch)


def costly(evaluation: Evaluation) -> None:
    trained(evaluation)
    evaluation.cost(2.5)


def killed(evaluation: Evaluation) -> None:
    """Dies in the middle of every leg, with its checkpoint torn; saved every second epoch."""
    noted(evaluation)
    for epoch in evaluation.steps("epochs"):
        evaluation.report(loss(evaluation.config, epoch), epochs=epoch)
        if epoch % 2 == 0:
            (evaluation.checkpoint / "epoch").write_text(str(epoch))
            evaluation.saved(epochs=epoch)
        (evaluation.checkpoint / "epoch").write_text("torn")
        if epoch % 3 == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_once(evaluation: Evaluation) -> None:
    if evaluation.attempt == 1:
        killed(evaluation)
    noted(evaluation)
    unsaved(evaluation)


def gone(evaluation: Evaluation) -> None:
    os._exit(3)


def hung(evaluation: Evaluation) -> None:
    evaluation.report(0.5, epochs=1)
    time.sleep(60)


def left(evaluation: Evaluation) -> None:
    evaluation.report(0.5, epochs=1)
    sys.exit("enough")


def outlasting(evaluation: Evaluation) -> None:
    """The first is not done before five others have begun."""
    directory = evaluation.checkpoint.parent
    (directory / f"begun-{evaluation.id}-{evaluation.attempt}").write_text(str(os.getpid()))
    deadline = time.monotonic() + 60
    while evaluation.id == 0 and len(list(directory.glob("begun-*"))) < 6:
        if time.monotonic() > deadline:
            raise TimeoutError("no other training was begun beside this one")
        time.sleep(0.01)
    unsaved(evaluation)


def patient(evaluation: Evaluation) -> None:
    """The first attempt waits for its end."""
    evaluation.report(loss(evaluation.config, 1), epochs=1)
    noted(evaluation)
    if evaluation.attempt == 1:
        time.sleep(60)
    unsaved(evaluation)


def unreadable(evaluation: Evaluation) -> None:
    """Cannot load what it saved, and finds out half-way of cleaning up; see `killed` for the rest."""
    if evaluation.resumed:
        (evaluation.checkpoint / "epoch").write_text("torn")
        raise OSError("bad magic number")
    trained(evaluation)


def noted(evaluation: Evaluation) -> None:
    """What the attempt found: its start, and the file in its directory."""
    file = evaluation.checkpoint / "epoch"
    start = "-" if evaluation.start is None else f"{evaluation.start['epochs']:g}"
    with (evaluation.checkpoint.parent / "notes").open("a") as notes:
        notes.write(f"{evaluation.id} {evaluation.attempt} {start} {file.read_text() if file.exists() else '-'}\n")


def nan_at(epoch: int, value: float = math.nan) -> Callable[[Evaluation], None]:
    def train(evaluation: Evaluation) -> None:
        for one in evaluation.steps("epochs"):
            (evaluation.checkpoint / "epoch").write_text(str(one))
            evaluation.report(value if one == epoch else 1.0 / one, epochs=one)

    return train


def patient_no_more(evaluation: Evaluation) -> None:
    unsaved(evaluation)
