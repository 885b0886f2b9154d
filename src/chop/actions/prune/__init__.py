"""Pruning of decoders to given sizes: `chop prune`."""

__all__: list[str] = []
