"""Integer graphs: a quantized graph in integer arithmetic, bit for bit as its circuit."""

__all__: list[str] = []
