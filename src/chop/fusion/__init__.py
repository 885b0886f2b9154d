"""Operator fusion: graph patterns, their rewriting, and reasons against a fusion."""

__all__: list[str] = []
