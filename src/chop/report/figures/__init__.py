"""Figures: one renderer draws charts with matplotlib, as SVG, PNG or PDF."""
