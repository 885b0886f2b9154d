"""Passes that carry a graph to and from other places."""

__all__: list[str] = []
