"""Analysis passes, which annotate a graph without changing it."""

__all__: list[str] = []
