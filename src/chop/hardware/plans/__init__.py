"""Plan functions, a file for each family of operators."""

__all__: list[str] = []
