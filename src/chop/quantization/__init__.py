"""Quantization engines: calibration, GPTQ, SmoothQuant, packing, stored bits."""

__all__: list[str] = []
