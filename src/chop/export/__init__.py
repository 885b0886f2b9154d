"""Export: files that other engines run, one module for each target."""

__all__: list[str] = []
