"""CUDA C++ kernel for dequantization, built when it is first called."""

__all__: list[str] = []
