"""Integer graphs: exact integer arithmetic of a circuit, derived from a quantized graph."""

__all__: list[str] = []
