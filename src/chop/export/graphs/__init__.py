"""Preparation of graphs for torch's exporters: flat tensors, caches, axes, plain names."""

__all__: list[str] = []
