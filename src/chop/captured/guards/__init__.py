"""Guards: conditions on inputs under which a captured graph is valid."""

__all__: list[str] = []
