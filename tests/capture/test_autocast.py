"""Autocast inside a model's forward is part of the graph, whoever trains it under autocast."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from chop import MaseGraph
from chop.capture import assemble
from chop.capture.tracer import capture
from chop.captured.module import CapturedModule
from chop.captured.record import CaptureWarning
from chop.captured.runtime import enter_autocast, leave_autocast
from chop.errors import CaptureError, GuardError


class Rotary(nn.Module):
    """Angles of positions by a product that bfloat16 would round to whole turns."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", 10000 ** -torch.linspace(0, 1, 4), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device_type=x.device.type, enabled=False):
            positions = torch.arange(x.shape[1], dtype=torch.float32)[:, None] + 900.0
            angles = positions @ self.rates[None, :].float()
        return angles.cos(), angles.sin()


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary(x)
        a, b = self.linear(x).chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1), cos


def bfloat16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def run(model: nn.Module, x: Tensor, region: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Outputs and gradients."""
    model.zero_grad()
    with region():
        out = model(x)
        out = out if isinstance(out, tuple) else (out,)
        sum(y.float().square().sum() for y in out if y.requires_grad).backward()
    return out, {name: p.grad for name, p in model.named_parameters()}


def assert_same(model: nn.Module, captured: nn.Module, x: Tensor) -> None:
    for region in (bfloat16, contextlib.nullcontext):
        expected, found = run(model, x, region), run(captured, x, region)
        assert [y.dtype for y in found[0]] == [y.dtype for y in expected[0]]
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_region_without_autocast_keeps_its_precision_under_autocast(tmp_path: Path) -> None:
    model, x = Attends(), torch.randn(3, 6, 8)
    mg = MaseGraph(model, dummy_in={"x": x}, strict=True)
    mg.export(tmp_path / "rotary")
    allowed = [Attends, Rotary]
    loaded = MaseGraph.from_checkpoint(tmp_path / "rotary", allow=allowed).model
    twins = [
        mg.model,
        mg.copy().model,
        copy.deepcopy(mg.model),
        pickle.loads(pickle.dumps(mg.model)),
    ]
    for twin in [*twins, loaded]:
        assert_same(model, twin, torch.randn(2, 5, 8))
        assert sum(node.target is enter_autocast for node in twin.graph.nodes) == 1


class Lowers(nn.Module):
    """Computes a part in bfloat16, whatever its caller does."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", **self.options):
            y = self.linear(x)
        return self.linear(y.float()) @ x.mT


class Decorated(Lowers):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class HeldRegion(Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.region = torch.autocast("cpu", dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        with self.region:
            y = self.linear(x)
        with torch.no_grad(), self.region, torch.autocast("cpu", enabled=False):
            z = self.linear(x)
        return y + z


@pytest.mark.parametrize(
    "model",
    [
        Lowers(dtype=torch.bfloat16),
        Lowers(),
        Lowers(enabled=False),
        Decorated(),
        HeldRegion(),
    ],
    ids=["bfloat16", "default", "off", "decorated", "held"],
)
@pytest.mark.sampled(3)
def test_regions_of_all_kinds_are_written_down(model: nn.Module) -> None:
    captured = capture(model, {"x": torch.randn(3, 8)}, strict=True)
    assert_same(model, captured, torch.randn(5, 8))


def test_a_region_in_training_only_is_one_of_training() -> None:
    class Trains(Lowers):
        def forward(self, x: Tensor) -> Tensor:
            with bfloat16() if self.training else contextlib.nullcontext():
                return self.linear(x).float()

    model = nn.Sequential(nn.Linear(8, 8), Trains())
    captured = capture(model, {"input": torch.randn(3, 8)}, strict=True)
    assert [n.target for n in captured.graph.nodes if n.op == "call_module"] == ["0", "1.linear"]
    for mode in (True, False):
        assert_same(model.train(mode), captured.train(mode), torch.randn(5, 8))


def test_regions_without_floating_point_work_are_left_out() -> None:
    class Masks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                mask = torch.arange(x.shape[1]) > 2
            return x.masked_fill(mask, 0.0)

    captured = capture(Masks(), {"x": torch.randn(3, 8)}, strict=True)
    assert enter_autocast not in [node.target for node in captured.graph.nodes]


def test_an_error_inside_a_region_leaves_autocast_as_it_was() -> None:
    model, x = Lowers(dtype=torch.bfloat16), torch.randn(3, 8)
    captured = capture(model, {"x": x}, strict=True)
    with pytest.raises(RuntimeError):
        captured(torch.randn(3, 9))
    assert not torch.is_autocast_enabled("cpu")
    with bfloat16():
        with pytest.raises(RuntimeError):
            captured(torch.randn(3, 9))
        first = captured(x)
    with torch.no_grad():
        model.linear.weight.add_(1)
    with bfloat16():
        # The weights that autocast rounded in the first block are forgotten at its end.
        assert not torch.equal(captured(x), first)
        assert torch.equal(captured(x), model(x))


def test_dead_code_of_a_graph_keeps_its_regions() -> None:
    captured = capture(Attends(), {"x": torch.randn(3, 6, 8)}, strict=True)
    captured.graph.eliminate_dead_code()
    targets = [node.target for node in captured.graph.nodes]
    assert (targets.count(enter_autocast), targets.count(leave_autocast)) == (1, 1)


@pytest.mark.long
def test_a_compiled_graph_keeps_its_regions() -> None:
    torch.compiler.reset()  # After an error in a graph, torch no longer compiles calls of any.
    model, x = Attends().eval(), torch.randn(3, 6, 8)
    captured = capture(model, {"x": x}, strict=True)
    compiled = torch.compile(captured, backend="aot_eager", fullgraph=True)
    for region in (bfloat16, contextlib.nullcontext):
        with region(), torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)
    assert not torch.is_autocast_enabled("cpu")


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = x @ x.mT
        return y * 2 if torch.is_autocast_enabled("cpu") else y + 1


def test_a_question_about_autocast_is_checked_at_run_time() -> None:
    model, x = Asks(), torch.randn(3, 8)
    captured = capture(model, {"x": x}, strict=True)
    assert torch.equal(captured(x), model(x))
    with bfloat16(), pytest.raises(GuardError, match=r"autocast off.*test_autocast.py:\d+"):
        captured(x)
    with bfloat16():
        captured = capture(model, {"x": x}, strict=True)
        assert torch.equal(captured(x), model(x))
    with pytest.raises(GuardError, match="autocast to torch.bfloat16"):
        captured(x)


TINY = {"vocab_size": 128, "use_cache": False, "pad_token_id": 0}
LANGUAGE_MODELS = {
    "llama": (
        transformers.LlamaConfig(
            **TINY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        0,
    ),
    # It leaves its regions out while autocast is off.
    "gpt2": (
        transformers.GPT2Config(
            **TINY, n_embd=32, n_layer=1, n_head=4, reorder_and_upcast_attn=True, resid_pdrop=0.0
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.long
def test_language_models_train_under_autocast_as_they_do_themselves(name: str) -> None:
    config, regions = LANGUAGE_MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    ids = torch.randint(5, 128, (2, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        captured: CapturedModule = capture(model, {"input_ids": ids, "labels": ids})
    assert sum(node.target is enter_autocast for node in captured.graph.nodes) == regions
    found = []
    for twin in (model.train(), captured.train()):
        twin.zero_grad()
        torch.manual_seed(1)
        with bfloat16():
            out = twin(input_ids=ids, labels=ids)
        out.loss.backward()
        found.append([out.logits, *(p.grad.clone() for p in model.parameters())])
    for ours, theirs in zip(*reversed(found), strict=True):
        assert (ours - theirs).abs().max() < 2e-2 * theirs.abs().max()


def test_a_capture_that_only_agrees_without_autocast_is_said_to_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assemble, "eliminate_autocast", _end_regions_early)
    with pytest.raises(CaptureError, match="under bfloat16 autocast"):
        capture(Attends(), {"x": torch.randn(3, 6, 8)}, strict=True)


def _end_regions_early(graph: Any, values: Any) -> None:
    for node in list(graph.nodes):
        if node.target is leave_autocast:
            node.args[0].append(node)
