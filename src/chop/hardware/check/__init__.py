"""Checks of a circuit: simulation, comparison, and its folder."""

__all__: list[str] = []
