"""Captured models: the graph module of a capture, its guards, specs, caches and runtime."""

from chop.captured.guards.input_guards import InputGuardWarning
from chop.captured.guards.shape_guards import ShapeGuard
from chop.captured.module import CapturedModule
from chop.captured.record import CaptureRecord, CaptureWarning
from chop.captured.specs import FieldsSpec, LeafReport, TensorSpec

__all__ = [
    "CaptureRecord",
    "CaptureWarning",
    "CapturedModule",
    "FieldsSpec",
    "InputGuardWarning",
    "LeafReport",
    "ShapeGuard",
    "TensorSpec",
]
