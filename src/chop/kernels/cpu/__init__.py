"""Kernels for CPUs: C++ that is compiled when it is first needed."""

__all__: list[str] = []
