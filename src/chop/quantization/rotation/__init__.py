"""Rotations that spread the activation outliers of decoders over channels."""

__all__: list[str] = []
