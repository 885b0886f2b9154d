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


SHORT = 3
"""Of so many cases of a kind the short suite takes one."""


def parameters() -> list[Any]:
    found = [(number, case) for file in FILES for number, case in enumerate(file.CASES)]
    return [pytest.param(case, id=case.name, marks=marks(number, case)) for number, case in found]


def marks(number: int, case: Case) -> list[pytest.MarkDecorator]:
    known = [pytest.mark.xfail(strict=True, reason=case.reason)] if case.reason else []
    return known + ([pytest.mark.long] if number % SHORT else [])


@pytest.mark.parametrize("case", parameters())
@pytest.mark.sampled(40)
def test_no_capture_is_silently_another_model(case: Case) -> None:
    check(case)


GRADIENT_HOOKS = {"ParameterHook", "ScriptModule"}
"""Models with gradients that are lost in copies, as passes make them."""


@pytest.mark.long
@pytest.mark.parametrize("case", [p for p in parameters() if p.id not in GRADIENT_HOOKS])
def test_no_quantized_graph_is_silently_another_model(case: Case) -> None:
    check_quantized(case)


def test_the_cases_are_distinct() -> None:
    names = [case.name for file in FILES for case in file.CASES]
    assert len(set(names)) == len(names) > 64
