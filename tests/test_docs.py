"""The tutorial is a program: its blocks run as they are printed, in order, in an empty directory."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent


def blocks(path: Path) -> list[tuple[int, str]]:
    """Line and text of every Python block."""
    text = path.read_text()
    return [
        (text[: found.start()].count("\n") + 2, found[1]) for found in re.finditer(r"```python\n(.*?)```", text, re.S)
    ]


@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "tutorial"}
    for line, block in blocks(DOCS / "tutorial.md"):
        exec(compile("\n" * (line - 1) + block, str(DOCS / "tutorial.md"), "exec"), names)
    assert "lr" in capsys.readouterr().out
    assert (tmp_path / "tutorial.db").exists()


@pytest.mark.slow
def test_the_engine_runs_as_it_is_printed(capsys):
    for line, block in blocks(DOCS / "engine.md"):
        exec(compile("\n" * (line - 1) + block, str(DOCS / "engine.md"), "exec"), {})
    assert "Recommendation(" in capsys.readouterr().out


@pytest.mark.parametrize("path", [*DOCS.glob("*.md"), ROOT / "README.md"], ids=lambda path: path.name)
def test_links_between_the_pages_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        file = (path.parent / target).resolve()
        assert file.is_relative_to(ROOT) and file.exists(), f"{path.name} links to {target}"
