"""Quantisation engines: calibration, GPTQ, SmoothQuant, packing, and what a graph stores."""
