"""Guards: what has to hold of inputs for a captured graph to be right."""

__all__: list[str] = []
