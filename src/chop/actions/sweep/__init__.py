"""Sweeps: one setting varied over a range, measured point by point, drawn, and never twice."""

__all__: list[str] = []
