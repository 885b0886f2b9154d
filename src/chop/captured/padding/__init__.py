"""Padding in captured models: attention masks, and the values that come from padding only."""

__all__: list[str] = []
