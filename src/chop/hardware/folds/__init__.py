"""Circuit folding for throughput and device limits, and netlist optimization."""

__all__: list[str] = []
