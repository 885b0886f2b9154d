"""Pruning: masks (unstructured), removal of channels and heads (structured), and activations."""

__all__: list[str] = []
