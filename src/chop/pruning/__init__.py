"""Pruning: masks (unstructured), removal of channels and heads (structured), activations."""
