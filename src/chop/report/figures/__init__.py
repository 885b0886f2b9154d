"""Matplotlib renderer of charts as SVG, PNG or PDF figures."""

__all__: list[str] = []
