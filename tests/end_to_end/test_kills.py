"""The small version of `kills.py`; the full one, with 200 kills, is a program of its own."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_study_survives_the_kills_of_its_workers_and_drivers(tmp_path: Path) -> None:
    program = Path(__file__).with_name("kills.py")
    command = [sys.executable, str(program), "--quick", "--seed", "3", "--directory", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "0 violations"), result.stdout + result.stderr
    assert "workers and" in result.stdout
