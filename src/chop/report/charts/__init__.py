"""Charts as data, with one maker function for each kind of result."""

__all__: list[str] = []
