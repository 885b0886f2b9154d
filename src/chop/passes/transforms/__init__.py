"""Transform passes, which return a changed copy of the graph."""

__all__: list[str] = []
