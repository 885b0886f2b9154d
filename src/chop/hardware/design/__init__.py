"""Design of a circuit: from the integer graph to SystemVerilog."""

__all__: list[str] = []
