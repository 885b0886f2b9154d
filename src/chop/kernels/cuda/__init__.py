"""A kernel in CUDA C++, built when it is first called."""

__all__: list[str] = []
