"""Rounding of weights: GPTQ, learned rounding, and what both read of the data."""

__all__: list[str] = []
