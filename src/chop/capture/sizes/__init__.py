"""Symbolic sizes: symbols, their conditions, and sizes that depend on data."""

__all__: list[str] = []
