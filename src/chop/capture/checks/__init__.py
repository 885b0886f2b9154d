"""Comparison of recordings and captures with eager runs of the model."""

__all__: list[str] = []
