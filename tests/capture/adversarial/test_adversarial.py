"""No capture of any of these models is silently another model."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.capture.adversarial.cases import Case, check
from tests.capture.adversarial.quantized import check_quantized

KINDS = (
    *("autograd", "buffers", "containers", "control", "dtypes", "functional", "inplace"),
    *("random", "sizes", "state"),
)
FILES = [importlib.import_module(f"tests.capture.adversarial.models_{kind}") for kind in KINDS]


SHORT = {
    *("StopGradient", "RetainsGrad", "ParameterHook", "OldSpectralNorm", "BufferCounter"),
    *("ClampsWeight", "NormSetToEvalInForward", "FloatOut", "ListIn", "DefaultTensor"),
    *("LengthMask", "CallsOtherMethod", "BranchOnSum", "NewTensorOfItems", "TrainingBranch"),
    *("Recursive", "SortedByNorm", "BooleanMaskLength", "EyeOfBatch", "HalfInside"),
    *("SparseBuffer", "OneHotCounts", "Bits", "Jacobian", "CompilingBranch", "WritesView"),
    *("ToMaybeCopy", "Scatters", "DataWrite", "Broadcasts", "InplaceDropout", "TorchGenerator"),
    *("ForksRng", "Clock", "FloatOfBatch", "MaxOfSizes", "CallCounter", "KeepsPrevious"),
    *("DeepcopiesInForward", "StatefulHelper"),
}
"""Cases of the short suite, some of each kind."""


def parameters() -> list[Any]:
    return [pytest.param(case, id=case.name, marks=marks(case)) for f in FILES for case in f.CASES]


def marks(case: Case) -> list[pytest.MarkDecorator]:
    known = [pytest.mark.xfail(strict=True, reason=case.reason)] if case.reason else []
    return known + ([] if case.name in SHORT else [pytest.mark.long])


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", parameters())
def test_no_capture_is_silently_another_model(case: Case) -> None:
    check(case)


GRADIENT_HOOKS = {"ParameterHook", "ScriptModule"}
"""Models with gradients that are lost in copies, as passes make them."""


@pytest.mark.long
@pytest.mark.parametrize("case", [case for f in FILES for case in f.CASES], ids=lambda x: x.name)
def test_no_quantized_graph_is_silently_another_model(case: Case) -> None:
    if case.name not in GRADIENT_HOOKS:
        check_quantized(case)


def test_the_cases_are_distinct() -> None:
    names = [case.name for file in FILES for case in file.CASES]
    assert len(set(names)) == len(names) > 64 and set(names) >= SHORT
