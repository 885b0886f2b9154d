"""Passes that change the graph; each returns a new one."""

__all__: list[str] = []
