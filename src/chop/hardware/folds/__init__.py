"""Folding of circuits for throughput and devices, and rewriting of netlists."""

__all__: list[str] = []
