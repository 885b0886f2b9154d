"""Sweeps: measure a range of settings point by point, once each, and plot the curves."""

__all__: list[str] = []
