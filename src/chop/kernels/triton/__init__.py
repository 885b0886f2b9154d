"""HOW IT IS FAST on a GPU: Triton kernels. Triton is imported when the first of them runs."""

__all__: list[str] = []
