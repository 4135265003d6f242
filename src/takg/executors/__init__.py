"""Where trainings run. Anything with `submit(function, *arguments) -> Future` will do; these come with takg."""

from takg.executors._inline import Inline
from takg.executors._processes import LocalProcesses, WorkerDiedError

__all__ = ["Inline", "LocalProcesses", "WorkerDiedError"]
