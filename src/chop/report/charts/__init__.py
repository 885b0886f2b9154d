"""Charts as data: one function for each kind of result makes them from its numbers."""

__all__: list[str] = []
