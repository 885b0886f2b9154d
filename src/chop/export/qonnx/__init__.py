"""QONNX files: the export target and the reader."""

__all__: list[str] = []
