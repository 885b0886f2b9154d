"""GGUF: the export target, the reader, and the parts of a file."""

__all__: list[str] = []
