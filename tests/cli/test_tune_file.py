"""What a tune.toml says, and that every mistake in it is named with its line and key."""

import pickle
import re
from pathlib import Path

import pytest

from takg.cli._tune import Tuning, read
from takg.errors import InputError
from takg.space import Categorical, Constant, Fidelity, Float, Int, Ordinal

GOOD = """\
[study]
seed = 3
initial = 6
storage = "runs/all.db"

[space.lr]
type = "float"
low = 1e-4
high = 1
log = true

[space.optimizer]
name = {type = "categorical", choices = ["sgd", "adam"], default = "adam"}
momentum = {type = "float", low = 0.0, high = 0.9, when = {name = "sgd"}}

[space]
layers = {type = "int", low = 1, high = 8}
width.type = "ordinal"
width.choices = [32, 64, 128]
verbose = false
model = {type = "constant", value = "mlp", when = {layers = [1, 2]}}

[fidelities.epochs]
low = 1
high = 20
trace = true

[fidelities.data]
low = 0.1
high = 1.0
trace = false
kernel = "smooth"

[program]
command = [
  "python", "train.py", "--lr={lr}",
  "--json", "{{}}", "{start.epochs}", "{optimizer.momentum}", "{config_file}",
]
env = {A = "1"}
timeout = 60

[run]
budget = 10
workers = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tune.toml"
    path.write_text(text)
    return path


def tuning(folder: Path, text: str = GOOD) -> Tuning:
    return read(written(folder, text))


def test_a_file_says_what_is_tuned(tmp_path: Path) -> None:
    found = tuning(tmp_path)
    assert found.space == {
        "lr": Float(1e-4, 1.0, log=True),
        "optimizer": {
            "name": Categorical(["sgd", "adam"], default="adam"),
            "momentum": Float(0.0, 0.9, when={"name": "sgd"}),
        },
        "layers": Int(1, 8),
        "width": Ordinal([32, 64, 128]),
        "verbose": False,
        "model": Constant("mlp", when={"layers": [1, 2]}),
    }
    assert found.fidelities == {
        "epochs": Fidelity(1, 20, trace=True),
        "data": Fidelity(0.1, 1.0, trace=False, kernel="smooth"),
    }
    assert found.settings == {"seed": 3, "initial": 6}
    assert found.run == {"budget": 10, "workers": 2}
    assert found.timeout == 60


def test_a_file_says_which_program(tmp_path: Path) -> None:
    program = tuning(tmp_path).program
    assert program.command[2] == "--lr={lr}"
    assert program.counted == "epochs"
    assert program.env == {"A": "1"}
    assert program.cwd == str(tmp_path)
    assert pickle.loads(pickle.dumps(program)) == program


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = tuning(tmp_path)
    assert found.storage == str(tmp_path / "runs/all.db")
    assert found.name == "tune"
    assert found.checkpoints_of("tune", found.storage) is None
    (tmp_path / "code").mkdir()
    text = GOOD.replace("runs/all.db", "sqlite:///a.db").replace("seed = 3", 'checkpoints = "states"')
    found = tuning(tmp_path, text.replace("timeout = 60", 'cwd = "code"'))
    assert found.storage == str(tmp_path / "a.db")
    assert found.checkpoints_of("n", found.storage) == tmp_path / "states" / "n"
    assert found.program.cwd == str(tmp_path / "code")


def test_checkpoints_of_a_server_s_study_are_beside_the_file(tmp_path: Path) -> None:
    found = tuning(tmp_path, GOOD.replace("runs/all.db", "postgresql://host/db"))
    assert found.storage == "postgresql://host/db"
    assert found.checkpoints_of("n", found.storage) == tmp_path / "takg-checkpoints" / "n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "high = 1\n",
            "hgih = 1\n",
            r"tune\.toml:9: space\.lr\.hgih: unknown key; expected one of type, low, high, log",
        ),
        ("high = 1\n", "", r"tune\.toml:6: space\.lr\.high: missing; expected a number"),
        ("high = 1\n", 'high = "1"\n', r"tune\.toml:9: space\.lr\.high: '1': expected a number"),
        ("high = 1\n", "high = 1e-5\n", r"tune\.toml:6: space\.lr: Float\(0\.0001, 1e-05\): expected low < high"),
        ("log = true", "log = 1", r"tune\.toml:10: space\.lr\.log: 1: expected true or false"),
        ('type = "float"\n', 'type = "flaot"\n', r"tune\.toml:7: space\.lr\.type: 'flaot': expected one of 'float'"),
        ('type = "float"\n', "", r"tune\.toml:6: space\.lr\.type: missing beside 'low'; expected one of 'float'"),
        ("low = 1, high = 8", "low = 1.5, high = 8", r"tune\.toml:17: space\.layers\.low: 1\.5: expected an integer"),
        (
            'when = {name = "sgd"}',
            'when = {nme = "sgd"}',
            r"toml:14: space\.optimizer\.momentum: 'optimizer\.momentum' h",
        ),
        (
            'when = {name = "sgd"}',
            "when = 3",
            r"tune\.toml:14: space\.optimizer\.momentum\.when: 3: expected a table of",
        ),
        (
            'when = {name = "sgd"}',
            "when = {name = {}}",
            r"toml:14: space\.optimizer\.momentum\.when\.name: \{\}: expected a str",
        ),
        (
            "verbose = false",
            "verbose = [1]",
            r"tune\.toml:20: space\.verbose: \[1\]: expected a table, or for a constant",
        ),
        ("verbose = false", "verbose = {}", r"tune\.toml:16: space: group 'verbose' is empty"),
        (
            "verbose = false",
            "trial = 1",
            r"tune\.toml:20: space\.trial: the placeholder \{trial\} means something else",
        ),
        (
            "verbose = false",
            "epochs = 1",
            r"toml:23: fidelities: \['epochs'\] are names in the space and of fidelities",
        ),
        ("[32, 64, 128]", "[32, [64]]", r"tune\.toml:19: space\.width\.choices: \[32, \[64\]\]: expected an array of"),
        ("seed = 3", "sede = 3", r"tune\.toml:2: study\.sede: unknown key; expected one of name, storage"),
        ("seed = 3", "seed = -3", r"tune\.toml:2: study\.seed: seed=-3: expected an integer >= 0"),
        ("seed = 3", "seed = true", r"tune\.toml:2: study\.seed: True: expected an integer"),
        ("seed = 3", 'cost = "function"', r"tune\.toml:2: study\.cost: 'function': expected one of 'time', 'reported'"),
        ("seed = 3", 'direction = "up"', r"tune\.toml:2: study\.direction: 'up': expected one of 'minimise', 'maxi"),
        ("trace = true\n", "", r"tune\.toml:23: fidelities\.epochs\.trace: missing; expected true or false"),
        ("trace = true\n", "trace = 1\n", r"tune\.toml:26: fidelities\.epochs\.trace: 1: expected true or false"),
        ("high = 20", "high = 0", r"tune\.toml:23: fidelities\.epochs: Fidelity\(1, 0\): expected 0 <= low < high"),
        ("[fidelities.data]", "[fidelities.value]", r"toml:28: fidelities\.value: this name has a meaning in the pro"),
        (
            "[fidelities.data]",
            "[fidelities.resumed]",
            r"toml:28: fidelities\.resumed: the placeholder \{resumed\} means",
        ),
        ("--lr={lr}", "--lr={lrr}", r"tune\.toml:36: program\.command\[2\]: the placeholder \{lrr\} is unknown; expe"),
        ("{{}}", "{}", r"tune\.toml:37: program\.command\[4\]: '\{\}': expected nothing but a name"),
        ("{{}}", "}", r"tune\.toml:37: program\.command\[4\]: '\}': Single '\}' encountered"),
        ('"python", ', "3, ", r"tune\.toml:35: program\.command: \[3, .*: expected an array of strings"),
        ('env = {A = "1"}', "env = {A = 1}", r"tune\.toml:39: program\.env\.A: 1: expected a string"),
        ("timeout = 60", "timeout = 0", r"tune\.toml:40: program\.timeout: 0: expected a number > 0"),
        ("timeout = 60", 'cwd = "nowhere"', r"tune\.toml:40: program\.cwd: '.*nowhere': expected a directory that"),
        ("timeout = 60", '"time out" = 1', r"tune\.toml:40: program\.'time out': unknown key"),
        ("workers = 2", "workers = 0", r"tune\.toml:44: run\.workers: 0: expected an integer >= 1"),
        ("workers = 2", "wokers = 2", r"tune\.toml:44: run\.wokers: unknown key; expected one of budget, cost"),
        ("[run]", "[runs]", r"tune\.toml:42: runs: unknown key; expected one of study, space"),
        ("[study]\n", "program = 3\n[study]\n", r"tune\.toml:35: Cannot overwrite a value"),
        ("workers = 2", "workers = ", r"tune\.toml:44: Invalid value \(at line 44, column 11\)"),
        ("workers = 2", 'workers = "', r"tune\.toml:44: "),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(InputError, match=message):
        tuning(tmp_path, GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"tune\.toml:1: space: missing; expected a table"),
        ("space = 3\n[program]", r"tune\.toml:1: space: 3: expected a table"),
        ("[space.a]\n[program]\ncommand=['x']", r"tune\.toml:1: space: group 'a' is empty"),
        ("[space]\na = 1\n[program]", r"tune\.toml:3: program\.command: missing; expected an array of strings"),
        ("[space]\na = 1\n[program]\ncommand = []", r"tune\.toml:4: program\.command: \[\]: expected an array of"),
        (
            "[space]\na = 1979-05-27\n[program]\ncommand = ['x']",
            r"tune\.toml:2: space\.a: datetime.*: expected a table",
        ),
    ],
)
def test_a_file_without_the_essentials_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tuning(tmp_path, text)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.toml: cannot be read: No such file"):
        read(tmp_path / "nothing.toml")
    (tmp_path / "tune.toml").write_bytes(b"[study]\nname = '\xff'\n")
    with pytest.raises(InputError, match=r"tune\.toml:2: expected UTF-8"):
        read(tmp_path / "tune.toml")


def test_lines_that_end_in_carriage_returns_count_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "tune.toml"
    path.write_bytes(GOOD.replace("log = true", "lgo = true").replace("\n", "\r\n").encode())
    with pytest.raises(InputError, match=r"tune\.toml:10: space\.lr\.lgo: unknown key"):
        read(path)


def test_a_group_may_have_a_parameter_called_type(tmp_path: Path) -> None:
    text = GOOD.replace("verbose = false", 'loss.type = {type = "categorical", choices = ["l1", "l2"]}')
    assert tuning(tmp_path, text).space["loss"] == {"type": Categorical(["l1", "l2"])}


def test_values_are_counted_only_if_there_is_one_trace_of_whole_steps(tmp_path: Path) -> None:
    both = GOOD.replace("trace = false", "trace = true")
    assert tuning(tmp_path, both).program.counted is None
    continuous = GOOD.replace("high = 20", "high = 20.5")
    assert tuning(tmp_path, continuous).program.counted is None


DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_example_in_the_documentation_can_be_read(tmp_path: Path) -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    found = tuning(tmp_path, example)
    assert found.name == "resnet"
    assert found.run == {"budget": 20.0, "workers": 2}
    every = re.sub(r"^# (\w+ = )", r"\1", example, flags=re.MULTILINE).replace('"code"', '"."')
    assert tuning(tmp_path, every).settings["disk_limit"] == 50e9
    assert {"cost", "evaluations", "seconds", "stop_below"} <= tuning(tmp_path, every).run.keys()


def test_the_error_in_the_documentation_is_the_one_that_comes(tmp_path: Path) -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    [message] = re.findall(r"takg: error: (tune\.toml:.*)$", DOCS.read_text(), re.MULTILINE)
    with pytest.raises(InputError, match=re.escape(message)):
        tuning(tmp_path, example.replace("high = 1.0", "hgih = 1.0", 1))
