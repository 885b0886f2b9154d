"""Summary of a quantized model in its `repr`: formats, share of quantized parameters, bytes."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from chop.bench.record import format_bytes
from chop.ir.parameters import StoredParameter, count_stored_parameters, total_bits

Inputs = Mapping[str, Tensor]
FRACTION = re.compile(r"(?<=\d)\.-?\d+$")
"""Fraction width in a format name, which differs between tensors."""


class Summary:
    """First line of the `repr` of a quantized model, its `extra_repr`, computed on demand.

    The summary is an attribute of the model, so the model's class does not change. Copies and
    pickles include it. It holds no strong reference to the model.

    Args:
        model: model of `chop.quantize`.
        example: inputs from the capture, which are not pickled; None uses guessed inputs.
    """

    def __init__(
        self, model: nn.Module | None, example: Mapping[str, Tensor] | None = None
    ) -> None:
        self._model = None if model is None else weakref.ref(model)
        self.example = example

    def __call__(self) -> str:
        """Returns the `extra_repr` of the model's class, if any, and the summary."""
        model = None if self._model is None else self._model()
        if model is None:
            return ""
        texts = (type(model).extra_repr(model), describe(model))
        return "\n".join(filter(None, texts))

    def __deepcopy__(self, memo: dict[int, Any]) -> Summary:
        model = None if self._model is None else self._model()
        return Summary(memo.get(id(model)), self.example)

    def __reduce__(self) -> tuple[type[Summary], tuple[nn.Module | None]]:
        return Summary, (None if self._model is None else self._model(),)


def add_summary(model: nn.Module, example: Inputs | None = None) -> nn.Module:
    """Adds a line with formats, quantized share and bytes to the `repr` of a model.

    Args:
        model: model to change; its class stays the same.
        example: inputs from its capture.
    """
    model.extra_repr = Summary(model, example)  # type: ignore[method-assign]
    return model


def captured_inputs(model: nn.Module) -> Inputs | None:
    """Returns the inputs from the capture of a quantized model, or None if unknown."""
    extra_repr = vars(model).get("extra_repr")
    return extra_repr.example if isinstance(extra_repr, Summary) else None


def describe(model: nn.Module) -> str:
    """Describes the formats of weights, the quantized share and the bytes in one line.

    >>> describe(nn.Linear(2, 1))
    'not quantized: 3 parameters, 0.0 kB'
    """
    stored = count_stored_parameters(model)
    coded = [each for each in stored if _has_format(each)]
    count, held = sum(x.value.numel() for x in stored), sum(x.held_bytes for x in stored)
    if not coded:
        return f"not quantized: {count:,} parameters, {format_bytes(held)}"
    share = sum(x.value.numel() for x in coded) / count
    text = f"{_formats(coded)}: {share:.1%} of {count:,} parameters"
    packed = total_bits(stored)[0] / 8
    if all(x.packed is not None for x in coded):
        return f"{text}, packed, {format_bytes(held)}"
    return f"{text}; {format_bytes(held)} as floats, {format_bytes(packed)} when packed (chop.save)"


def _has_format(stored: StoredParameter) -> bool:
    return stored.packed is not None or not stored.format.is_identity


def _formats(coded: list[StoredParameter]) -> str:
    """Lists the formats of weights, without fraction widths that differ between layers."""
    counts = Counter[str]()
    for each in coded:
        if each.operand == "weight":
            counts[each.format.label] += each.value.numel()
    shorter = {FRACTION.sub("", label) for label in counts}
    if len(counts) > 1 and len(shorter) == 1:
        return f"{shorter.pop()}.*"
    first, *others = (label for label, _ in counts.most_common())
    return f"{first} and {len(others)} other formats" if others else first
