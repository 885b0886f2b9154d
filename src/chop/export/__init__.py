"""Export: files that other engines run, one module for each but ONNX."""

__all__: list[str] = []
