"""Export job: files for other engines, read back and proven."""

__all__: list[str] = []
