"""Padding in captured models: attention masks, and values that derive from padding only."""

__all__: list[str] = []
