"""Circuits of integer graphs: SystemVerilog, its simulation and its synthesis."""

__all__: list[str] = []
