"""Rounding of weights: GPTQ, learned rounding, and their statistics of the data."""

__all__: list[str] = []
