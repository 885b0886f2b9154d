"""Graph breaks: where and why a recording stopped."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

_TORCH_ERRORS = {
    "GuardOnDataDependentSymNode": "the model's Python decides on a size or number that depends on "
    "data",
    "DataDependentOutputException": "the model's Python needs a value that depends on data",
    "DynamicOutputShapeException": "an operator returns a size that depends on data",
    "UnsupportedOperatorException": "an operator has no rule for the shapes that it returns",
    "InternalTorchDynamoError": "the model compiles code while it runs (torch.cond, "
    "torch.while_loop, torch.compile)",
}
"""What errors of torch's tracing mean, in the words of a user."""

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
    """An operator has no rule for the shapes that it returns; a real run has to show them."""

    def __init__(self, operator: Any) -> None:
        super().__init__(
            f"the operator {operator} has no rule for the shapes that it returns "
            "(torch.library.register_fake)"
        )
        self.operator = operator


@dataclasses.dataclass
class GraphBreak:
    """Where a recording stopped.

    Args:
        path: the innermost module that was running; `""` is the model itself.
        where: `file:line` in that module.
        error: what was raised there.
        needs_shapes: `path` is a leaf whose output shapes have to be seen in a real run.
        names: what to call the symbols of the recording.
    """

    path: str
    where: str
    error: Exception
    needs_shapes: bool = False
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.reason()}, at {self.where}"

    def reason(self) -> str:
        """What was raised, in the words of a user."""
        kind = type(self.error).__name__
        if kind in _TORCH_ERRORS:
            return _TORCH_ERRORS[kind]
        text = (str(self.error).strip() or "no message").splitlines()[0]
        for word, plain in _TORCH_TYPES.items():
            text = re.sub(rf"\b{word}\b", plain, text)
        text = _SYMBOL.sub(lambda match: self.names.get(match[0], match[0]), text)
        # The names of the project's own errors say nothing that the text does not.
        return text if type(self.error).__module__.startswith("chop.") else f"{kind}: {text}"
