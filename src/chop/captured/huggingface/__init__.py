"""Key-value caches and batches of `transformers` models in a captured graph."""

__all__: list[str] = []
