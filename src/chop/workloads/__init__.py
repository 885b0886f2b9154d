"""Workloads: a trained model with its data, built from settings; the input of most jobs."""

__all__: list[str] = []
