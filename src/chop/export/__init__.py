"""Export: files that other engines run, one module for each target and reader."""

__all__: list[str] = []
