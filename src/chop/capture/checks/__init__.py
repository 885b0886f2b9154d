"""Checks of a recording against eager runs of the model."""

__all__: list[str] = []
