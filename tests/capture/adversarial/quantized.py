"""Quantization of the adversarial models in a format so wide that it changes nothing."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ChopError
from tests.capture.adversarial.cases import BATCH, Case, Outcome, history

WIDE = {"by": "type", "default": {"config": {"name": "integer", "width": 32, "frac_width": 18}}}
OF_PARAMETERS = ("state", "parameter gradients")
TOLERANCE = {"atol": 2e-3, "rtol": 1e-3, "equal_nan": True}


def check_quantized(case: Case) -> bool:
    """Compares the quantized graph with the float one; False if one is refused or warned of.

    Raises:
        AssertionError: results, inputs afterwards, gradients or buffers differ by more than what
            the format rounds.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mg = MaseGraph(case.build(), dummy_in=case.seeded(BATCH, 2))
            quantized, _ = passes.quantize_transform_pass(mg, WIDE)
        except ChopError:
            return False
        if any("became plain parameters" in str(warning.message) for warning in caught):
            return False  # training no longer follows the parametrization
        wanted = _history(copy.deepcopy(mg.model) if case.copies else mg.model, case)
        found = _history(quantized.model, case)
    for step, outcome in wanted.items():
        came = found[step]
        if isinstance(outcome, Exception):
            assert isinstance(came, Exception), f"{step}: the float graph raised {outcome!r}"
            break
        assert not isinstance(came, Exception), f"{step}: raised {came!r}"
        if came["state"].keys() != outcome["state"].keys():  # the mask of torch became one of chop
            came, outcome = ({**x, **dict.fromkeys(OF_PARAMETERS)} for x in (came, outcome))
        torch.testing.assert_close(_plain(came), _plain(outcome), **TOLERANCE)
    return True


def _history(module: nn.Module, case: Case) -> dict[str, Outcome]:
    case.reset()
    return history(module, case)


def _plain(value: Any) -> Any:
    """Nested dicts of what `assert_close` compares."""
    if isinstance(value, dict):
        return {str(name): plain for name, x in value.items() if (plain := _plain(x)) is not None}
    if isinstance(value, list | tuple):
        return _plain(dict(enumerate(value)))
    is_number = isinstance(value, torch.Tensor | int | float) and not isinstance(value, bool)
    return value if is_number else None
