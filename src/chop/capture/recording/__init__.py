"""Recorder: traces every torch call of a model into a graph."""

__all__: list[str] = []
