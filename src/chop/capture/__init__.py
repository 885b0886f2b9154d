"""Tracer: captures a model as a graph by running its Python on fake tensors."""

from chop.capture.inputs import dummy_inputs
from chop.capture.tracer import capture

__all__ = [
    "capture",
    "dummy_inputs",
]
