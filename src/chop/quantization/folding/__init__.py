"""Folding: scales that move between layers (AWQ, SmoothQuant), each fold checked."""

__all__: list[str] = []
