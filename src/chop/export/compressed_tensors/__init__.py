"""compressed-tensors: the export target and the reader of folders."""

__all__: list[str] = []
