"""Hardware back end: SystemVerilog circuits of integer graphs, simulation and synthesis."""

__all__: list[str] = []
