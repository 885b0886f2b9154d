"""Circuit design: from an integer graph to SystemVerilog."""

__all__: list[str] = []
