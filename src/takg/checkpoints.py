"""Directories that hold the state of trainings between legs, such that a crash at any moment leaves a sound one.

    <root>/trial-00012/        what the training function sees, the same for all legs of a trial
    <root>/.safe/12-30-start   a copy made before evaluation 30 touched it
    <root>/.safe/12-30-1-8     a copy that evaluation 30 saved on the way, named in its `Saved` event
    <root>/.safe/12.lock       held by the process that trains the trial

The training function may overwrite its directory at any time, and may be killed while it does. What the log calls a
checkpoint is therefore either a directory that no training has touched since, or a safe copy: copies are made under
another name and renamed when they are complete.
"""

import contextlib
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

from takg.errors import StudyError
from takg.records import EvaluationState, FidelityValues

try:
    import fcntl
except ImportError:  # a system without it, where a process that was given up is trusted to be gone
    fcntl = None  # type: ignore[assignment]

__all__ = ["DirectoryCheckpoints"]

_SAFE = ".safe"
_PARTIAL = ".partial"
_GONE = ".gone"
_PATIENCE = 60.0  # seconds to wait for a process that was given up to be really gone
_POLL = 0.01
_SMALL = 4096  # bytes


class DirectoryCheckpoints:
    """Checkpoints of one study under a directory, which all of its workers can see."""

    def __init__(self, root: str | Path, *, patience: float = _PATIENCE) -> None:
        self.root = Path(root)
        self._patience = patience

    def directory(self, trial: int) -> Path:
        path = self._path(trial)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def exists(self, trial: int) -> bool:
        """Whether anything was saved."""
        try:
            return any(self._path(trial).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return False

    @contextlib.contextmanager
    def held(self, trial: int) -> Iterator[None]:
        """Nobody else works in the directory: wait until a process that was given up, and is dying, is really gone."""
        if fcntl is None:
            yield
            return
        path = self.root / _SAFE / f"{trial}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + self._patience
        with path.open("wb") as file:
            while not _locked(file.fileno()):  # by process: children that it forks do not hold it
                if time.monotonic() > deadline:
                    raise StudyError(f"trial {trial}: another process still works in {self._path(trial)}")
                time.sleep(_POLL)
            yield

    def copy(self, trial: int, name: str) -> None:
        """Keep a safe copy of the directory under a name, as it is now."""
        safe = self.root / _SAFE / name
        partial = safe.with_name(name + _PARTIAL)
        safe.parent.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        shutil.copytree(self.directory(trial), partial)
        _remove(safe)
        partial.rename(safe)

    def begin(self, trial: int, evaluation: EvaluationState) -> bool:
        """Bring the directory to where the present attempt starts; False if that state is no longer there."""
        if evaluation.start is None:
            self.discard_copies(trial)
            _remove(self._path(trial))
            return True
        saved, start = evaluation.saved, _start_name(evaluation)
        if saved is not None and saved.fidelity == evaluation.start and self._restored(trial, saved.copy):
            return True
        if evaluation.start != evaluation.asked.start:
            return False
        if self._restored(trial, start):
            return True
        if not self._is_untouched(trial, evaluation):
            return False
        self.copy(trial, start)
        return True

    def last_state(self, trial: int, evaluation: EvaluationState) -> FidelityValues | None:
        """Where a further attempt of an evaluation could start: the furthest state that is certain."""
        saved = evaluation.saved
        if saved is not None and (self.root / _SAFE / saved.copy).is_dir():
            return saved.fidelity
        has_start = (self.root / _SAFE / _start_name(evaluation)).is_dir() or self._is_untouched(trial, evaluation)
        return evaluation.asked.start if has_start else None

    def discard_copies(self, trial: int, *, but: str | None = None) -> None:
        """Delete the safe copies of a trial, all but one."""
        for path in (self.root / _SAFE).glob(f"{trial}-*"):
            if path.name != but:
                _remove(path)

    def remove(self, trial: int) -> None:
        """Delete all that was saved of a trial."""
        self.discard_copies(trial)
        path = self._path(trial)
        for one in (path, *path.parent.glob(f"{path.name}.*")):  # also what somebody died over deleting
            _remove(one)
        (self.root / _SAFE / f"{trial}.lock").unlink(missing_ok=True)

    def size(self, trial: int) -> int:
        """Bytes that the checkpoint of a trial and its safe copies take."""
        total = 0
        for top in (self._path(trial), *(self.root / _SAFE).glob(f"{trial}-*")):
            for folder, _, names in os.walk(top):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):  # others delete meanwhile
                        total += (Path(folder) / name).lstat().st_size
        return total

    def mark(self, trial: int) -> frozenset[tuple[str | int, ...]]:
        """Changes whenever a file of the checkpoint is written, replaced, added or deleted."""
        path, found = self._path(trial), set()
        for folder, _, names in os.walk(path):
            for name in names:
                file = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):
                    facts = file.lstat()
                    # The clock of a file system ticks every few milliseconds, in which a small file can change twice.
                    content = zlib.crc32(file.read_bytes()) if facts.st_size <= _SMALL and file.is_file() else 0
                    name = str(file.relative_to(path))
                    found.add((name, facts.st_ino, facts.st_size, facts.st_mtime_ns, content))
        return frozenset(found)

    def _path(self, trial: int) -> Path:
        return self.root / f"trial-{trial:05d}"

    def _is_untouched(self, trial: int, evaluation: EvaluationState) -> bool:
        """Whether the directory still is as the last leg left it.

        An attempt that goes on from there makes a copy before it begins, which stays until a later one is saved; one
        that starts from scratch deletes it.
        """
        return evaluation.start is not None and evaluation.saved is None and self.exists(trial)

    def _restored(self, trial: int, name: str) -> bool:
        safe = self.root / _SAFE / name
        if not safe.is_dir():
            return False
        path = self._path(trial)
        partial = path.with_name(path.name + _PARTIAL)
        _remove(partial)
        shutil.copytree(safe, partial)
        _remove(path)
        partial.rename(path)
        return True


def _start_name(evaluation: EvaluationState) -> str:
    return f"{evaluation.asked.trial}-{evaluation.id}-start"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _remove(path: Path) -> None:
    """Delete a directory, out of sight first: half a directory must not look like a whole one."""
    doomed = path
    if path.suffix != _GONE:
        doomed = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{_GONE}")
        try:
            path.rename(doomed)
        except FileNotFoundError:  # or somebody else was faster
            return
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed, ignore_errors=True)  # what is left over is swept away with its trial
    else:
        doomed.unlink(missing_ok=True)
