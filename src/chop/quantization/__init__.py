"""Quantization engines: calibration, GPTQ, SmoothQuant, AWQ, rotation and packing of graphs."""

__all__: list[str] = []
