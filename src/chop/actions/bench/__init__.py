"""Benchmark jobs: latency, memory and error as tables of `chop bench`."""

__all__: list[str] = []
