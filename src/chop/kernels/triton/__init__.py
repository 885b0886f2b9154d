"""Triton kernels for GPUs. Triton is imported on first use."""

__all__: list[str] = []
