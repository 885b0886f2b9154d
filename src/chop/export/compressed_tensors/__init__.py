"""compressed-tensors: the target and the reader of folders."""

__all__: list[str] = []
