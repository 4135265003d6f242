"""Every key that tomllib finds has a line, and it is the right one."""

import tomllib
from typing import Any

import pytest

from takg.cli._lines import KeyPath, key_lines

DOCUMENTS = {
    "plain": 'a = 1\nb = "x" # c = 2\n\n[t]\nc = true\n',
    "dotted keys": "a.b.c = 1\na.b.d = 2\n[x.y]\nz.w = 1979-05-27T07:32:00Z\n",
    "quoted keys": '"a b" = 1\n\'c.d\'.e = 2\n["f\\u0041".\'g"]\'] # [h]\n"i\\"=j" = 3\n',
    "spaces around keys": "  a . b  =  1\n[ c . d ]\n\te = 2\n",
    "strings of all kinds": (
        'a = "one # two\\" = 3"\nb = \'[x]\\\'\nc = """\n[no] = 1\n\\"""" # four quotes\nd = """ x"""""\n'
        "e = '''\nf = 1\n''''\nf = ''\ng = \"\"\n"
    ),
    "arrays": 'a = [1, 2,\n  3, # [4]\n  ["x,]", []],\n]\nb = [\n]\n',
    "inline tables": 'a = {b = 1, "c d" = {e = [1, {f = 2}]}, g.h = 3}\ni = {}\nj = [{k = 1}, {k = 2}]\n',
    "arrays of tables": "[[a]]\nb = 1\n[[a]]\nb = 2\n[a.c]\nd = 3\n[[a.e]]\nf = 4\n[[a.e]]\n[g]\n",
    "a table after one inside it": "[a.b]\nc = 1\n[a]\nd = 2\n",
    "no newline at the end": "a = 1\nb = -inf",
    "nothing": "",
    "only comments": "# a = 1\n   \n# [b]\n",
}


def paths_of(data: Any, path: KeyPath = ()) -> set[KeyPath]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = {path} if path else set()
    for key, value in items:
        found |= paths_of(value, (*path, key))
    return found


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_the_keys_are_those_that_tomllib_finds(text: str) -> None:
    assert set(key_lines(text)) == paths_of(tomllib.loads(text))


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_blank_line_on_top_moves_every_key_down_by_one(text: str) -> None:
    assert key_lines("\n" + text) == {path: line + 1 for path, line in key_lines(text).items()}


@pytest.mark.parametrize(
    ("document", "path", "line"),
    [
        ("plain", ("t",), 4),
        ("plain", ("t", "c"), 5),
        ("dotted keys", ("a", "b"), 1),
        ("dotted keys", ("a", "b", "d"), 2),
        ("dotted keys", ("x", "y", "z", "w"), 4),
        ("quoted keys", ("c.d", "e"), 2),
        ("quoted keys", ("fA", 'g"]', 'i"=j'), 4),
        ("strings of all kinds", ("d",), 6),
        ("strings of all kinds", ("f",), 10),
        ("arrays", ("a", 2), 2),
        ("arrays", ("a", 3, 0), 3),
        ("arrays", ("b",), 5),
        ("inline tables", ("a", "c d", "e", 1, "f"), 1),
        ("inline tables", ("j", 1, "k"), 3),
        ("arrays of tables", ("a", 1, "c", "d"), 6),
        ("arrays of tables", ("a", 1, "e", 1), 9),
        ("a table after one inside it", ("a",), 3),
    ],
)
def test_a_key_has_the_line_that_it_stands_on(document: str, path: KeyPath, line: int) -> None:
    assert key_lines(DOCUMENTS[document])[path] == line
