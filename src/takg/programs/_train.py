"""Carry out an evaluation by a program.

Its standard output is read while it runs. A line that is a JSON object with a `value` is one point of the trace;
`{"cost": 3.5}` and `{"saved": {"epochs": 4}}` are calls of `Evaluation.cost` and `Evaluation.saved`. All other lines
and its standard error go to `<checkpoints>/logs/evaluation-00012.log`.
"""

import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from takg.errors import InputError, StudyError
from takg.programs._command import filled, placeholders
from takg.space import flat
from takg.study import Evaluation

KEYS = ("value", "cost", "saved")
"""What a line of output can have besides fidelities."""

_GUARD = Path(__file__).with_name("_guard.py")
_CHUNK = 1 << 16  # bytes read at a time
_LONGEST = 1 << 20  # bytes of a line; more are taken as several lines
_TAIL, _TAIL_LINES = 4000, 12  # bytes and lines of standard error that are kept for an error message
_NON_FINITE = {"nan": "nan", "inf": "inf", "+inf": "inf", "-inf": "-inf", "infinity": "inf", "-infinity": "-inf"}


class ProgramError(StudyError):
    """A program could not be started, printed what cannot be understood, or came to a bad end."""


class ProgramTimeoutError(ProgramError, TimeoutError):
    """A program took longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTrain:
    """A training function, for `Study.optimize`, that runs a program; on Linux and macOS.

    Args:
        command: the program and its arguments, with placeholders such as `{lr}`; see docs/cli.md.
        counted: the integer trace fidelity that values printed without any fidelity count up, from the start.
        cwd: the working directory; that of this process, if left out.
        env: more environment variables.
        timeout: seconds after which the program and all its children are killed.
    """

    command: tuple[str, ...]
    counted: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command:
            raise InputError(f"command={self.command!r}: expected a tuple, the program and its arguments")
        for argument in self.command:
            placeholders(argument)

    def __call__(self, evaluation: Evaluation) -> None:
        logs = evaluation.checkpoint.parent / "logs"
        logs.mkdir(exist_ok=True)
        stem = f"evaluation-{evaluation.id:05d}"
        config_file = logs / f"{stem}.json"
        config_file.write_text(json.dumps(_described(evaluation), indent=2))
        command = filled(self.command, _values(evaluation, config_file))
        with (logs / f"{stem}.log").open("ab", buffering=0) as log:
            log.write(f"--- attempt {evaluation.attempt}, {time.ctime()}: {shlex.join(command)}\n".encode())
            reader = _Reader(evaluation, self.counted, log)
            with _started(command, cwd=self.cwd, env=self._environment(evaluation, config_file)) as program:
                ending = program.followed(reader, self.timeout)
        if ending == "ended 0":
            reader.check_count()
        else:
            raise _error(ending, reader, Path(log.name), self.timeout)

    def _environment(self, evaluation: Evaluation, config_file: Path) -> dict[str, str]:
        return {
            "PYTHONUNBUFFERED": "1",  # or values printed by Python would arrive in bunches, or never if it is killed
            **os.environ,
            **self.env,
            "TAKG_CHECKPOINT": str(evaluation.checkpoint),
            "TAKG_CONFIG_FILE": str(config_file),
            "TAKG_RESUMED": json.dumps(evaluation.resumed),
        }


class _Reader:
    """Takes in what a program prints."""

    def __init__(self, evaluation: Evaluation, counted: str | None, log: IO[bytes]) -> None:
        self.evaluation, self.counted, self.log = evaluation, counted, log
        self.tail = b""  # the end of its standard error
        self._partial = b""
        self._lines = 0
        self._has_counted = False
        start = evaluation.start or {}
        self._place: dict[str, Any] = {} if counted is None else {counted: int(start.get(counted, 0))}

    def take_errors(self, data: bytes) -> None:
        self.log.write(data)
        self.tail = (self.tail + data)[-_TAIL:]

    def take_output(self, data: bytes) -> None:
        """Some bytes of standard output; none mean its end."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if not data or len(self._partial) > _LONGEST:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            self._lines += 1
            self._take(line)

    def check_count(self) -> None:
        """Values without a fidelity must have counted up to the target, or their places are wrong."""
        if self.counted is None or not self._has_counted:
            return
        reached, target = self._place[self.counted], self.evaluation.fidelity[self.counted]
        if reached != target:
            raise ProgramError(
                f"values without a fidelity were counted up to {self.counted}={reached}, but it was to train up to "
                f"{target:g}; expected one for each step, or lines such as {self._example(target)}"
            )

    def _take(self, line: bytes) -> None:
        message = _message(line)
        if message is None:
            if line:
                self.log.write(line + b"\n")
            return
        try:
            self._obey(message)
        except InputError as error:
            raise ProgramError(f"line {self._lines} of its output, {_text(line)!r:.300}: {error}") from error

    def _obey(self, message: dict[str, Any]) -> None:
        if "value" in message:
            fidelity = {name: number for name, number in message.items() if name not in KEYS}
            if unknown := [name for name in fidelity if name not in self.evaluation.fidelity]:
                raise InputError(f"{unknown[0]!r} is unknown; expected one of {[*KEYS, *self.evaluation.fidelity]}")
            self._place = fidelity or self._counted_up()
            self.evaluation.report(_number(message["value"]), **self._place)
        if "cost" in message:
            self.evaluation.cost(message["cost"])
        if "saved" in message:
            self._save(message["saved"])

    def _counted_up(self) -> dict[str, Any]:
        if self.counted is None:
            return {}
        self._has_counted = True
        here = self._place.get(self.counted, self.evaluation.fidelity[self.counted]) + 1
        if here > self.evaluation.fidelity[self.counted]:
            raise InputError(
                f"one value without a fidelity too many: it would be that of {self.counted}={here}, beyond the target; "
                f"expected at most one for each step, or lines such as {self._example(here - 1)}"
            )
        return {self.counted: here}

    def _example(self, place: float) -> str:
        return json.dumps({"value": 0.5, str(self.counted): place})

    def _save(self, saved: Any) -> None:
        if saved is not True and not isinstance(saved, dict):
            raise InputError(f"saved={saved!r}: expected an object of fidelities, or true for where the last value was")
        if unknown := [name for name in saved if name not in self.evaluation.fidelity] if saved is not True else []:
            raise InputError(f"{unknown[0]!r} is unknown; expected one of {[*self.evaluation.fidelity]}")
        try:
            self.evaluation.saved(**(self._place if saved is True else saved))
        except OSError as error:  # the program was changing its files: no harm is done, the next time may be better
            self.log.write(f"--- takg could not copy the checkpoint: {error}\n".encode())


class _Program:
    """A program under way, and the guard around it."""

    def __init__(self, guard: "subprocess.Popen[bytes]", outcome: int) -> None:
        self.guard, self.outcome = guard, outcome

    def followed(self, reader: _Reader, timeout: float | None) -> str:
        """Read until the program has ended; how it ended."""
        assert self.guard.stdout is not None and self.guard.stderr is not None
        output, errors = self.guard.stdout.fileno(), self.guard.stderr.fileno()
        deadline = None if timeout is None else time.monotonic() + timeout
        ending = b""
        with selectors.DefaultSelector() as selector:
            for descriptor in (output, errors, self.outcome):
                selector.register(descriptor, selectors.EVENT_READ)
            while True:
                is_over = self.outcome not in selector.get_map()
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = [key.fd for key, _ in selector.select(0 if is_over else left)]
                if is_over and not ready:  # children that left the group may hold the pipes open: nobody waits for them
                    break
                if left == 0 and not is_over:
                    return "late"
                for descriptor in ready:
                    data = os.read(descriptor, _CHUNK)
                    if not data:
                        selector.unregister(descriptor)
                    if descriptor == errors:
                        reader.take_errors(data)
                    elif descriptor == self.outcome:
                        ending += data
                    elif data:
                        reader.take_output(data)
        reader.take_output(b"")
        if not ending:  # somebody killed the guard, perhaps alone
            self.kill()
            return f"ended {self.guard.wait()}"
        return ending.decode()

    def kill(self) -> None:
        if self.guard.returncode is None:  # not waited for, so that the number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.guard.pid, signal.SIGKILL)


@contextlib.contextmanager
def _started(command: list[str], *, cwd: str | None, env: dict[str, str]) -> Iterator[_Program]:
    """A program that does not outlive the context, nor this process if that is killed."""
    if cwd is not None and not Path(cwd).is_dir():
        raise ProgramError(f"cwd={cwd!r}: expected a directory that exists")
    outcome, outcome_end = os.pipe()
    watch_end, watch = os.pipe()  # never written to; closed when this process is gone
    with contextlib.ExitStack() as stack:
        for descriptor in (outcome, watch):
            stack.callback(os.close, descriptor)
        try:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(outcome_end), str(watch_end), *command],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(outcome_end, watch_end),
                start_new_session=True,
            )
        finally:
            os.close(outcome_end)
            os.close(watch_end)
        stack.enter_context(guard)  # closes its pipes and waits
        program = _Program(guard, outcome)
        stack.callback(program.kill)
        yield program


def _described(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "config": evaluation.config,
        "fidelity": evaluation.fidelity,
        "start": evaluation.start,
        "checkpoint": str(evaluation.checkpoint),
        "resumed": evaluation.resumed,
        "trial": evaluation.trial,
        "evaluation": evaluation.id,
    }


def _values(evaluation: Evaluation, config_file: Path) -> dict[str, Any]:
    """What placeholders stand for; parameters that are not active are missing."""
    return {
        **flat(evaluation.config),
        **evaluation.fidelity,
        **{f"start.{name}": (evaluation.start or {}).get(name, 0) for name in evaluation.fidelity},
        "checkpoint": str(evaluation.checkpoint),
        "resumed": evaluation.resumed,
        "config_file": str(config_file),
        "trial": evaluation.trial,
        "evaluation": evaluation.id,
    }


def _message(line: bytes) -> dict[str, Any] | None:
    """What a line says to takg; None if it is not meant for it."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_meant = isinstance(data, dict) and ("value" in data or (data and data.keys() <= set(KEYS)))
    return data if is_meant else None


def _number(value: Any) -> float:
    if isinstance(value, str) and value.lower() in _NON_FINITE:
        return float(_NON_FINITE[value.lower()])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f'value={value!r}: expected a number, "nan" or "inf"')
    try:
        return float(value)
    except OverflowError:
        raise InputError("value: an integer that is too large; expected a number") from None


def _error(ending: str, reader: _Reader, log: Path, timeout: float | None) -> ProgramError:
    kind, _, rest = ending.partition(" ")
    if kind == "late":
        return ProgramTimeoutError(f"the program took longer than {timeout:g} s; its output is in {log}")
    if kind == "unstarted":
        return ProgramError(f"the program could not be started: {rest}; its command line is in {log}")
    code = int(rest)
    what = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
    last = _text(reader.tail).strip().splitlines()[-_TAIL_LINES:]
    # What happened stands last: that line is shown where there is room for one.
    words = "\n".join(["the last that it wrote to stderr:", *last, ""]) if last else ""
    return ProgramError(f"{words}the program {what}; its output is in {log}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
