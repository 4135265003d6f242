"""The state of a study as a fold over its events."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takg.errors import StaleError, StudyError, TakgError
from takg.records import (
    FAILED,
    FAILURES,
    FINISHED,
    LOST,
    RUNNING,
    Asked,
    Dropped,
    Event,
    Failed,
    Finished,
    Given,
    Lost,
    Observed,
    Saved,
    StudyState,
    apply,
    check,
    decoded,
    encoded,
    fold,
)

laws = settings(deadline=None, derandomize=True)


def asked(evaluation: int, trial: int, *, is_new: bool = False, start: float | None = None) -> Asked:
    return Asked(
        evaluation=evaluation,
        trial=trial,
        target=(20.0,),
        worker=f"w{evaluation}",
        time=10.0 + evaluation,
        config={"lr": 0.5 + trial} if is_new else None,
        start=None if start is None else (start,),
    )


def given_again(evaluation: int, attempt: int, start: float | None = None) -> Given:
    place = None if start is None else (start,)
    return Given(evaluation=evaluation, attempt=attempt, worker="again", time=30.0, start=place)


def observed(evaluation: int, epoch: float, value: float = 0.5, attempt: int = 1) -> Observed:
    return Observed(evaluation=evaluation, attempt=attempt, fidelity=(epoch,), value=value, time=20.0)


def saved(evaluation: int, epoch: float, attempt: int = 1) -> Saved:
    return Saved(evaluation=evaluation, attempt=attempt, fidelity=(epoch,), copy=f"copy-{epoch}", time=21.0)


def finished(evaluation: int, attempt: int = 1, *, cost: float = 0.25, has_checkpoint: bool = True) -> Finished:
    return Finished(
        evaluation=evaluation, attempt=attempt, cost=cost, seconds=3.0, time=40.0, has_checkpoint=has_checkpoint
    )


def failed(evaluation: int, attempt: int = 1, kind: str = "error") -> Failed:
    return Failed(
        evaluation=evaluation, attempt=attempt, kind=kind, message="no luck", cost=0.5, seconds=1.5, time=41.0
    )


def lost(evaluation: int, attempt: int = 1) -> Lost:
    return Lost(evaluation=evaluation, attempt=attempt, reason="silent", time=25.0)


def dropped(trial: int) -> Dropped:
    return Dropped(trial=trial, reason="no use", time=50.0)


BEGUN: list[Event] = [asked(0, 0, is_new=True), observed(0, 1.0), observed(0, 2.0)]
PAUSED: list[Event] = [*BEGUN, finished(0)]


def test_nothing_has_happened_at_first() -> None:
    state = fold([])
    assert state == StudyState()
    assert (state.sequence, state.trials, state.running(), state.lost(), state.basket()) == (0, [], [], [], [])


def test_asking_opens_an_evaluation_of_a_new_trial() -> None:
    event = asked(0, 0, is_new=True)
    state = fold([event])
    [evaluation], [trial] = state.evaluations, state.trials
    assert (evaluation.id, evaluation.asked, evaluation.status, evaluation.attempt) == (0, event, RUNNING, 1)
    assert (evaluation.worker, evaluation.start, evaluation.given_at, evaluation.reached) == ("w0", None, 10.0, None)
    assert (trial.id, trial.config, trial.evaluations, trial.checkpoint) == (0, {"lr": 0.5}, [0], None)
    assert state.trial_of(evaluation) is trial
    assert state.running() == [evaluation]
    assert state.is_busy(trial)
    assert state.sequence == 1


def test_points_are_kept_in_the_order_of_reports() -> None:
    state = fold([*BEGUN, observed(0, 1.5, 0.75)])
    assert list(state.evaluations[0].points.items()) == [((1.0,), 0.5), ((2.0,), 0.5), ((1.5,), 0.75)]
    assert state.trials[0].points == state.evaluations[0].points
    assert state.evaluations[0].reached == (1.5,)


def test_the_last_report_of_a_fidelity_counts_and_is_where_training_stands() -> None:
    state = fold([*BEGUN, lost(0), given_again(0, 2), observed(0, 1.0, 0.125, attempt=2)])
    assert list(state.evaluations[0].points.items()) == [((2.0,), 0.5), ((1.0,), 0.125)]
    assert list(state.trials[0].points.items()) == [((2.0,), 0.5), ((1.0,), 0.125)]
    assert state.evaluations[0].reached == (1.0,)


def test_a_copy_that_was_saved_is_known_until_the_next() -> None:
    state = fold([*BEGUN, saved(0, 1.0), saved(0, 2.0)])
    assert state.evaluations[0].saved == saved(0, 2.0)
    assert state.trials[0].checkpoint is None


def test_an_evaluation_that_ends_with_a_checkpoint_is_paid_and_can_be_continued() -> None:
    state = fold(PAUSED)
    [evaluation], [trial] = state.evaluations, state.trials
    assert (evaluation.status, evaluation.end) == (FINISHED, finished(0))
    assert (trial.checkpoint, trial.dropped) == ((2.0,), None)
    assert (state.cost, state.seconds, state.open) == (0.25, 3.0, {})
    assert state.basket() == [trial]
    assert not state.is_busy(trial)


def test_an_evaluation_that_ends_without_a_checkpoint_cannot_be_continued() -> None:
    state = fold([*BEGUN, finished(0, has_checkpoint=False)])
    assert (state.trials[0].checkpoint, state.trials[0].dropped, state.basket()) == (None, None, [])


def test_a_continued_trial_collects_the_points_of_all_its_legs() -> None:
    state = fold([*PAUSED, asked(1, 0, start=2.0), observed(1, 3.0)])
    assert state.basket() == []
    assert state.evaluations[1].start == (2.0,)
    assert state.evaluations[1].points == {(3.0,): 0.5}
    assert list(state.trials[0].points) == [(1.0,), (2.0,), (3.0,)]
    apply(state, finished(1, cost=0.5))
    assert (state.trials[0].checkpoint, state.trials[0].evaluations, state.cost) == ((3.0,), [0, 1], 0.75)


def test_a_trial_may_be_trained_from_scratch_again() -> None:
    state = fold([*PAUSED, asked(1, 0)])
    assert (state.evaluations[1].start, state.trials[0].evaluations) == (None, [0, 1])


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_is_paid_and_drops_the_trial(kind: str) -> None:
    state = fold([*PAUSED, asked(1, 0, start=2.0), failed(1, kind=kind)])
    [trial] = state.trials
    assert (state.evaluations[1].status, state.evaluations[1].end) == (FAILED, failed(1, kind=kind))
    assert (trial.checkpoint, trial.dropped) == (None, kind)
    assert (state.cost, state.seconds, state.open, state.basket()) == (0.75, 4.5, {}, [])


def test_a_lost_evaluation_stays_open_until_it_is_given_again() -> None:
    state = fold([*BEGUN, lost(0)])
    [evaluation] = state.evaluations
    assert (evaluation.status, evaluation.lost, state.running(), state.lost()) == (LOST, [lost(0)], [], [evaluation])
    assert state.is_busy(state.trials[0])
    assert state.cost == 0.0
    apply(state, given_again(0, 2, start=1.0))
    assert (evaluation.status, evaluation.attempt, evaluation.worker) == (RUNNING, 2, "again")
    assert (evaluation.start, evaluation.given_at) == ((1.0,), 30.0)
    assert (state.running(), state.lost()) == ([evaluation], [])


def test_a_dropped_trial_is_not_continued() -> None:
    state = fold([*PAUSED, dropped(0)])
    assert (state.trials[0].dropped, state.trials[0].checkpoint, state.basket()) == ("no use", None, [])


ILLEGAL: dict[str, tuple[list[Event], Event, type[TakgError], str]] = {
    "an evaluation out of turn": ([], asked(1, 0, is_new=True), StudyError, "evaluation 1 is out of turn: .*next is 0"),
    "an evaluation asked for twice": (BEGUN, asked(0, 1, is_new=True), StudyError, "0 is out of turn: .*next is 1"),
    "a trial out of turn": (BEGUN, asked(1, 2, is_new=True), StudyError, "trial 2 is out of turn: the next is 1"),
    "a negative trial": (PAUSED, asked(1, -1), StudyError, "trial -1 is out of turn: the next is 1"),
    "a new trial without configuration": (
        [],
        asked(0, 0),
        StudyError,
        "trial 0: a new trial comes with a configuration",
    ),
    "a known trial with one": (PAUSED, asked(1, 0, is_new=True), StudyError, "trial 0: .*, one that goes on without"),
    "a new trial from a checkpoint": ([], asked(0, 0, is_new=True, start=1.0), StudyError, "0 is new and cannot start"),
    "continuing a trial that runs": (BEGUN, asked(1, 0), StaleError, "trial 0 cannot be continued: .*under way"),
    "continuing a trial that is lost": ([*BEGUN, lost(0)], asked(1, 0), StaleError, "cannot be continued: .*under way"),
    "continuing from elsewhere": (PAUSED, asked(1, 0, start=1.0), StaleError, r"no checkpoint at \(1.0,\)"),
    "continuing what was dropped": ([*PAUSED, dropped(0)], asked(1, 0, start=2.0), StaleError, "no checkpoint at"),
    "continuing what failed": ([*BEGUN, failed(0)], asked(1, 0, start=2.0), StaleError, "no checkpoint at"),
    "giving what runs": (
        BEGUN,
        given_again(0, 2),
        StaleError,
        r"evaluation 0 \(running, attempt 1\): attempt 2 cannot",
    ),
    "giving the same attempt": ([*BEGUN, lost(0)], given_again(0, 1), StaleError, "attempt 1 cannot begin"),
    "giving an attempt too far": ([*BEGUN, lost(0)], given_again(0, 3), StaleError, "attempt 3 cannot begin"),
    "giving what is over": (PAUSED, given_again(0, 2), StaleError, r"evaluation 0 \(finished, attempt 1\): it is over"),
    "giving what was never asked for": (BEGUN, given_again(1, 2), StudyError, "1 was never asked for; there are 1"),
    "dropping a trial that runs": (BEGUN, dropped(0), StudyError, "trial 0 cannot be dropped: .*under way"),
    "dropping a trial that is lost": ([*BEGUN, lost(0)], dropped(0), StudyError, "cannot be dropped: .*under way"),
    "dropping no trial": (BEGUN, dropped(1), StudyError, "trial 1 cannot be dropped: there are 1 trials"),
    "dropping a negative trial": (PAUSED, dropped(-1), StudyError, "trial -1 cannot be dropped"),
    "failing for no known reason": (
        BEGUN,
        failed(0, kind="bored"),
        StudyError,
        "cannot fail with 'bored'; expected one",
    ),
}
WORK: dict[str, Callable[[int, int], Event]] = {
    "reporting": lambda evaluation, attempt: observed(evaluation, 3.0, attempt=attempt),
    "saving": lambda evaluation, attempt: saved(evaluation, 3.0, attempt=attempt),
    "finishing": lambda evaluation, attempt: finished(evaluation, attempt),
    "failing": lambda evaluation, attempt: failed(evaluation, attempt),
    "losing": lambda evaluation, attempt: lost(evaluation, attempt),
}
RESUMED: list[Event] = [*BEGUN, lost(0), given_again(0, 2)]
for name, work in WORK.items():
    ILLEGAL |= {
        f"{name} what was never asked for": (BEGUN, work(1, 1), StudyError, "evaluation 1 was never asked for"),
        f"{name} a negative evaluation": (BEGUN, work(-1, 1), StudyError, "evaluation -1 was never asked for"),
        f"{name} what is finished": (PAUSED, work(0, 1), StaleError, r"\(finished, attempt 1\): it is over"),
        f"{name} what failed": ([*BEGUN, failed(0)], work(0, 1), StaleError, r"\(failed, attempt 1\): it is over"),
        f"{name} what is lost": (
            [*BEGUN, lost(0)],
            work(0, 1),
            StaleError,
            r"\(lost, .*attempt 1 is no longer its own",
        ),
        f"{name} an attempt of the past": (RESUMED, work(0, 1), StaleError, "attempt 1 is no longer its own"),
        f"{name} an attempt of the future": (RESUMED, work(0, 3), StaleError, "attempt 3 is no longer its own"),
    }


@pytest.mark.parametrize("case", ILLEGAL)
def test_what_does_not_fit_is_an_error_and_changes_nothing(case: str) -> None:
    history, event, error, match = ILLEGAL[case]
    state = fold(history)
    before = deepcopy(state)
    with pytest.raises(error, match=match) as caught:
        apply(state, event)
    assert caught.type is error
    with pytest.raises(error, match=match):
        check(state, event)
    assert state == before
    assert list(state.open) == list(before.open)
    assert state == fold(history)


def legal(state: StudyState) -> list[Event]:
    """Everything that could happen next, up to its numbers."""
    evaluation, trial = len(state.evaluations), len(state.trials)
    events: list[Event] = [asked(evaluation, trial, is_new=True)]
    for known in state.trials:
        if not state.is_busy(known):
            events += [asked(evaluation, known.id), dropped(known.id)]
            if known.checkpoint is not None:
                events.append(asked(evaluation, known.id, start=known.checkpoint[0]))
    for leg in state.open.values():
        n = leg.attempt
        if leg.status == LOST:
            events.append(given_again(leg.id, n + 1))
        else:
            events += [observed(leg.id, 1.0, attempt=n), observed(leg.id, 2.0, attempt=n), saved(leg.id, 2.0, n)]
            events += [
                finished(leg.id, n),
                finished(leg.id, n, has_checkpoint=False),
                failed(leg.id, n),
                lost(leg.id, n),
            ]
    return events


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    state, history = StudyState(), []
    for number in draw(st.lists(st.integers(0, 10**6), max_size=40)):
        choices = legal(state)
        event = choices[number % len(choices)]
        if isinstance(event, Finished | Failed):
            event = replace(event, cost=1.0 + number % 7)
        history.append(event)
        apply(state, event)
    return history


@laws
@given(histories())
def test_legal_histories_keep_the_invariants(history: list[Event]) -> None:
    """The books are kept a second time, from the events alone."""
    state = StudyState()
    trial_of: dict[int, int] = {}
    open_: set[int] = set()
    attempts: Counter[int] = Counter()
    cost = 0.0
    for number, event in enumerate(history, start=1):
        before = deepcopy(state)
        check(state, event)
        assert state == before
        apply(state, event)
        match event:
            case Asked():
                trial_of[event.evaluation] = event.trial
                open_.add(event.evaluation)
                attempts[event.evaluation] = 1
            case Given():
                assert event.attempt > attempts[event.evaluation]
                attempts[event.evaluation] = event.attempt
            case Finished() | Failed():
                open_.remove(event.evaluation)  # it was open, so it is closed once
                cost += event.cost
        assert state.sequence == number
        assert state.cost == cost
        assert set(state.open) == open_
        busy = [trial_of[evaluation] for evaluation in open_]
        assert len(busy) == len(set(busy))  # no trial has two open evaluations
        assert [evaluation.attempt for evaluation in state.evaluations] == [attempts[i] for i in range(len(trial_of))]
        assert [evaluation.id for evaluation in state.evaluations] == list(range(len(state.evaluations)))
        assert sorted(i for trial in state.trials for i in trial.evaluations) == sorted(trial_of)
        for evaluation in state.evaluations:
            assert (evaluation.end is None) == (evaluation.id in open_)
            assert (evaluation.status in (RUNNING, LOST)) == (evaluation.id in open_)
            assert len(evaluation.lost) == evaluation.attempt - (evaluation.status != LOST)
        for trial in state.trials:
            assert state.is_busy(trial) == (trial.id in busy)
            assert trial.checkpoint is None or trial.checkpoint in trial.points
        for trial in state.basket():
            assert trial.dropped is None
            assert trial.id not in busy
            assert trial.checkpoint is not None


@laws
@given(histories(), st.integers(0, 40))
def test_replay_in_two_parts_is_replay_in_one(history: list[Event], cut: int) -> None:
    whole = fold(history)
    assert fold(history[cut:], fold(history[:cut])) == whole
    assert fold(decoded([encoded(event) for event in history])) == whole
