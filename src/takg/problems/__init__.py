"""Synthetic objectives with a known minimum, trace and cost; for tests, benchmarks and examples."""

from takg.problems._synthetic import PROBLEMS, Problem, branin, hartmann3, hartmann6, rosenbrock3

__all__ = ["PROBLEMS", "Problem", "branin", "hartmann3", "hartmann6", "rosenbrock3"]
