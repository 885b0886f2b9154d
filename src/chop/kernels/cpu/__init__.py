"""C++ kernels for CPUs, compiled on first use."""

__all__: list[str] = []
