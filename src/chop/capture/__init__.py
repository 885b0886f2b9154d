"""Model capture: traces a model's Python on fake tensors into a graph of its own modules."""

from chop.capture.inputs import dummy_inputs
from chop.capture.tracer import capture

__all__ = [
    "capture",
    "dummy_inputs",
]
