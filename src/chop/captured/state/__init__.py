"""State of a model and its environment: snapshots, comparison and restoration."""

__all__: list[str] = []
