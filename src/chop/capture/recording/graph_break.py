"""Graph breaks: place and reason of an interrupted recording."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from chop.errors import CaptureError

_TORCH_ERRORS = {
    "GuardOnDataDependentSymNode": "the model's control flow depends on a data-dependent size or "
    "number",
    "DataDependentOutputException": "the model's Python reads a data-dependent value",
    "DynamicOutputShapeException": "an operator returns a data-dependent size",
    "UnsupportedOperatorException": "an operator has no rule for its output shapes",
    "InternalTorchDynamoError": "the model compiles code while it runs (torch.cond, "
    "torch.while_loop, torch.compile)",
}
"""Explanations of the errors of torch's tracing."""

_TORCH_TYPES = {
    "SymInt": "size",
    "SymFloat": "number that depends on sizes",
    "SymBool": "test of sizes",
    "SymNodeVariable": "size",
    "SymNode": "size",
    "FakeTensorMode": "recording",
    "FakeTensor": "Tensor",
}
_SYMBOL = re.compile(r"\b(?:s|u|z[uf]|zuf)\d+\b")


class MissingFakeKernelError(Exception):
    """Raised for an operator without a fake kernel; an eager run has to provide its shapes."""

    def __init__(self, operator: Any) -> None:
        super().__init__(
            f"the operator {operator} has no rule for its output shapes "
            "(torch.library.register_fake)"
        )
        self.operator = operator


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of the model's Python.

    Args:
        running: paths of the modules whose forward was running, outermost first.
        where: `file:line`.
    """

    running: tuple[str, ...]
    where: str


class EffectError(CaptureError):
    """Raised when the model's Python has a side effect that no node records.

    Args:
        message: description of the effect.
        cause: place in the code.
        seen: paths of the modules that run at the place where the effect matters, outermost first.

    Attributes:
        path: innermost module whose forward contains both places; `""` is the model itself.
        where: `file:line` of the cause.
    """

    def __init__(self, message: str, cause: Place, seen: tuple[str, ...]) -> None:
        super().__init__(message)
        pairs = zip(cause.running, seen, strict=False)
        common = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
        self.path = common[-1] if common else ""
        self.where = cause.where


@dataclasses.dataclass
class GraphBreak:
    """Place and reason of an interrupted recording.

    Args:
        path: the innermost module that was running; `""` is the model itself.
        where: `file:line` in that module.
        error: the error raised there.
        needs_shapes: `path` is a leaf whose output shapes require an eager run.
        names: readable names of the symbols of the recording.
    """

    path: str
    where: str
    error: Exception
    needs_shapes: bool = False
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def at(cls, path: str, where: str, error: Exception) -> GraphBreak:
        """Returns the break of an error; the place stored in the error takes precedence."""
        if isinstance(error, EffectError):
            return cls(error.path, error.where, error)
        return cls(path, where, error)

    def __str__(self) -> str:
        return f"{self.reason()}, at {self.where}"

    def reason(self) -> str:
        """Describes the error in the terms of a user."""
        kind = type(self.error).__name__
        if kind in _TORCH_ERRORS:
            return _TORCH_ERRORS[kind]
        text = (str(self.error).strip() or "no message").splitlines()[0]
        for word, plain in _TORCH_TYPES.items():
            text = re.sub(rf"\b{word}\b", plain, text)
        text = _SYMBOL.sub(lambda match: self.names.get(match[0], match[0]), text)
        # The class names of the project's own errors add nothing to the text.
        return text if type(self.error).__module__.startswith("chop.") else f"{kind}: {text}"
