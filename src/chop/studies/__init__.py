"""Studies on the benchmark engine: the subjects of `chop bench`."""

__all__: list[str] = []
