"""Benchmark studies of `chop bench`."""

__all__: list[str] = []
