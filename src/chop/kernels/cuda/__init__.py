"""CUDA C++ kernel for dequantization, built on first use."""

__all__: list[str] = []
