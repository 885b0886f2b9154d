"""Folding of scales into layers (AWQ, SmoothQuant), with a check of each fold."""

__all__: list[str] = []
