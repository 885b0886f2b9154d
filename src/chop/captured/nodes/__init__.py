"""Nodes of captured graphs: targets, writes, modes, regions, and generated code."""

__all__: list[str] = []
