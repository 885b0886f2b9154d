"""Integer graphs: what a circuit computes, bit for bit, from a quantised graph."""

__all__: list[str] = []
