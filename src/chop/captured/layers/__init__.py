"""Layers that replace attention and fused experts in a capture."""

__all__: list[str] = []
