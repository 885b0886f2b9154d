"""Circuit costs: estimates, synthesis, placement and routing."""

__all__: list[str] = []
