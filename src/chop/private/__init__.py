"""Isolated uses of other libraries' private API, one file per library."""

__all__: list[str] = []
