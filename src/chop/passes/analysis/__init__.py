"""Passes that look and note."""

__all__: list[str] = []
