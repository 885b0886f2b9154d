"""Example inputs and patches for captures of `transformers` models."""

__all__: list[str] = []
