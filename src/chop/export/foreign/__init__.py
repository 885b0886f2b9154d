"""Readers of folders and files that other tools wrote, and their table."""

__all__: list[str] = []
