"""MASE's interfaces: quantizer functions, layer classes by format, data module, input generator."""

__all__: list[str] = []
