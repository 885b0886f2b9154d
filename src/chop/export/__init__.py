"""Export: files that other engines run, one module for each."""

__all__: list[str] = []
