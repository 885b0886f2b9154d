"""Interface passes, which save, load and export graphs."""

__all__: list[str] = []
