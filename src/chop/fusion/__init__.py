"""Operator fusion: patterns of a graph, why they cannot be fused, and their rewriting."""

__all__: list[str] = []
