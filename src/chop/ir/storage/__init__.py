"""Graph storage in files that are read without running code."""

__all__: list[str] = []
