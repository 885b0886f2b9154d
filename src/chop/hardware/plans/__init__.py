"""Plan functions, one file per operator family."""

__all__: list[str] = []
