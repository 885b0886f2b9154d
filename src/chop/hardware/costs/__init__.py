"""Costs of a circuit: estimates, synthesis, placement."""

__all__: list[str] = []
