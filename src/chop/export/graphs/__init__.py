"""Graphs as exporters of torch take them: flat, with caches, axes and plain names."""

__all__: list[str] = []
