"""Pruning: masks (unstructured), removal of channels and heads (structured), activations."""

__all__: list[str] = []
