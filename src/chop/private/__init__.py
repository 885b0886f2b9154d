"""Wrappers around private APIs of other libraries, one file per library."""

__all__: list[str] = []
