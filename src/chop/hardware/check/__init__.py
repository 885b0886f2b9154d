"""Checks of an emitted circuit: simulation, comparison with expected codes, and manifest."""

__all__: list[str] = []
