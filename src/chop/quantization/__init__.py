"""Quantization engines: calibration, GPTQ, SmoothQuant, packing, and what a graph stores."""

__all__: list[str] = []
