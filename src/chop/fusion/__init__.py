"""Operator fusion: graph patterns, reasons against fusing them, and their rewriting."""

__all__: list[str] = []
