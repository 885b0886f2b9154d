"""HOW A GRAPH IS KEPT: files that are read without running code."""

__all__: list[str] = []
