"""Tracer: captures a model as a graph of its own modules, by running its Python on fake tensors."""

from chop.capture.captured import CapturedModule
from chop.capture.guards import ShapeGuard
from chop.capture.input_guards import InputGuardWarning
from chop.capture.inputs import dummy_inputs
from chop.capture.record import CaptureRecord
from chop.capture.specs import FieldsSpec, LeafReport, TensorSpec
from chop.capture.tracer import CaptureWarning, capture

__all__ = [
    "CaptureRecord",
    "CaptureWarning",
    "CapturedModule",
    "FieldsSpec",
    "InputGuardWarning",
    "LeafReport",
    "ShapeGuard",
    "TensorSpec",
    "capture",
    "dummy_inputs",
]
