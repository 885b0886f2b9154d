"""Fences round other libraries' private API, one file for each library."""

__all__: list[str] = []
