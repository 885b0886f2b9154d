"""Export to files of other engines: one module per target and per reader."""

__all__: list[str] = []
