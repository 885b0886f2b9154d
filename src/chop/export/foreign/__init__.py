"""Readers of folders and files that other tools wrote."""

__all__: list[str] = []
