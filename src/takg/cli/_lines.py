"""On which line each key of a TOML document stands; `tomllib` does not say."""

import re
import tomllib
from collections.abc import Iterator

KeyPath = tuple[str | int, ...]
"""Keys from the root; integers are places in arrays."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'  # up to two quotes may stand before the closing three
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every table, key and array element, counted from 1. The text must be valid TOML."""
    return _Finder(text).found


class _Finder:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: dict[KeyPath, int] = {}
        self._arrays: dict[KeyPath, int] = {}  # elements of arrays of tables so far
        table: KeyPath = ()
        self._skip(_SPACE)
        while self.at < len(text):
            if self._sees("["):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_SPACE)

    def _header(self) -> KeyPath:
        line = self._line()
        is_array = self._sees("[[")
        self._take("[[" if is_array else "[")
        path: KeyPath = ()
        names = list(self._key())
        for i, name in enumerate(names):
            path = (*path, name)
            self.found.setdefault(path, line)
            if is_array and i == len(names) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
                self.found.setdefault(path, line)
        self._take("]]" if is_array else "]")
        if not is_array:  # its own header says more of a table than that of a table inside
            self.found[path] = line
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self.found.setdefault(path, line)
        self._take("=")
        self._value(path)

    def _key(self) -> Iterator[str]:
        while True:
            self._skip(_BLANK)
            if self.text[self.at] in "\"'":
                yield tomllib.loads(f"key = {self._skip(_STRING)}")["key"]
            else:
                yield self._skip(_BARE_KEY)
            self._skip(_BLANK)
            if not self._sees("."):
                return
            self._take(".")

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        if self._sees("["):
            self._take("[")
            for i in self._items("]"):
                self.found[(*path, i)] = self._line()
                self._value((*path, i))
        elif self._sees("{"):
            self._take("{")
            for _ in self._items("}"):
                self._pair(path)
        else:
            self._skip(_STRING if self.text[self.at] in "\"'" else _PLAIN)

    def _items(self, end: str) -> Iterator[int]:
        """Stops before each item of an array or inline table."""
        i = 0
        self._skip(_SPACE)
        while not self._sees(end):
            yield i
            i += 1
            self._skip(_SPACE)
            if self._sees(","):
                self._take(",")
                self._skip(_SPACE)
        self._take(end)

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _sees(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def _take(self, token: str) -> None:
        assert self._sees(token), f"{token!r} expected at character {self.at}"
        self.at += len(token)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        assert match is not None, f"{pattern.pattern} expected at character {self.at}"
        self.at = match.end()
        return match[0]
