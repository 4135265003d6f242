"""The methods that are compared, each through one small interface, and the simulator that treats them alike."""

from rivals._play import Run, play, read_curve
from rivals._protocol import Method, Reply, Request, Setting
from rivals._registry import FEWER_SEEDS, METHODS, MissingLibraryError, build
from rivals._simulator import Simulator

__all__ = [
    "FEWER_SEEDS",
    "METHODS",
    "Method",
    "MissingLibraryError",
    "Reply",
    "Request",
    "Run",
    "Setting",
    "Simulator",
    "build",
    "play",
    "read_curve",
]
