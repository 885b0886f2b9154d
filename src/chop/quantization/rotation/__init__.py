"""Rotations that spread the outliers of a decoder's activations over channels."""

__all__: list[str] = []
