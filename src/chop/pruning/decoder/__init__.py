"""Depth and width pruning of decoders: a model of the same class with a smaller configuration."""

__all__: list[str] = []
