"""Symbolic sizes: symbols, guards and data-dependent sizes."""

__all__: list[str] = []
