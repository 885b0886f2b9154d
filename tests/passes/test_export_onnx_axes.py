"""Sizes of ONNX files: axes that a condition pins are fixed, other conditions are told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.errors import GraphError
from tests.onnx_runs import translations_once

__all__ = ["translations_once"]

Function = Callable[..., Tensor]


class Calls(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 2.0))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale)


class CallsTwo(Calls):
    def forward(self, x: Tensor, y: Any) -> Tensor:
        return self.function(x * self.scale, y)


def _export(model: nn.Module, path: Path, **example: Any) -> tuple[Any, Any]:
    mg = MaseGraph(model.eval(), dummy_in=example)
    _, info = passes.export_onnx_interface_pass(mg, {"path": path / "model.onnx"})
    return onnxruntime.InferenceSession(info["path"]), info


def _same(session: Any, model: nn.Module, **given: Tensor) -> None:
    (got,) = session.run(None, {name: x.numpy() for name, x in given.items()})
    torch.testing.assert_close(torch.from_numpy(got), model(**given))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.tensor(x.shape[0]),
        lambda x: x + 1 if x.shape[0] == 3 else x - 1,
        lambda x: x * torch.linspace(0, 1, int(x.shape[0]))[:, None],
    ],
    ids=["constant", "branch", "float"],
)
@pytest.mark.sampled(1)
def test_pinned_batches_are_refused_by_runtimes(function: Function, tmp_path: Path) -> None:
    x, model = torch.randn(3, 4), Calls(function)
    session, info = _export(model, tmp_path, x=x)
    _same(session, model, x=x)
    more = torch.randn(5, 4)
    if session.get_inputs()[0].shape[0] == 3:
        with pytest.raises(Exception, match="invalid dimensions"):
            session.run(None, {"x": more.numpy()})
    else:
        _same(session, model, x=more)
    assert info["unchecked"] == []


@pytest.mark.parametrize(
    ("function", "unchecked", "size"),
    [
        (lambda x: x + 1 if x.shape[0] > 2 else x - 1, ["x.shape[0] > 2"], 7),
        (lambda x: x + 1 if x.shape[0] % 3 == 0 else x - 1, ["(x.shape[0] % 3) == 0"], 6),
        (lambda x: x + 1 if x.shape[0] < 900 else x - 1, ["x.shape[0] < 900"], 800),
    ],
    ids=["more", "multiple", "far"],
)
@pytest.mark.sampled(1)
def test_conditions_that_a_file_cannot_test_are_told(
    function: Function, unchecked: list[str], size: int, tmp_path: Path, caplog: Any
) -> None:
    model = Calls(function)
    with caplog.at_level(logging.WARNING, logger="chop.export.onnx.export"):
        session, info = _export(model, tmp_path, x=torch.randn(3, 4))
    assert info["unchecked"] == unchecked
    assert f"captured for {unchecked[0]}. The file accepts other sizes" in caplog.text
    _same(session, model, x=torch.randn(size, 4))


@pytest.mark.parametrize(
    ("function", "x", "y", "other"),
    [
        (lambda x, y: x + y, (3, 4), (3, 4), ((5, 4), (5, 4))),
        (lambda x, y: x + y["a"], (3, 4), {"a": (3, 4)}, ((5, 4), {"a": (5, 4)})),
        (lambda x, y: x.reshape(2, -1, 4) + y, (6, 4), (3, 4), ((10, 4), (5, 4))),
        (lambda x, y: x @ y, (3, 4), (4, 3), ((5, 4), (4, 3))),
    ],
    ids=["equal", "nested", "in proportion", "transposed"],
)
@pytest.mark.sampled(1)
def test_sizes_that_go_together_vary(
    function: Function, x: Any, y: Any, other: Any, tmp_path: Path
) -> None:
    def made(size: Any) -> Any:
        return {"a": torch.randn(size["a"])} if isinstance(size, dict) else torch.randn(size)

    model = CallsTwo(function)
    session, info = _export(model, tmp_path, x=made(x), y=made(y))
    assert info["unchecked"] == []
    first, second = map(made, other)
    named = {"y.a": second["a"]} if isinstance(second, dict) else {"y": second}
    (got,) = session.run(None, {k: v.numpy() for k, v in {"x": first, **named}.items()})
    torch.testing.assert_close(torch.from_numpy(got), model(first, second))


@pytest.mark.long
def test_what_the_exporter_fails_at_is_one_sentence(tmp_path: Path) -> None:
    model = Calls(lambda x: x.chunk(3)[-1])
    with pytest.raises(GraphError, match="torch cannot write this graph as ONNX: .*axes=False"):
        _export(model, tmp_path, x=torch.randn(6, 4))
