"""Layers that captures make of attention and of fused experts."""

__all__: list[str] = []
