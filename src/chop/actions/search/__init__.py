"""Searches as jobs: load a subject, search, write tables and plots."""

__all__: list[str] = []
