"""Triton kernels for GPUs. Triton is imported when the first of them runs."""

__all__: list[str] = []
