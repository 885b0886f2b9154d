"""ONNX export: codes, scales and the operators that join them."""
