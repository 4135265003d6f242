"""Plots of a study as PNG or interactive HTML; the drawing libraries are loaded when a figure is saved."""

from takg.plots._figures import KINDS, Figure, figures

__all__ = ["KINDS", "Figure", "figures"]
