"""Workloads: a trained model with its data, by settings; what most jobs work on."""

__all__: list[str] = []
