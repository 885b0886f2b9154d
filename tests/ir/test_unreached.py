"""Weights that no format, code or adapter can be given to are spoken of, and others are not."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from chop import ChopConfig, MaseGraph, passes
from chop.base.notices import forget_notices
from chop.ir.unreached import UnreachedWarning
from chop.passes.module import quantize_module_transform_pass
from chop.quantization.unreached import unreached_matrices

WEIGHTS = {"config": {"weight": {"name": "mxint", "width": 8}}}
TEXT = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture(autouse=True)
def _anew() -> None:
    forget_notices()


def language_model(name: str, **settings: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(**{**TEXT, **settings})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def raised(model: nn.Module, **inputs: Tensor) -> MaseGraph:
    mg = MaseGraph(model.eval(), dummy_in=inputs)
    return passes.add_common_metadata_analysis_pass(mg, {"dummy_in": inputs})[0]


@pytest.fixture
def mixtral(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a Mixtral with all experts, or with those of one process, which stay fused."""
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    usual = MixtralExperts.__init__

    def made(is_known: bool) -> Any:
        def initialize(self: Any, config: Any) -> None:
            usual(self, config)
            self._is_expert_parallel = not is_known

        monkeypatch.setattr(MixtralExperts, "__init__", initialize)
        return language_model("Mixtral", num_local_experts=4)

    return made


def test_experts_that_stay_fused_are_named_on_loading(
    mixtral: Callable[..., Any], tmp_path: Path
) -> None:
    mixtral(False).save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    said = r"Mixtral.*\(\d\d%\) stay float.*MixtralExperts"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # shows the same text of one line once in a process
        for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.float32), 1):
            load(tmp_path, quantization_config=ChopConfig("mxint8"), dtype=dtype)
            found = [w for w in caught if w.category is UnreachedWarning]
            assert len(found) == number  # once for each model
            assert re.search(said, str(found[-1].message))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreachedWarning)
        load(tmp_path, quantization_config=ChopConfig("mxint8", skip=["mlp"]))


@pytest.mark.long
def test_experts_that_stay_fused_are_named_by_each_pass(mixtral: Callable[..., Any]) -> None:
    mg = raised(mixtral(False), input_ids=torch.ones(2, 4, dtype=torch.long))
    with pytest.warns(UnreachedWarning, match=r"^quantize.*MixtralExperts \('.*0.mlp.experts'\)"):
        quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": WEIGHTS})
    with pytest.warns(UnreachedWarning, match="^pack_transform_pass.*MixtralExperts"):
        passes.pack_transform_pass(quantized, {"silent": True})
    with pytest.warns(UnreachedWarning, match="^insert_lora.*get no adapter.*MixtralExperts"):
        passes.insert_lora_adapter_transform_pass(mg, {})
    _, info = passes.summarize_quantization_analysis_pass(quantized, {"silent": True})
    assert any(one["kind"] == "MixtralExperts" for one in info["unreached"])


@pytest.mark.long
def test_experts_that_are_layers_get_formats_and_no_adapters(mixtral: Callable[..., Any]) -> None:
    mg = raised(mixtral(True), input_ids=torch.ones(2, 4, dtype=torch.long))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreachedWarning)
        passes.quantize_transform_pass(mg, {"by": "type", "linear": WEIGHTS})
    with pytest.warns(UnreachedWarning, match="^insert_lora.*get no adapter.*ExpertLinear"):
        passes.insert_lora_adapter_transform_pass(mg, {})


class Net(nn.Module):
    """A linear layer beside something else with weights."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Linear(8, 8)
        self.table = nn.Embedding(200, 8)
        self.position = nn.Parameter(torch.randn(20, 8))
        self.norm = nn.LayerNorm((4, 8))
        self.matrix = nn.Parameter(torch.randn(8, 8))
        self.experts = nn.Parameter(torch.randn(4, 8, 8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x) + self.position[: x.shape[1]])
        x = x + self.table(torch.arange(x.shape[1]))
        ways = {
            "plain": lambda: x,
            "read": lambda: F.linear(x, self.matrix),
            "scaled": lambda: x @ (self.matrix / self.matrix.norm()).t(),
            "sliced": lambda: torch.cat([F.linear(x, part) for part in self.matrix.chunk(2)], -1),
            "einsum": lambda: torch.einsum("bld,edf->blf", x, self.experts),
            "lstm": lambda: self.lstm(x)[0],
        }
        return ways[self.kind]()


@pytest.mark.parametrize("kind", ["read", "scaled", "sliced", "einsum", "lstm"])
@pytest.mark.sampled(1)
def test_weights_without_a_layer_are_named(kind: str) -> None:
    mg = raised(Net(kind), x=torch.randn(2, 4, 8))
    for rules in ({"by": "type", "linear": WEIGHTS}, {"by": "regex_name", "first": WEIGHTS}):
        forget_notices()
        quantized, _ = passes.quantize_transform_pass(mg, {"by": "name", "first": WEIGHTS})
        expected = rules["by"] == "type" and kind not in ("read", "sliced")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            passes.quantize_transform_pass(mg, rules)
        assert any(w.category is UnreachedWarning for w in caught) == expected
    with pytest.warns(UnreachedWarning, match=r"LSTM \('lstm'\)|Parameter \('(matrix|experts)'\)"):
        passes.pack_transform_pass(quantized, {"silent": True})


def test_what_may_stay_float_is_not_named() -> None:
    mg = raised(Net("plain"), x=torch.randn(2, 4, 8))
    assert unreached_matrices(mg) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreachedWarning)
        quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": WEIGHTS})
        passes.pack_transform_pass(quantized, {"silent": True})
        passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})


def said(action: Callable[[], object]) -> int:
    """How often an action speaks of weights that stay as they are, with Python's own filter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        action()
    return sum(w.category is UnreachedWarning for w in caught)


LINEAR = {"by": "type", "linear": WEIGHTS}
PASSES = {
    "quantize": lambda mg: passes.quantize_transform_pass(mg, LINEAR),
    "lora": lambda mg: passes.insert_lora_adapter_transform_pass(mg, {"rank": 2}),
    "pack": lambda mg: passes.pack_transform_pass(
        passes.quantize_transform_pass(mg, {"by": "name", "first": WEIGHTS})[0], {"silent": True}
    ),
    "quantize_module": lambda mg: quantize_module_transform_pass(mg.model, LINEAR),
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.long
def test_every_model_is_spoken_of_once(name: str) -> None:
    run, x = PASSES[name], torch.randn(2, 4, 8)
    for net in (Net("einsum"), Net("einsum")):
        mg = raised(net, x=x)
        assert said(lambda mg=mg: run(mg)) == 1
        trials = [mg, mg.copy(), mg.sharing_copy(), raised(net, x=x)]
        assert [said(lambda mg=mg: run(mg)) for mg in trials] == [0, 0, 0, 0]


def test_a_model_that_is_no_graph_is_spoken_of_once() -> None:
    for net in (Net("einsum"), Net("einsum")):
        quantize = partial(quantize_module_transform_pass, net, LINEAR)
        assert [said(quantize), said(quantize)] == [1, 0]
