"""Integer graphs: what a circuit computes, bit for bit, from a quantized graph."""

__all__: list[str] = []
