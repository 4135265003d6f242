import io
import sys
from typing import Any

import pytest
from rich.console import Console

from takg.display import Display, Row, Snapshot, drawn

ROW = Row(
    trial=7, is_continued=True, share=0.4, target={"epochs": 12}, value=0.123456, config={"lr": 0.00123, "opt": "sgd"}
)


def snapshot(**changes: Any) -> Snapshot:
    given: dict[str, Any] = {
        "name": "resnet",
        "spent": 3.14159,
        "goal": 20.0,
        "unit": "full trainings",
        "evaluations": 31,
        "trials": 17,
        "paused": 6,
        "best": (0.98765, 0.9321, 1.2345),
        "running": [ROW],
    }
    return Snapshot(**{**given, **changes})


def text(picture: Any) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(picture)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_picture_has_all_the_numbers() -> None:
    shown = text(drawn(snapshot(), "choosing what to train next"))
    for part in (
        "resnet",
        "3.14 of 20 full trainings",
        "31 evaluations of 17 trials, 6 can be continued; best predicted 0.9877 (0.93 to 1.2)",
        "choosing what to train next",
    ):
        assert part in shown
    [row] = [line for line in shown.splitlines() if "continued" in line and "lr=" in line]
    for part in ("7", "epochs 12", "0.1235", "lr=0.00123, opt=sgd"):
        assert part in row


def test_what_is_not_known_yet_is_left_out() -> None:
    row = Row(trial=0, is_continued=False, share=0.0, target={}, value=None, config={})
    shown = text(drawn(snapshot(goal=None, best=None, spent=4, unit="evaluations", running=[row])))
    assert "4 evaluations" in shown and " of 20" not in shown
    assert "best predicted -" in shown and "new" in shown
    assert "last value" not in text(drawn(snapshot(running=[])))


def test_more_than_the_goal_can_be_spent() -> None:
    assert "25.00 of 20" in text(drawn(snapshot(spent=25.0)))


def test_nothing_is_shown_where_the_output_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.show(lambda: pytest.fail("nobody looks"), activity="choosing")
    with Display(False) as display:
        display.show(lambda: pytest.fail("nobody looks"))
    assert capfd.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_shown_on_a_terminal_at_most_five_times_a_second_and_for_every_activity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, looks = Terminal(), []
    monkeypatch.setattr(sys, "stderr", terminal)

    def look() -> Snapshot:
        looks.append(1)
        return snapshot()

    with Display() as display:
        for _ in range(50):
            display.show(look)
        assert len(looks) == 1
        display.show(look, activity="choosing")
        assert len(looks) == 2
    assert "resnet" in terminal.getvalue()


def test_it_is_shown_when_told_so_and_on_the_error_output(capfd: pytest.CaptureFixture[str]) -> None:
    with Display(True) as display:
        display.show(snapshot)
    shown = capfd.readouterr()
    assert shown.out == "" and "31 evaluations" in shown.err
