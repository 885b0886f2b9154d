"""Rotations of a decoder's activations: what can be rotated, and the rotation of its weights."""

__all__: list[str] = []
