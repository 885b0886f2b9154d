"""Tracer: captures a model as a graph of its own modules, by running its Python on fake tensors."""

__all__: list[str] = []
