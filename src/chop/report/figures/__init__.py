"""Figures: one renderer draws charts with matplotlib, as SVG, PNG or PDF."""

__all__: list[str] = []
