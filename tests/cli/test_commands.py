"""The commands as a user types them."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import takg
from takg.cli import main
from takg.plots import KINDS

COMMANDS = ("demo", "run", "status", "best", "trials", "plot", "export", "studies")
HEAVY = ("torch", "sqlalchemy", "rich", "numpy", "scipy", "pandas")

TUNE = """
[study]
name = "small"
initial = 12

[space.lr]
type = "float"
low = 0.1
high = 1.0

[space.opt]
name = {type = "categorical", choices = ["sgd", "adam"]}
momentum = {type = "float", low = 0.0, high = 0.9, when = {name = "sgd"}}

[fidelities.epochs]
low = 1
high = 9
trace = true

[program]
command = ["PYTHON", "train.py", "--lr", "{lr}", "--momentum", "{opt.momentum}", "{epochs}", "{start.epochs}"]
timeout = 30

[run]
evaluations = 4
"""
TRAIN = """
import argparse, json, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--momentum", type=float)
parser.add_argument("epochs", type=int)
parser.add_argument("start", type=int)
given = parser.parse_args()
for epoch in range(given.start + 1, given.epochs + 1):
    print(json.dumps({"value": given.lr / epoch, "epochs": epoch}))
print("momentum", given.momentum)
pathlib.Path(os.environ["TAKG_CHECKPOINT"], "epoch").write_text(str(given.epochs))
"""


def made(folder: Path, *, train: str = TRAIN, tune: str = TUNE) -> Path:
    """A directory with a program and its tune.toml."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(textwrap.dedent(train))
    (folder / "tune.toml").write_text(tune.replace("PYTHON", sys.executable))
    return folder / "tune.toml"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters that tests start find takg where this one did."""
    monkeypatch.setenv("PYTHONPATH", str(Path(takg.__file__).parents[1]))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a study that was run for four evaluations; not to be changed."""
    folder = tmp_path_factory.mktemp("done")
    assert main(["run", str(made(folder)), "--no-progress"]) == 0
    return folder / "takg.db"


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, which must succeed, and returns what it prints."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    return run


def error_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("takg: error: ")
    return err


def in_shell(*arguments: str, **settings: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "takg", *arguments], capture_output=True, text=True, **settings)


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert f"usage: takg {command}" in text
    assert f"example: takg {command}" in text


def test_the_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert "example: takg run tune.toml" in text
    for command in COMMANDS:
        assert re.search(rf"^    {command} ", text, re.MULTILINE)


def test_help_is_fast_as_it_loads_nothing_heavy() -> None:
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "takg", "--help"], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert "takg.cli" in loaded
    assert sorted(loaded & {*HEAVY}) == []


def test_what_is_no_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["tune"], ["status", "--colour"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert "usage: takg" in capsys.readouterr().err


# takg run


@pytest.mark.slow
def test_a_program_is_tuned_and_goes_on_where_it_stopped(tmp_path: Path, output: Callable[..., str]) -> None:
    file = made(tmp_path)
    assert "small: 4 evaluations of 4 trials, cost" in output("run", file, "--no-progress")
    file.write_text(file.read_text().replace("evaluations = 4", "evaluations = 6"))
    text = output("run", file, "--workers", "2", "--no-progress")
    assert "small: 6 evaluations of 6 trials" in text
    assert f"takg best --storage {tmp_path / 'takg.db'} --name small" in text
    study = takg.load_study(storage=tmp_path / "takg.db")
    assert [trial.status for trial in study.trials] == ["paused"] * 6
    for trial in study.trials:
        assert trial.value == trial.config["lr"] / trial.fidelity["epochs"]
    logs = tmp_path / "takg-checkpoints" / "small" / "logs"
    for i, trial in enumerate(study.trials):
        assert f"momentum {trial.config['opt'].get('momentum')}\n" in (logs / f"evaluation-{i:05d}.log").read_text()


def test_name_and_storage_can_be_given_on_the_command_line(tmp_path: Path, output: Callable[..., str]) -> None:
    file = made(tmp_path, tune=TUNE.replace("evaluations = 4", "evaluations = 1"))
    store = tmp_path / "other.db"
    output("run", file, "--storage", store, "--name", "a", "--no-progress")
    output("run", file, "--storage", store, "--name", "b", "--no-progress")
    assert output("studies", "--storage", store) == "a\nb\n"
    assert json.loads(output("studies", "--storage", store, "--json")) == ["a", "b"]
    assert "study:                b (minimise)" in output("status", "--storage", store, "--name", "b")
    assert (tmp_path / "other-checkpoints" / "b" / "trial-00000" / "epoch").exists()
    assert not (tmp_path / "takg.db").exists()


def test_a_mistake_in_the_file_is_one_line_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made(tmp_path, tune=TUNE.replace("high = 1.0", "hgih = 1.0"))
    assert "tune.toml:9: space.lr.hgih: unknown key; expected one of" in error_of(capsys, "run", file)
    assert "nothing.toml: cannot be read" in error_of(capsys, "run", tmp_path / "nothing.toml")
    file = made(tmp_path, tune=TUNE.replace("evaluations = 4", ""))
    assert "tune.toml:24: run: no limit; expected budget" in error_of(capsys, "run", file)
    assert "--budget=-1.0: expected a number > 0" in error_of(capsys, "run", file, "--budget", "-1")
    assert not (tmp_path / "takg.db").exists()


def test_options_that_the_study_was_not_made_with_are_refused(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = TUNE.replace("initial = 12", 'initial = 12\ndirection = "maximise"').replace("PYTHON", sys.executable)
    file = done.with_name("changed.toml")
    file.write_text(changed)
    message = error_of(capsys, "run", file)
    assert "changed.toml:5: study.direction: 'maximise', but study 'small' was made with 'minimise'" in message
    file.write_text(TUNE.replace("high = 9", "high = 10").replace("PYTHON", sys.executable))
    assert "has another space or other fidelities" in error_of(capsys, "run", file)


def test_a_program_that_fails_is_a_failed_trial(tmp_path: Path, output: Callable[..., str]) -> None:
    tune = TUNE.replace("evaluations = 4", "evaluations = 2")
    output("run", made(tmp_path, train="import sys\nsys.exit('no data')", tune=tune), "--no-progress")
    text = output("trials", "--storage", tmp_path / "takg.db")
    assert "failed" in text
    assert "the program exited with code 1; its output is in" in text
    assert "evaluation-00001.log" in text
    assert "trials:               2 (2 failed)" in output("status", "--storage", tmp_path / "takg.db")


def test_a_program_that_always_fails_stops_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune = TUNE.replace("evaluations = 4", "evaluations = 9")
    file = made(tmp_path, train="import sys\nsys.exit('no data')", tune=tune)
    message = error_of_run(capsys, file)
    assert "the first 5 evaluations all failed" in message
    assert "no data" in message


def error_of_run(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    assert main(["run", str(file), "--no-progress"]) == 2
    return capsys.readouterr().err.partition("takg: error: ")[2]


HANGS = """
import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
print('{"value": 1, "epochs": 1}')
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_program_that_takes_too_long_is_a_timeout_and_leaves_nothing_behind(
    tmp_path: Path, output: Callable[..., str]
) -> None:
    tune = TUNE.replace("evaluations = 4", "evaluations = 1").replace("timeout = 30", "timeout = 1.5")
    output("run", made(tmp_path, train=HANGS, tune=tune), "--no-progress")
    [trial] = json.loads(output("trials", "--storage", tmp_path / "takg.db", "--json"))
    assert trial["status"] == "failed"
    assert trial["reason"] == "timeout: took longer than 1.5 s"
    assert trial["trace"] == [{"fidelity": {"epochs": 1}, "value": 1.0}]
    wait_for(lambda: not is_alive(int((tmp_path / "pid").read_text())))


@pytest.mark.slow
def test_an_interrupt_lets_go_of_the_study_and_of_the_program(tmp_path: Path, output: Callable[..., str]) -> None:
    file = made(tmp_path, train=HANGS)
    command = [sys.executable, "-m", "takg", "run", str(file), "--no-progress"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        running = json.loads(output("status", "--storage", tmp_path / "takg.db", "--json"))["running"]
        text = output("status", "--storage", tmp_path / "takg.db")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "takg: interrupted\n"
    assert out == ""
    wait_for(lambda: not is_alive(int((tmp_path / "pid").read_text())))
    assert running[0]["worker"].split(":")[1] == str(process.pid)
    assert running[0]["silent_seconds"] < 30
    assert re.search(rf"running\n.*worker.*\n +0 +0 .*:{process.pid}:.* s ago", text)
    status = json.loads(output("status", "--storage", tmp_path / "takg.db", "--json"))
    assert status["evaluations"] == {"all": 1, "lost": 1}
    assert status["running"] == []


CRASHES = """
import json, os, pathlib, sys, time
state = pathlib.Path(os.environ["TAKG_CHECKPOINT"], "epoch")
start = int(state.read_text()) if os.environ["TAKG_RESUMED"] == "true" else 0
for epoch in range(start + 1, int(sys.argv[-2]) + 1):
    print(json.dumps({"value": 10 * start + epoch}))
    state.write_text(str(epoch))
    print(json.dumps({"saved": True}))
    if epoch == 3 and start == 0:
        pathlib.Path("pid").write_text(str(os.getpid()))
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_from_the_last_checkpoint(tmp_path: Path, output: Callable[..., str]) -> None:
    tune = TUNE.replace("evaluations = 4", "evaluations = 1").replace("low = 1\n", "low = 5\n")
    file = made(tmp_path, train=CRASHES, tune=tune)
    command = [sys.executable, "-m", "takg", "run", str(file), "--no-progress"]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        study = takg.load_study(storage=tmp_path / "takg.db")
        wait_for(lambda: (saved := study.log.refresh().evaluations[0].saved) is not None and saved.fidelity == (3,))
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not is_alive(int((tmp_path / "pid").read_text())))
    output("run", file, "--no-progress")
    [trial] = json.loads(output("trials", "--storage", tmp_path / "takg.db", "--json"))
    assert trial["status"] == "paused"
    assert [point["value"] for point in trial["trace"]][:5] == [1, 2, 3, 34, 35]


# Looking at a study


def test_status_shows_where_a_study_stands(done: Path, output: Callable[..., str]) -> None:
    text = output("status", "--storage", done)
    assert "study:                small (minimise)" in text
    assert "trials:               4 (4 paused)" in text
    assert "evaluations:          4 (4 finished)" in text
    assert "best trained in full: none yet" in text
    assert "paused, can be continued\ntrial  trained to" in text
    status = json.loads(output("status", "--storage", done, "--json"))
    study = takg.load_study(storage=done)
    assert status["cost"] == pytest.approx(study.state.cost)
    assert status["best_observed"]["value"] == min(trial.value for trial in study.trials)
    assert [one["trial"] for one in status["paused"]] == [0, 1, 2, 3]


def test_status_of_a_study_to_maximise_takes_the_largest_value(tmp_path: Path, output: Callable[..., str]) -> None:
    store = tmp_path / "s.db"
    study = takg.create_study({"x": takg.Float(0, 1)}, storage=store, direction="maximise", initial=9)
    assert json.loads(output("status", "--storage", store, "--json"))["best_observed"] is None
    for value in (0.5, float("inf"), 0.75, 0.25):
        study.tell(study.ask(), value)
    status = json.loads(output("status", "--storage", store, "--json"))
    assert status["best_observed"]["value"] == status["best_trained"]["value"] == 0.75
    assert status["trials"] == {"all": 4, "complete": 3, "diverged": 1}
    ids = [one["trial"] for one in json.loads(output("trials", "--storage", store, "--json", "--sort", "value"))]
    assert ids == [2, 0, 3, 1]


def test_looking_at_a_study_needs_no_torch(done: Path) -> None:
    for command in ("status", "trials"):
        text = f"import sys; from takg.cli import main; main([{command!r}, '--storage', {str(done)!r}])"
        text += "; print('torch' in sys.modules)"
        found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        assert found.stdout.splitlines()[-1] == "False"


def test_trials_are_listed_filtered_and_sorted(done: Path, output: Callable[..., str]) -> None:
    lines = output("trials", "--storage", done).splitlines()
    assert lines[0].split() == ["trial", "status", "trained", "to", "value", "cost", "legs", "configuration", "reason"]
    assert len(lines) == 5
    assert all("epochs=" in line and "lr=" in line and "opt.name=" in line for line in lines[1:])
    trials = json.loads(output("trials", "--storage", done, "--json", "--sort", "value"))
    values = [trial["value"] for trial in trials]
    assert values == sorted(values)
    costs = [trial["cost"] for trial in json.loads(output("trials", "--storage", done, "--json", "--sort", "cost"))]
    assert costs == sorted(costs, reverse=True)
    assert json.loads(output("trials", "--storage", done, "--json", "--status", "failed")) == []
    assert output("trials", "--storage", done, "--status", "failed").splitlines() == [
        "trial  status  trained to  value  cost  legs  configuration  reason"
    ]


@pytest.mark.parametrize(
    "command", [["status"], ["trials"], ["best"], ["plot", "all"], ["export", "a.csv"], ["studies"]]
)
def test_a_store_that_is_not_there_is_an_error_and_is_not_made(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "nothing.db"
    assert str(store) in error_of(capsys, *command, "--storage", store)
    assert not store.exists()


def test_a_study_that_is_not_there_is_an_error(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'large'" in error_of(capsys, "status", "--storage", done, "--name", "large")


def test_a_table_in_a_terminal_is_drawn(done: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "takg", "trials", "--storage", str(done)]
    process = subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"})
    os.close(theirs)
    text = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not data:
            break
        text += data
    os.close(ours)
    assert process.wait() == 0
    assert b"\x1b[1m" in text
    assert b"paused" in text


def test_a_reader_that_has_seen_enough_is_no_error(done: Path) -> None:
    command = [sys.executable, "-m", "takg", "trials", "--json", "--storage", str(done)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


# The model's commands


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a study with a small model."""
    store = tmp_path_factory.mktemp("fitted") / "s.db"
    study = takg.create_study(
        {"x": takg.Float(0, 1)}, {"epochs": takg.Fidelity(1, 4, trace=True)}, storage=store, initial=9, samples=2
    )
    for _ in range(6):
        evaluation = study.ask()
        epochs = range(1, evaluation.fidelity["epochs"] + 1)
        x = evaluation.config["x"]
        study.tell(evaluation, trace=[(epoch, (x - 0.4) ** 2 + 1 / epoch) for epoch in epochs], cost=float(len(epochs)))
    return store


@pytest.mark.slow
def test_best_is_predicted_with_its_band(fitted: Path, output: Callable[..., str]) -> None:
    found = json.loads(output("best", "--storage", fitted, "--json"))
    best = found["predicted"]
    assert best["low"] <= best["mean"] <= best["high"]
    assert best["low"] < best["median"] < best["high"]
    assert best["sd"] > 0
    assert found["trained"] is None
    assert json.loads(output("best", "--storage", fitted, "--config")) == best["config"]
    lines = output("best", "--storage", fitted).splitlines()
    assert lines[0].split() == ["value", "5", "%", "95", "%", "trial", "configuration"]
    assert lines[1].startswith("predicted best")
    assert lines[2].endswith("none yet")


def test_best_of_a_study_that_has_seen_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    takg.create_study({"x": takg.Float(0, 1)}, storage=tmp_path / "s.db")
    assert "nothing can be recommended" in error_of(capsys, "best", "--storage", tmp_path / "s.db")


@pytest.mark.slow
def test_plots_are_written_in_each_format(fitted: Path, tmp_path: Path, output: Callable[..., str]) -> None:
    folder = tmp_path / "new" / "plots"
    text = output(
        "plot", "all", "--storage", fitted, "--out", folder, "--format", "png", "--format", "html", "--trial", 1
    )
    names = {f"{kind}.{suffix}" for kind in KINDS for suffix in ("png", "html")}
    assert {Path(line).name for line in text.splitlines()} == names == {path.name for path in folder.iterdir()}
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_is_png_unless_something_else_is_asked_for(
    fitted: Path, tmp_path: Path, output: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert output("plot", "curves", "fidelities", "curves", "--storage", fitted) == "curves.png\nfidelities.png\n"


def test_a_plot_that_does_not_exist_is_refused(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of(capsys, "plot", "curvs", "--storage", fitted)
    assert "KIND='curvs': expected some of curves" in message
    assert "trial=77: expected a trial from 0 to" in error_of(
        capsys, "plot", "curves", "--trial", 77, "--storage", fitted
    )


def test_the_kinds_in_the_help_are_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["plot", "--help"])
    text = capsys.readouterr().out
    assert all(re.search(rf"\b{kind}\b", text) for kind in KINDS)


# Export, demo, python -m takg


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_export_writes_points_or_trials(done: Path, tmp_path: Path, output: Callable[..., str], suffix: str) -> None:
    points = len(takg.load_study(storage=done).to_rows())
    file = tmp_path / f"points.{suffix}"
    assert output("export", file, "--storage", done) == f"{file}: {points} points\n"
    assert output("export", file, "--storage", done, "--what", "trials") == f"{file}: 4 trials\n"
    assert file.stat().st_size > 0


def test_export_to_where_nobody_may_write_is_an_error(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "takg: error: " in error_of(capsys, "export", "/proc/points.csv", "--storage", done)


def test_the_demo_gets_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def demo(arguments: list[str]) -> int:
        given.append(arguments)
        return 7

    monkeypatch.setattr("takg.demo.main", demo)
    assert main(["demo", "--budget", "2", "extra"]) == 7
    assert main(["demo"]) == 7
    assert given == [["--budget", "2", "extra"], []]


def test_python_m_takg_is_takg(done: Path, tmp_path: Path) -> None:
    found = in_shell("studies", cwd=done.parent)
    assert (found.returncode, found.stdout, found.stderr) == (0, "small\n", "")
    found = in_shell("status", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("takg: error: ")
    assert "Traceback" not in found.stderr
