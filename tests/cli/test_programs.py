"""Real small programs as training functions: what they print, how they end, and that none is left behind."""

import contextlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import takg
from takg.errors import InputError, StaleError, StudyError
from takg.programs import ProgramError, ProgramTimeoutError, ProgramTrain, filled, placeholders
from takg.records import Asked
from takg.study import DivergedError, Evaluation, Study

CONFIG = {"lr": 0.5}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return takg.create_study(
        {"lr": takg.Float(0.1, 1.0)},
        {"epochs": takg.Fidelity(1, 9, trace=True), "data": takg.Fidelity(0.5, 1.0, trace=False)},
        storage=None,
        checkpoints=tmp_path / "checkpoints",
        cost="reported",
    )


def asked(study: Study, epochs: int, *, start: int | None = None) -> Evaluation:
    """An evaluation of a new trial, or the next leg of the only one."""
    number = len(study.state.evaluations)
    study.log.append(
        Asked(
            evaluation=number,
            trial=0,
            target=(epochs, 1.0),
            worker="w",
            time=0.0,
            config=None if start else CONFIG,
            start=(start, 1.0) if start else None,
        )
    )
    return Evaluation(study.log, study.plan, study.state.evaluations[number], study.checkpoints, stops=True)


def program(folder: Path, text: str, *arguments: str, **settings: Any) -> ProgramTrain:
    """One that runs some lines of Python."""
    script = folder / "train.py"
    script.write_text("import json, os, pathlib, signal, subprocess, sys, time\n" + textwrap.dedent(text))
    return ProgramTrain(command=(sys.executable, str(script), *arguments), **{"counted": "epochs", **settings})


def trace(study: Study) -> dict[float, float]:
    """Epochs and values of the only trial."""
    return {at[0]: value for at, value in study.state.trials[0].points.items()}


def log_of(evaluation: Evaluation) -> Path:
    return evaluation.checkpoint.parent / "logs" / f"evaluation-{evaluation.id:05d}.log"


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for(condition: Any, *, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


# Command lines


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (["a", "{lr}", "x{lr}y{n}z"], ["a", "0.001", "x0.001y3z"]),
        (["{{lr}}", "{{{n}}}", "{}".replace("{}", "{{}}")], ["{lr}", "{3}", "{}"]),
        (["{text}", "{flag}", "{nothing}"], ["a b", "true", "null"]),
        (["p", "--momentum", "{gone}", "--n", "{n}"], ["p", "--n", "3"]),
        (["p", "-m", "{gone}", "q"], ["p", "q"]),
        (["p", "--momentum={gone}", "--x"], ["p", "--x"]),
        (["p", "--keep", "--momentum={gone}"], ["p", "--keep"]),
        (["p", "file", "{gone}"], ["p", "file"]),
        (["p", "--", "{gone}"], ["p", "--"]),
        (["p", "--x={n}", "{gone}"], ["p", "--x=3"]),
        (["{gone}", "--a", "{gone}", "{gone}", "b"], ["b"]),
        (["{a.b}"], ["7"]),
    ],
)
def test_placeholders_become_values_and_what_is_not_active_is_left_out(
    command: list[str], arguments: list[str]
) -> None:
    values = {"lr": 0.001, "n": 3, "text": "a b", "flag": True, "nothing": None, "a.b": 7}
    assert filled(command, values) == arguments


def test_the_names_in_braces_are_found() -> None:
    assert placeholders("--x={a.b}{{c}}{d}") == ["a.b", "d"]
    assert placeholders("plain") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected '}' before end of string|Single '{' encountered"),
        ("a}", "Single '}' encountered"),
        ("{}", "expected nothing but a name"),
        ("{lr:.3f}", "expected nothing but a name"),
        ("{lr!r}", "expected nothing but a name"),
    ],
)
def test_braces_that_do_not_match_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        placeholders(text)


# What programs print


def test_every_point_is_reported_while_the_program_still_runs(study: Study, tmp_path: Path) -> None:
    train = program(
        tmp_path,
        """
        for epoch in (1, 2, 3):
            print(json.dumps({"value": 1 / epoch, "epochs": epoch}))
            while epoch == 2 and not pathlib.Path(sys.argv[1]).exists():
                time.sleep(0.01)
        """,
        str(tmp_path / "seen"),
    )
    evaluation = asked(study, 3)
    report = evaluation.report

    def reported(value: float, /, **fidelity: float) -> None:
        report(value, **fidelity)
        if fidelity["epochs"] == 2:  # the program waits for this, so the point arrived before its end
            (tmp_path / "seen").touch()

    evaluation.report = reported  # type: ignore[method-assign]
    train(evaluation)
    assert trace(study) == {1: 1.0, 2: 0.5, 3: 1 / 3}


def test_values_without_a_fidelity_count_up_from_the_start(study: Study, tmp_path: Path) -> None:
    train = program(
        tmp_path,
        """
        start, end = map(int, sys.argv[1:3])
        state = pathlib.Path(os.environ["TAKG_CHECKPOINT"]) / "state"
        weight = float(state.read_text()) if os.environ["TAKG_RESUMED"] == "true" else 16.0
        for _ in range(start, end):
            weight /= 2
            print(json.dumps({"value": weight}))
        state.write_text(str(weight))
        """,
        "{start.epochs}",
        "{epochs}",
    )
    first = asked(study, 2)
    train(first)
    study.tell(first, cost=1.0)
    assert trace(study) == {1: 8.0, 2: 4.0}
    second = asked(study, 4, start=2)
    train(second)
    assert trace(study) == {1: 8.0, 2: 4.0, 3: 2.0, 4: 1.0}


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ('{"value": 1}', r'counted up to epochs=1, but it was to train up to 2; .* \{"value": 0.5, "epochs": 2\}'),
        (
            '{"value": 1}\n{"value": 1}\n{"value": 1}',
            r"line 3 of its output, .*: one value without a fidelity too many",
        ),
        ('{"value": "low"}', r"line 1 of its output, .*value='low': expected a number, \"nan\" or \"inf\""),
        ('{"value": null}', r"value=None: expected a number"),
        (f'{{"value": {10**400}}}', r"an integer that is too large; expected a number"),
        ('{"value": true}', r"value=True: expected a number"),
        (
            '{"value": 1, "epoch": 2}',
            r"'epoch' is unknown; expected one of \['value', 'cost', 'saved', 'epochs', 'data'\]",
        ),
        ('{"value": 1, "epochs": 20}', r"epochs=20; expected an integer above 0 and at most 9"),
        ('{"value": 1, "epochs": 1, "data": 0.5}', r"data=0.5: this trial has data=1.0, which is fixed"),
        ('{"cost": -1}', r"cost=-1: expected a finite number > 0"),
        ('{"saved": 3}', r"saved=3: expected an object of fidelities, or true"),
        ('{"saved": {"steps": 3}}', r"'steps' is unknown; expected one of \['epochs', 'data'\]"),
    ],
)
def test_a_line_that_means_nothing_is_an_error(study: Study, tmp_path: Path, printed: str, message: str) -> None:
    train = program(tmp_path, f"print({printed!r})")
    with pytest.raises(ProgramError, match=message):
        train(asked(study, 2))


def test_without_a_counted_fidelity_a_value_is_that_of_the_target(study: Study, tmp_path: Path) -> None:
    program(tmp_path, """print('{"value": 3}')""", counted=None)(asked(study, 5))
    assert trace(study) == {5: 3.0}


def test_garbage_goes_to_the_log_and_nowhere_else(study: Study, tmp_path: Path) -> None:
    train = program(
        tmp_path,
        r"""
        out = sys.stdout.buffer
        out.write(b"epoch 1\n{not json}\n[1]\n{}\n{\"loss\": 3}\n{\"cost\": 1, \"loss\": 3}\n\xff\xfe\x00\n\n   \n")
        out.write(b"{" * 100000 + b"\n" + b"x" * 3000000 + b"\n")
        out.write(b'  {"value": 2, "epochs": 1}\r\n')
        out.flush()
        print("a warning", file=sys.stderr)
        out.write(b'{"value": 1, "epochs": 2}')  # no newline at the end
        """,
    )
    evaluation = asked(study, 2)
    train(evaluation)
    assert trace(study) == {1: 2.0, 2: 1.0}
    log = log_of(evaluation).read_bytes()
    assert b'{not json}\n[1]\n{}\n{"loss": 3}\n{"cost": 1, "loss": 3}\n\xff\xfe\x00\n' in log
    assert b"a warning\n" in log
    assert log.count(b"x") > 3_000_000 - 10
    assert b'"value"' not in log
    assert evaluation.reported_cost is None


@pytest.mark.parametrize("text", ["NaN", '"nan"', '"NaN"', "Infinity", "-Infinity", '"inf"', '"-inf"', "1e999"])
def test_a_loss_that_is_not_finite_ends_the_program(study: Study, tmp_path: Path, text: str) -> None:
    train = program(tmp_path, f"""print('{{"value": {text}, "epochs": 1}}')\ntime.sleep(60)""")
    began = time.monotonic()
    with pytest.raises(DivergedError, match="diverged at"):
        train(asked(study, 2))
    assert time.monotonic() - began < 20
    assert not math.isfinite(trace(study)[1])


def test_cost_and_checkpoints_on_the_way_are_passed_on(study: Study, tmp_path: Path) -> None:
    train = program(
        tmp_path,
        """
        (pathlib.Path(sys.argv[1]) / "weights").write_text("at 1")
        print('{"value": 2, "epochs": 1, "cost": 1.5}')
        print('{"saved": true}')
        print('{"value": 1}')
        print('{"cost": 2.5}')
        print('{"saved": {"epochs": 2}}')
        """,
        "{checkpoint}",
    )
    evaluation = asked(study, 2)
    train(evaluation)
    assert evaluation.reported_cost == 2.5
    saved = study.state.evaluations[0].saved
    assert saved is not None
    assert saved.fidelity == (2, 1.0)
    assert (evaluation.checkpoint.parent / ".safe" / saved.copy / "weights").read_text() == "at 1"


def test_a_checkpoint_that_cannot_be_copied_is_noted_and_does_no_harm(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(trial: int, name: str) -> None:
        raise FileNotFoundError("weights.tmp")

    monkeypatch.setattr(study.checkpoints, "copy", copy)
    evaluation = asked(study, 1)
    program(tmp_path, """print('{"value": 2, "saved": true}')""")(evaluation)
    assert study.state.evaluations[0].saved is None
    assert "takg could not copy the checkpoint: weights.tmp" in log_of(evaluation).read_text()


# What programs are given


def test_the_program_sees_its_arguments_environment_and_configuration(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    (tmp_path / "work").mkdir()
    train = program(
        tmp_path,
        """
        names = ("INHERITED", "OWN", "TAKG_CHECKPOINT", "TAKG_CONFIG_FILE", "TAKG_RESUMED")
        seen = {name: os.environ[name] for name in names}
        seen |= {"argv": sys.argv[1:], "cwd": os.getcwd(), "stdin": sys.stdin.read()}
        watched = (signal.SIGINT, signal.SIGPIPE)
        seen["ignored"] = [one.name for one in watched if signal.getsignal(one) == signal.SIG_IGN]
        pathlib.Path("seen.json").write_text(json.dumps(seen))
        print('{"value": 1, "epochs": 2}')
        """,
        *("{lr}", "{epochs}", "{data}", "{start.epochs}", "{checkpoint}", "{resumed}", "{config_file}"),
        *("{trial}", "{evaluation}", "; rm -rf $HOME"),
        cwd=str(tmp_path / "work"),
        env={"OWN": "x y"},
    )
    evaluation = asked(study, 2)
    train(evaluation)
    seen = json.loads((tmp_path / "work" / "seen.json").read_text())
    checkpoint, config_file = str(evaluation.checkpoint), str(log_of(evaluation).with_suffix(".json"))
    given = ["0.5", "2", "1.0", "0", checkpoint, "false", config_file, "0", "0", "; rm -rf $HOME"]
    assert seen["argv"] == given
    assert (seen["INHERITED"], seen["OWN"], seen["TAKG_RESUMED"]) == ("yes", "x y", "false")
    assert (seen["TAKG_CHECKPOINT"], seen["TAKG_CONFIG_FILE"]) == (checkpoint, config_file)
    assert (seen["cwd"], seen["stdin"]) == (str(tmp_path / "work"), "")
    assert seen["ignored"] == ["SIGPIPE"]  # by Python itself; an interrupt is not
    assert json.loads(Path(config_file).read_text()) == {
        "config": {"lr": 0.5},
        "fidelity": {"epochs": 2, "data": 1.0},
        "start": None,
        "checkpoint": checkpoint,
        "resumed": False,
        "trial": 0,
        "evaluation": 0,
    }


def test_a_program_can_be_sent_to_another_process() -> None:
    train = ProgramTrain(command=("a", "{lr}"), counted="epochs", cwd="/", env={"A": "1"}, timeout=3.0)
    assert pickle.loads(pickle.dumps(train)) == train


@pytest.mark.parametrize("command", [(), "python train.py"])
def test_a_command_is_a_list_of_arguments(command: Any) -> None:
    with pytest.raises(InputError, match=r"command=.*: expected a tuple, the program and its arguments"):
        ProgramTrain(command=command)


def test_a_relative_program_is_one_in_the_working_directory(study: Study, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text('#!/bin/sh\necho "{\\"value\\": $1, \\"epochs\\": 2}"\n')
    script.chmod(0o755)
    ProgramTrain(command=("./train.sh", "{lr}"), cwd=str(tmp_path))(asked(study, 2))
    assert trace(study) == {2: 0.5}


# How programs end


def test_an_exit_code_is_named_with_the_last_words_and_the_log(study: Study, tmp_path: Path) -> None:
    train = program(
        tmp_path,
        """
        print("progress " * 1000)
        print("first words", "out of memory", sep="\\n", file=sys.stderr)
        sys.exit(3)
        """,
    )
    evaluation = asked(study, 2)
    with pytest.raises(
        ProgramError, match=r"first words\nout of memory\n.* exited with code 3; its output is in"
    ) as error:
        train(evaluation)
    assert str(error.value).splitlines()[-1].endswith(str(log_of(evaluation)))
    assert "progress" not in str(error.value)
    assert "progress" in log_of(evaluation).read_text()


def test_a_program_without_last_words_is_reported_all_the_same(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"^the program exited with code 1; its output"):
        program(tmp_path, "sys.exit(1)")(asked(study, 2))


def test_points_before_a_bad_end_are_kept(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="exited with code 4"):
        program(tmp_path, """print('{"value": 1}', flush=True)\nos._exit(4)""")(asked(study, 2))
    assert trace(study) == {1: 1.0}


@pytest.mark.parametrize("line", ["os.kill(os.getpid(), signal.SIGKILL)", "os.killpg(0, signal.SIGKILL)"])
def test_a_program_that_is_killed_says_by_which_signal(study: Study, tmp_path: Path, line: str) -> None:
    with pytest.raises(ProgramError, match="the program was killed by SIGKILL; its output is in"):
        program(tmp_path, line)(asked(study, 2))


def test_a_program_that_cannot_be_started_says_why(study: Study, tmp_path: Path) -> None:
    evaluation = asked(study, 2)
    with pytest.raises(ProgramError, match="could not be started: No such file or directory; its command line is in"):
        ProgramTrain(command=("no-such-program", "{lr}"))(evaluation)
    assert "no-such-program 0.5" in log_of(evaluation).read_text()
    with pytest.raises(ProgramError, match="could not be started: Permission denied"):
        ProgramTrain(command=(str(tmp_path),))(evaluation)
    with pytest.raises(ProgramError, match=r"cwd='.*nowhere': expected a directory that exists"):
        ProgramTrain(command=("true",), cwd=str(tmp_path / "nowhere"))(evaluation)


HANGS = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {child.pid}")
print('{"value": 1, "epochs": 1}')
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def pids(path: Path) -> list[int]:
    wait_for(lambda: path.exists() and len(path.read_text().split()) == 2)
    return [int(pid) for pid in path.read_text().split()]


def assert_gone(path: Path) -> None:
    found = pids(path)
    wait_for(lambda: not any(map(is_alive, found)))


@contextlib.contextmanager
def none_left_behind(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        for pid in map(int, path.read_text().split() if path.exists() else ()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_program_that_hangs_is_killed_with_its_children(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    train = program(tmp_path, HANGS, env={"PIDS": str(file)}, timeout=1.5)
    with none_left_behind(file):
        with pytest.raises(ProgramTimeoutError, match=r"took longer than 1\.5 s; its output is in"):
            train(asked(study, 2))
        assert_gone(file)
    assert trace(study) == {1: 1.0}
    assert issubclass(ProgramTimeoutError, TimeoutError)
    assert issubclass(ProgramTimeoutError, StudyError)


def test_a_program_whose_evaluation_is_no_longer_its_own_is_killed(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    evaluation = asked(study, 2)
    study.release(evaluation, "somebody else has it")
    with none_left_behind(file):
        with pytest.raises(StaleError, match="no longer its own"):
            program(tmp_path, HANGS, env={"PIDS": str(file)})(evaluation)
        assert_gone(file)


def test_a_program_that_kills_its_guard_does_not_survive_it(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    train = program(
        tmp_path, "time.sleep(0.2)\nos.kill(os.getppid(), signal.SIGKILL)\n" + HANGS, env={"PIDS": str(file)}
    )
    with none_left_behind(file):
        with pytest.raises(ProgramError, match="the program was killed by SIGKILL"):
            train(asked(study, 2))
        time.sleep(0.5)  # it would have written the file by now, or part of it
        written = file.read_text().split() if file.exists() else ()
        assert not any(is_alive(int(pid)) for pid in written)


def test_what_a_program_leaves_running_is_killed_when_it_ends(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    train = program(
        tmp_path,
        """
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {child.pid}")
        print('{"value": 1, "epochs": 2}')
        """,
        env={"PIDS": str(file)},
    )
    with none_left_behind(file):
        train(asked(study, 2))
        assert_gone(file)
    assert trace(study) == {2: 1.0}


def test_a_child_that_left_the_group_and_holds_the_output_open_delays_nothing(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    train = program(
        tmp_path,
        """
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True)
        pathlib.Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {child.pid}")
        print('{"value": 1, "epochs": 2}')
        """,
        env={"PIDS": str(file)},
    )
    with none_left_behind(file):
        began = time.monotonic()
        train(asked(study, 2))
        assert time.monotonic() - began < 20
    assert trace(study) == {2: 1.0}


WORKER = """
import sys
sys.path[:0] = {path!r}
import takg
from takg.programs import ProgramTrain
from takg.records import Asked
from takg.study import Evaluation
space, fidelities = {{"lr": takg.Float(0.1, 1.0)}}, {{"epochs": takg.Fidelity(1, 9, trace=True)}}
study = takg.create_study(space, fidelities, storage=None, checkpoints={checkpoints!r})
study.log.append(Asked(evaluation=0, trial=0, target=(2,), worker="w", time=0.0, config={{"lr": 0.5}}))
evaluation = Evaluation(study.log, study.plan, study.state.evaluations[0], study.checkpoints)
ProgramTrain(command=({python!r}, {script!r}), env={{"PIDS": {pids!r}}})(evaluation)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_does_not_outlive_its_worker(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "pids"
    command = program(tmp_path, HANGS).command
    places = {"checkpoints": str(tmp_path / "c"), "script": command[1], "pids": str(file)}
    text = WORKER.format(path=[*sys.path], python=sys.executable, **places)
    worker = subprocess.Popen([sys.executable, "-c", text])
    with none_left_behind(file):
        found = pids(file)
        assert all(map(is_alive, found))
        worker.send_signal(number)
        worker.wait()
        assert_gone(file)
