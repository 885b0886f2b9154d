"""ONNX export: codes, scales and the operators that join them."""

__all__: list[str] = []
