"""Nodes of captured graphs: targets, writes, modes, regions, and the code that runs them."""

__all__: list[str] = []
