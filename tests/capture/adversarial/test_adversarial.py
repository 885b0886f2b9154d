"""No capture of any of these models is silently another model."""

from __future__ import annotations

import importlib

import pytest

from tests.capture.adversarial.cases import Case, check

KINDS = (
    *("autograd", "buffers", "containers", "control", "dtypes", "functional", "inplace"),
    *("random", "sizes", "state"),
)
FILES = [importlib.import_module(f"tests.capture.adversarial.models_{kind}") for kind in KINDS]


def parameters() -> list[object]:
    found = [case for file in FILES for case in file.CASES]
    return [
        pytest.param(
            case,
            id=case.name,
            marks=pytest.mark.xfail(strict=True, reason=case.reason) if case.reason else (),
        )
        for case in found
    ]


@pytest.mark.parametrize("case", parameters())
def test_no_capture_is_silently_another_model(case: Case) -> None:
    check(case)


def test_the_cases_are_distinct() -> None:
    names = [case.name for file in FILES for case in file.CASES]
    assert len(set(names)) == len(names) > 64
