"""State of a model and its surroundings: read, kept and put back."""

__all__: list[str] = []
