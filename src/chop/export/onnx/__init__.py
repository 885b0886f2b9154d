"""ONNX export with codes, scales and quantization operators."""

__all__: list[str] = []
