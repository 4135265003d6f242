"""The study: ask what to train next, tell how it went, see what is best."""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from takg.errors import InputError, StaleError, StudyError
from takg.records import (
    Asked,
    Config,
    Dropped,
    EvaluationState,
    Failed,
    Finished,
    Given,
    Lost,
    StudyState,
)
from takg.study._data import CostFunction
from takg.study._evaluation import Evaluation, Train
from takg.study._log import Log
from takg.study._plan import Plan
from takg.study._runner import Connect, KeptCheckpoints, cost_of, prepare
from takg.study._view import Best, Trained, Trial, is_complete, point_rows, viewed

if TYPE_CHECKING:  # the engine imports torch, which a study that is only looked at does not need
    from takg.study._belief import Belief, Prediction
    from takg.study._suggest import Proposal

_MOST_ATTEMPTS = 3  # of an evaluation whose workers die
_MOST_OVERTAKEN = 3  # suggestions in a row that are thrown away because others asked in the meantime
_ENGINE = "engine"  # the note under which the engine's memory is kept


class Study:
    """One search, in a store that several processes may share. Made by `takg.create_study` and `takg.load_study`."""

    def __init__(
        self,
        log: Log,
        plan: Plan,
        checkpoints: KeptCheckpoints,
        *,
        connect: Connect,
        processes: Callable[[int], Any],
        cost_function: CostFunction | None = None,
        keep_checkpoints: bool = False,
        disk_limit: float | None = None,
    ) -> None:
        self.log, self.plan, self.checkpoints = log, plan, checkpoints
        self.connect, self.processes = connect, processes
        self.cost_function = cost_function
        self.keep_checkpoints, self.disk_limit = keep_checkpoints, disk_limit
        self.worker = f"asker/{id(self):x}"
        self._belief: tuple[int, Belief | None] = (-1, None)
        self._overtaken = 0

    @property
    def name(self) -> str:
        return self.log.name

    @property
    def state(self) -> StudyState:
        """As of the last look into the store."""
        return self.log.state

    # Asking and telling

    def ask(self, n: int | None = None, *, overhead: float = 0.0) -> Any:
        """The next evaluation, or a list of n chosen jointly; those under way are taken into account.

        Args:
            overhead: what each takes beside the cost of its training, as time in a queue, or its part of a limited
                number of evaluations (see `scarcity`). The dearer they are, the longer the trainings that are chosen.
        """
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InputError(f"n={n!r}: expected an integer >= 1")
        if not (isinstance(overhead, int | float) and 0 <= overhead < math.inf):
            raise InputError(f"overhead={overhead!r}: expected a finite cost >= 0")
        self.log.refresh()
        found: list[Evaluation] = []
        while len(found) < (n or 1):
            again = self._given_again()
            found += [again] if again else self._asked((n or 1) - len(found), overhead=overhead)
        found = [self._prepared(evaluation) for evaluation in found]
        return found if n is not None else found[0]

    def next_evaluation(self, *, at_most: int | None = None, overhead: float = 0.0) -> Evaluation | None:
        """As `ask`, for somebody else to prepare and carry out; None if others have reached `at_most` evaluations."""
        self.log.refresh()
        while (again := self._given_again()) is None:
            if at_most is not None and len(self.state.evaluations) >= at_most:
                return None
            if found := self._asked(1, at_most=at_most, overhead=overhead):
                return found[0]
        return again

    def tell(
        self,
        evaluation: Evaluation,
        value: float | None = None,
        *,
        trace: Iterable[tuple[Any, float]] = (),
        cost: float | None = None,
    ) -> None:
        """An evaluation is over.

        Args:
            value: the loss at the target.
            trace: (fidelity, loss) pairs; a fidelity is a number if the study has one trace fidelity, else a mapping.
            cost: what it took; the seconds since it was asked for, if left out.
        """
        for place, loss in trace:
            evaluation.report(loss, **self._by_name(place))
        if value is not None:
            evaluation.report(value)
        state = self.log.refresh().evaluations[evaluation.id]  # it may have come from another view of the study
        if not state.points:
            raise InputError(
                f"evaluation {evaluation.id}: expected a value or a trace, and nothing was reported so far"
            )
        if cost is not None:
            evaluation.cost(cost)
        kind = self.plan.options.cost
        is_known = kind == "time" or (kind == "function" and self.cost_function is not None)
        if evaluation.reported_cost is None and not is_known:
            raise InputError(f'cost=None: expected a number > 0 in a study with cost="{kind}"')
        seconds = evaluation.seconds
        self.log.append(
            Finished(
                evaluation=evaluation.id,
                attempt=evaluation.attempt,
                cost=evaluation.reported_cost or self._cost(state, seconds),
                seconds=seconds,
                time=time.time(),
                has_checkpoint=evaluation.has_checkpoint(),
            )
        )
        self.checkpoints.discard_copies(evaluation.trial)
        self.tidy()

    def report(self, evaluation: Evaluation, value: float, /, **fidelity: float) -> None:
        """One point of an evaluation's trace, durable when this returns."""
        evaluation.report(value, **fidelity)

    def fail(self, evaluation: Evaluation, message: str, *, kind: str = "error") -> None:
        """An evaluation came to nothing: its configuration counts as a bad one, unless something was reported."""
        state = self.log.refresh().evaluations[evaluation.id]
        if state.attempt != evaluation.attempt:
            raise StaleError(f"evaluation {evaluation.id}: attempt {evaluation.attempt} is over")
        cost, seconds = evaluation.reported_cost, evaluation.seconds
        self._fail(state, message, kind=kind, cost=cost or self._cost(state, seconds), seconds=seconds)

    def give_up(self, state: EvaluationState, message: str, *, kind: str, seconds: float) -> None:
        """As `fail`, of an evaluation that somebody else carried out, unless it has ended meanwhile."""
        with contextlib.suppress(StaleError):
            self._fail(state, message, kind=kind, cost=self._cost(state, seconds), seconds=seconds)

    def release(self, evaluation: Evaluation | EvaluationState, reason: str, *, is_suspect: bool = False) -> None:
        """Give an evaluation back, to be given again; one that seems to kill its workers fails in the end."""
        state = self.state.evaluations[evaluation.id]
        event: Lost | Failed = Lost(
            evaluation=state.id, attempt=evaluation.attempt, reason=reason, time=time.time(), is_suspect=is_suspect
        )
        if is_suspect and sum(lost.is_suspect for lost in state.lost) + 1 >= _MOST_ATTEMPTS:
            event = Failed(
                evaluation=state.id,
                attempt=evaluation.attempt,
                kind="killed",
                message=f"{_MOST_ATTEMPTS} workers died while running it; the last: {reason}",
                cost=0.0,
                seconds=0.0,
                time=time.time(),
            )
        try:
            self.log.append(event)
        except StaleError:
            return  # it ended, or somebody else noticed, in the meantime
        if isinstance(event, Failed):
            self.tidy()

    # What is known

    @property
    def best(self) -> Best:
        """The configuration that is predicted to be best when trained in full."""
        belief = self.belief()
        if belief is None:
            raise StudyError("no finite value was reported yet, so nothing can be recommended")
        config, prediction = belief.best
        return Best(config=config, **asdict(prediction))

    @property
    def best_trained(self) -> Trained | None:
        """The best of the configurations that were trained in full; None if there is none yet."""
        found = []
        for trial in self.log.refresh().trials:
            value = trial.points.get(self.plan.full)
            if value is not None and math.isfinite(value):
                found.append(Trained(config=trial.config, value=value, trial=trial.id))
        return min(found, key=lambda one: self.plan.sign * one.value, default=None)

    @property
    def trials(self) -> list[Trial]:
        state = self.log.refresh()
        return [viewed(self.plan, state, trial) for trial in state.trials]

    def predict(self, config: Config, fidelities: Sequence[Mapping[str, float]] | None = None) -> "list[Prediction]":
        """What is believed of a configuration at some fidelities, or at full fidelity."""
        belief = self.belief()
        if belief is None:
            raise StudyError("no finite value was reported yet, so nothing can be predicted")
        places = [self.plan.fidelities.full] if fidelities is None else fidelities
        return belief.predict(self.plan.space.to_unit(config), [self.plan.fidelities.to_unit(s) for s in places])

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat dictionary for each reported point."""
        return point_rows(self.plan, self.log.refresh())

    def to_frame(self) -> Any:
        """The reported points as a pandas DataFrame."""
        try:
            import pandas
        except ImportError as error:
            raise StudyError("to_frame needs pandas: pip install 'takg[frames]', or use to_rows()") from error
        return pandas.DataFrame(self.to_rows())

    def belief(self) -> "Belief | None":
        """The models fitted to all that is known; None while nothing finite was reported."""
        from takg.study._belief import Memory, learn

        state = self.log.refresh()
        if self._belief[0] != state.sequence:
            memory = Memory.loads(self.log.storage.recall(self.name, _ENGINE))
            self._belief = (-1, None)  # what it holds takes as much room as what is to come
            fitted = learn(self.plan, state, memory, seed=self._seed(state), cost_function=self.cost_function)
            self._belief = (state.sequence, fitted)
        return self._belief[1]

    def spent(self) -> float | None:
        """Cost so far in full trainings, by the cost that was last predicted for one; None while that is unknown."""
        belief = self._belief[1] or self.belief()
        return None if belief is None else self.state.cost / belief.full_cost

    def scarcity(self, *, evaluations: int, budget: float | None = None, cost: float | None = None) -> float:
        """What an evaluation takes beside its cost if their number is limited, too, in units of the cost.

        It is how much more each of those left could cost than they have cost so far: nothing if the money is going to
        run out first. As trainings get longer in the course of a study, that cannot be told from its first half.

        Args:
            evaluations: their total number, open ones included.
            budget, cost: in total, as in `optimize`; at least one of them.
        """
        if budget is None and cost is None:
            raise InputError("budget=None, cost=None: expected a total of at least one of them")
        state = self.log.refresh()
        if 2 * len(state.evaluations) < evaluations:
            return 0.0
        ended = [evaluation.end.cost for evaluation in state.evaluations if evaluation.end is not None]
        most = math.inf if cost is None else cost
        if budget is not None:
            belief = self._belief[1] or self.belief()  # the last one will do
            most = min(most, math.inf if belief is None else budget * belief.full_cost)
        if not ended or most == math.inf:
            return 0.0
        under_way = sum(evaluation.asked.reason.get("cost", 0.0) for evaluation in state.open.values())
        affordable = (most - state.cost - under_way) / max(evaluations - len(state.evaluations), 1)
        return float(max(0.0, affordable - sum(ended) / len(ended)))

    # Running

    def optimize(
        self,
        train: Train,
        *,
        budget: float | None = None,
        cost: float | None = None,
        evaluations: int | None = None,
        seconds: float | None = None,
        stop_below: float | None = None,
        workers: int | None = None,
        executor: Any = None,
        timeout: float | None = None,
        progress: bool | None = None,
    ) -> None:
        """Train and ask until a limit is reached; what was done before counts, so that a study can be run again.

        With a limit on the number of evaluations and one on what they cost, trainings are longer where the number would
        run out first.

        Args:
            train: the training function; with workers, one that can be imported by name.
            budget: total cost in full trainings.
            cost: total cost in the study's own unit.
            evaluations: total number of evaluations.
            seconds: of wall time, from now.
            stop_below: stop when the expected gain of the next evaluation, per full training, is below this.
            workers: local processes; without them evaluations run here, one after the other.
            executor: anything with `submit(function, *arguments) -> Future` and room for `workers` evaluations.
            timeout: seconds after which an evaluation is stopped; needs workers.
            progress: show a live display; by default if the output is a terminal.
        """
        from takg.study._drive import Limits, drive

        limits = Limits(
            budget=budget, cost=cost, evaluations=evaluations, seconds=seconds, stop_below=stop_below, timeout=timeout
        )
        drive(self, train, limits, workers=workers, executor=executor, progress=progress)

    def tidy(self) -> None:
        """Delete the checkpoints that no trial will go on from, and more if they take too much room."""
        state = self.state
        if self.keep_checkpoints:
            return
        kept = self.best_trained  # the model that the user came for
        for trial in state.trials:
            is_over = (trial.checkpoint is None or is_complete(self.plan, trial)) and not state.is_busy(trial)
            if is_over and (kept is None or trial.id != kept.trial) and self.checkpoints.exists(trial.id):
                self.checkpoints.remove(trial.id)
        if self.disk_limit is not None:
            self._make_room(self.disk_limit)

    # Inside

    def _asked(self, count: int, *, at_most: int | None = None, overhead: float) -> list[Evaluation]:
        """New evaluations; fewer than asked for if others were faster."""
        self._drop_without_checkpoint()
        before, proposals = self._proposals(count, overhead=overhead)
        found: list[Evaluation] = []
        for proposal in proposals:
            # What others asked for meanwhile may be the same; with many of them, some time it must be good enough.
            most = before + len(found) + 1 if self._overtaken < _MOST_OVERTAKEN else math.inf
            evaluation = self._committed(proposal, at_most=min(most, math.inf if at_most is None else at_most))
            if evaluation is None:
                self._overtaken += 1
                break
            self._overtaken = 0
            found.append(evaluation)
        return found

    def _proposals(self, count: int, *, overhead: float) -> "tuple[int, Sequence[Proposal]]":
        """What to evaluate next, and how many evaluations there were when that was decided."""
        from takg.study._suggest import initial, initial_size, suggest

        state = self.state
        asked = len(state.evaluations)
        if self._is_beginning():
            return asked, [initial(self.plan, asked + i) for i in range(min(count, initial_size(self.plan) - asked))]
        began = time.perf_counter()
        belief = self.belief()
        asked = len(state.evaluations)
        if belief is None:  # all are still running, or came to nothing
            return asked, [initial(self.plan, asked + i) for i in range(count)]
        found = suggest(self.plan, state, belief, count, seed=self._seed(state), overhead=overhead)
        for trial, reason in found.dropped:
            self._drop(trial, reason)
        self.log.storage.remember(self.name, _ENGINE, found.memory.dumps())
        seconds = (time.perf_counter() - began) / count
        return asked, [replace(one, reason={**one.reason, "seconds": seconds}) for one in found.proposals]

    def _is_beginning(self) -> bool:
        """Whether the initial design goes on: what costs as much as a full training has to be chosen with more care."""
        from takg.study._suggest import LEAST_INITIAL, initial_size

        plan, asked = self.plan, len(self.state.evaluations)
        if (
            plan.options.initial is not None
            or plan.fidelities.m == 0
            or not LEAST_INITIAL <= asked < initial_size(plan)
        ):
            return asked < initial_size(plan)
        belief = self.belief()
        return belief is None or self.state.cost < belief.full_cost

    def _committed(self, proposal: "Proposal", *, at_most: float) -> Evaluation | None:
        """Write down that an evaluation was asked for; None if others took its trial or its place."""
        while len(self.state.evaluations) < at_most:
            state = self.state
            if proposal.place not in (None, len(state.evaluations)):  # others were given that one meanwhile
                from takg.study._suggest import initial

                proposal = initial(self.plan, len(state.evaluations))
            event = Asked(
                evaluation=len(state.evaluations),
                trial=len(state.trials) if proposal.trial is None else proposal.trial,
                target=proposal.target,
                worker=self.worker,
                time=time.time(),
                config=proposal.config,
                start=proposal.start,
                kept=proposal.kept,
                reason=proposal.reason,
            )
            try:
                if self.log.try_append(event):
                    return self._evaluation(self.state.evaluations[event.evaluation])
            except StaleError:
                return None
        return None

    def _given_again(self) -> Evaluation | None:
        """An evaluation that was lost, from where its last checkpoint stands."""
        for lost in self.state.lost():
            event = Given(
                evaluation=lost.id,
                attempt=lost.attempt + 1,
                worker=self.worker,
                time=time.time(),
                start=self.checkpoints.last_state(lost.asked.trial, lost),
            )
            try:
                if self.log.try_append(event):
                    return self._evaluation(lost)
            except StaleError:
                continue
        return None

    def _evaluation(self, state: EvaluationState) -> Evaluation:
        return Evaluation(self.log, self.plan, state, self.checkpoints)

    def _prepared(self, evaluation: Evaluation) -> Evaluation:
        """With its directory as it is to be found: what a former attempt, or another study, has left there is gone."""
        state = self.state.evaluations[evaluation.id]
        prepare(self.log, self.checkpoints, state)
        return self._evaluation(state)

    def _fail(self, state: EvaluationState, message: str, *, kind: str, cost: float, seconds: float) -> None:
        self.log.append(
            Failed(
                evaluation=state.id,
                attempt=state.attempt,
                kind=kind,
                message=message,
                cost=cost,
                seconds=seconds,
                time=time.time(),
            )
        )
        self.checkpoints.discard_copies(state.asked.trial)
        self.tidy()

    def _cost(self, state: EvaluationState, seconds: float) -> float:
        config = self.state.trial_of(state).config
        return cost_of(self.plan, config, state, seconds=seconds, reported=None, function=self.cost_function)

    def _drop_without_checkpoint(self) -> None:
        for trial in self.state.basket():
            if not is_complete(self.plan, trial) and not self.checkpoints.exists(trial.id):
                self._drop(trial.id, "its checkpoint is gone")

    def _drop(self, trial: int, reason: str) -> None:
        try:
            self.log.append(Dropped(trial=trial, reason=reason, time=time.time()))
        except StudyError:
            return  # others have continued it
        self.tidy()

    def _make_room(self, limit: float) -> None:
        """Drop paused trials, the least promising first, until the rest fit."""
        paused = [trial for trial in self.state.basket() if not is_complete(self.plan, trial)]
        sizes = {trial.id: self.checkpoints.size(trial.id) for trial in self.state.trials}
        worst_first = sorted(paused, key=lambda trial: -self.plan.sign * next(reversed(trial.points.values())))
        for trial in worst_first:
            if sum(sizes.values()) <= limit:
                return
            try:
                self.log.append(Dropped(trial=trial.id, reason="checkpoints took too much room", time=time.time()))
            except StudyError:
                continue  # others have continued it
            self.checkpoints.remove(trial.id)
            del sizes[trial.id]

    def _seed(self, state: StudyState) -> int:
        """Of the next suggestion: the same after the same events, another after each evaluation."""
        text = f"{self.plan.options.seed}/{len(state.evaluations)}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) % 2**31

    def _by_name(self, place: Any) -> dict[str, float]:
        if isinstance(place, Mapping):
            return dict(place)
        names = self.plan.fidelities.trace_names
        if len(names) != 1:
            raise InputError(f"trace has the fidelity {place!r}: expected a mapping with {names}")
        return {names[0]: place}
