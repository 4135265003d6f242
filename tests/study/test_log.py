from collections.abc import Sequence
from pathlib import Path

import pytest
from small import small_study

from takg.errors import ConflictError, StaleError, StorageError
from takg.records import Asked, Event, Failed, Lost, Observed, fold
from takg.storage import MemoryStorage
from takg.study import Log, Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = small_study(tmp_path, storage=MemoryStorage())
    study.ask()
    return study


def second(study: Study) -> Log:
    """Another process's view."""
    return Log(study.log.storage, study.name)


def point(epoch: int) -> Observed:
    return Observed(evaluation=0, attempt=1, fidelity=(epoch,), value=0.5, time=0.0)


def test_an_event_is_written_after_what_others_wrote_meanwhile(study: Study) -> None:
    other = second(study)
    study.log.append(point(1))
    other.append(point(2))
    assert list(other.state.trials[0].points) == [(1,), (2,)]
    assert study.log.state.sequence == 2
    assert study.log.refresh() == other.state


def test_an_event_that_what_others_wrote_rules_out_is_stale(study: Study) -> None:
    other = second(study)
    study.log.append(Lost(evaluation=0, attempt=1, reason="", time=0.0))
    with pytest.raises(StaleError, match="attempt 1 is no longer its own"):
        other.append(point(1))
    assert other.state == study.state


def test_trying_takes_in_what_is_new_and_says_so(study: Study) -> None:
    other = second(study)
    study.log.append(point(1))
    assert not other.try_append(point(2))
    assert other.state.sequence == 2
    assert other.try_append(point(2))


def test_an_event_that_seemed_stale_is_tried_again_if_there_is_news(study: Study) -> None:
    other = second(study)
    study.log.append(Failed(evaluation=0, attempt=1, kind="error", message="", cost=0.0, seconds=0.0, time=0.0))
    study.ask()
    event = Observed(evaluation=1, attempt=1, fidelity=(1,), value=0.5, time=0.0)
    study.log.append(event)
    assert not other.try_append(point(1))  # others have written, so that it has to look again
    with pytest.raises(StaleError, match="it is over"):
        other.try_append(point(1))


class Crowded(MemoryStorage):
    """Somebody else is always first."""

    def append(self, name: str, events: Sequence[Event], *, after: int) -> int:
        raise ConflictError("others were first")


def test_one_who_never_gets_a_turn_is_told_so(study: Study) -> None:
    crowded = Crowded()
    crowded.create(study.log.storage.definition(study.name))
    log = Log(crowded, study.name)
    event = Asked(evaluation=0, trial=0, target=(1,), worker="w", time=0.0, config={})
    with pytest.raises(StorageError, match="no event could be written in 1000 attempts"):
        log.append(event)


def test_an_interrupt_in_the_middle_of_an_event_does_not_break_the_view(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C can come between any two steps, also when an evaluation is on the list and not yet counted."""

    def interrupted(events: Sequence[Event], state: object) -> None:
        real = fold(events)
        assert real is not None
        study.state.evaluations.append(study.state.evaluations[0])
        raise KeyboardInterrupt

    study.log.append(point(1))
    other = second(study)
    other.append(point(2))
    with monkeypatch.context() as patch:
        patch.setattr("takg.study._log.fold", lambda events, state: interrupted([], state))
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            study.log.refresh()
    study.log.append(point(3))
    assert study.state == second(study).state
    assert len(study.ask(2)) == 2
