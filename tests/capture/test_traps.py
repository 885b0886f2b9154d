"""What a recording could get wrong without anybody noticing: effects, leftovers, other paths."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import BertConfig
from transformers.masking_utils import create_bidirectional_mask

from chop import MaseGraph
from chop.capture.tracer import capture
from chop.captured.guards.shape_guards import ShapeGuard, compile_guard, guard_holds
from chop.captured.record import CaptureWarning
from chop.captured.state.preserve_state import preserve_state
from chop.errors import CaptureError
from chop.models import load_model
from chop.models.builtin import BUILTIN_MODELS


class OnAView(nn.Module):
    """Works in place on a part of a tensor, and goes on with the whole."""

    def __init__(self, work: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.work(y[:, :2])
        return y


def _by_position(x: Tensor) -> Tensor:
    return F.relu(x, True)


def _by_name(x: Tensor) -> Tensor:
    return F.hardtanh(x, inplace=True)


@pytest.mark.parametrize(
    "work",
    [nn.ReLU(inplace=True), nn.Sequential(nn.ReLU(inplace=True)), _by_position, _by_name],
    ids=["module", "container", "by_position", "by_name"],
)
def test_in_place_work_on_a_view_is_kept(work: Callable[[Tensor], Any]) -> None:
    x = torch.randn(5, 4) - 1
    model = OnAView(work)
    captured = capture(model, {"x": torch.randn(3, 4)}, leaves=[nn.Sequential])
    assert torch.equal(captured(x), model(x))
    assert not torch.equal(captured(x), 2 * x)


class Biased(nn.Module):
    """Keeps what it computed from its parameter, as levit's attention does in `eval()`."""

    def __init__(self, forgets: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.forgets = forgets
        self.kept: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> Biased:
        if mode and self.forgets:
            self.kept = {}
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.forgets and self.training:
            return x + self.weight[:2].repeat(2)
        if "bias" not in self.kept:
            self.kept["bias"] = self.weight[:2].repeat(2)
        return x + self.kept["bias"]


class HasBiased(nn.Module):
    def __init__(self, forgets: bool) -> None:
        super().__init__()
        self.inner = Biased(forgets)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x))


def test_what_an_earlier_call_left_is_computed_again() -> None:
    model, x = HasBiased(forgets=True).eval(), torch.randn(3, 4)
    model(x)
    left = model.inner.kept["bias"]
    captured = capture(model, {"x": x})
    assert model.inner.kept["bias"] is left
    assert captured.auto_leaves == ()
    with torch.no_grad():
        model.inner.weight.add_(1)
    model.train()
    torch.testing.assert_close(captured(x), model(x))


def test_what_stays_from_an_earlier_call_makes_a_leaf_and_no_constant() -> None:
    model, x = HasBiased(forgets=False).eval(), torch.randn(3, 4)
    model(x)
    with pytest.warns(CaptureWarning, match="inner .*earlier call"):
        captured = capture(model, {"x": x})
    assert [report.path for report in captured.auto_leaves] == ["inner"]
    assert not any(node.op == "get_attr" for node in captured.graph.nodes)


class BlockMask(nn.Module):
    """Asks transformers for a mask with a rule of its own, which it builds with `torch.vmap`."""

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        config = BertConfig()
        config._attn_implementation = "sdpa"
        mask: Any = create_bidirectional_mask(
            config=config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            and_mask_function=lambda batch, head, query, key: query // 4 == key // 4,
        )
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], mask)


def test_masks_made_by_vmap_are_written_down() -> None:
    def example(batch: int, length: int) -> dict[str, Tensor]:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, -1] = 0
        return {"x": torch.randn(batch, length, 8), "attention_mask": mask}

    model = BlockMask()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = capture(model, example(3, 14))
    for inputs in (example(3, 14), example(5, 9)):
        assert torch.equal(captured(**inputs), model(**inputs))


class FailsAfterwards(nn.Module):
    """Runs, and while it is recorded takes a path on which only fake tensors survive."""

    def forward(self, x: Tensor) -> Tensor:
        index = torch.full((2,), 9 if isinstance(x, FakeTensor) else 0)
        return x[index]


def test_a_capture_that_does_not_run_is_an_error() -> None:
    with pytest.raises(CaptureError, match="on the example inputs it fails"):
        capture(FailsAfterwards(), {"x": torch.randn(3, 4)})


def test_a_capture_leaves_meta_buffers_alone() -> None:
    model = nn.BatchNorm1d(4, device="meta")
    buffers = list(model.buffers())
    with preserve_state(model):
        model.train()
    assert all(a is b for a, b in zip(model.buffers(), buffers, strict=True))
    assert all(buffer.is_meta for buffer in model.buffers())


def test_a_guard_on_an_unknown_input_does_not_hold() -> None:
    assert not guard_holds(compile_guard(ShapeGuard("y.shape[0] == 3", "")), {"x": torch.zeros(3)})
    assert not guard_holds(compile_guard(ShapeGuard("x.shape[0] == n", "")), {"x": torch.zeros(3)})


@pytest.mark.parametrize("name", sorted(BUILTIN_MODELS))
@pytest.mark.sampled(1)
def test_every_built_in_model_brings_its_example(name: str) -> None:
    model = load_model(name)
    mg = MaseGraph(model)
    inputs = {
        key: spec.dummy(torch.Generator().manual_seed(0))
        for key, spec in mg.model.example_inputs.items()
    }
    assert torch.equal(mg.model(**inputs)["logits"], model(**inputs)["logits"])
    assert mg.model.auto_leaves == ()
