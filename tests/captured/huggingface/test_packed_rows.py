"""Positions that restart within a row: a graph joins the texts of a row as its model does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from chop import MaseGraph
from chop.capture import capture
from chop.errors import GuardError
from chop.ir.batches import select_inputs

_SIZES = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2}
_SMALL = _SIZES | {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
_JOIN = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, _SMALL),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, _SMALL),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        _SIZES | {"n_embd": 16, "n_layer": 1, "n_head": 2},
    ),
}
_NEVER = {"bert": (transformers.BertModel, transformers.BertConfig, _SMALL)}
_NAMES = ["input_ids", "position_ids"]
_IDS = torch.arange(12).reshape(2, 6)
_PLAIN = torch.arange(6).expand(2, -1)
_PACKED = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1]])


def _model(name: str) -> Any:
    model, config, sizes = (_JOIN | _NEVER)[name]
    torch.manual_seed(0)
    return model(config(**sizes)).eval()


def _first(output: Any) -> Tensor:
    found: Tensor = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return found


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(_first(ours), _first(theirs))


@pytest.mark.parametrize("name", _JOIN)
@torch.no_grad()
@pytest.mark.sampled(1)
def test_default(name: str) -> None:
    model = _model(name)
    graph = MaseGraph(model, hf_input_names=_NAMES).model
    for positions in (_PLAIN, _PACKED):
        given = {"input_ids": _IDS, "position_ids": positions}
        assert_close(graph(**given), model(**given))
    plain = {"input_ids": _IDS, "position_ids": _PLAIN, "use_cache": False}
    assert_close(graph(**plain), model(**plain))
    with pytest.raises(GuardError, match="restart within a row.*use_cache"):
        graph(input_ids=_IDS, position_ids=_PACKED, use_cache=False)
    with pytest.raises(GuardError, match="restart within a row"):
        graph(_IDS, None, position_ids=_PACKED, use_cache=False)


@pytest.mark.parametrize("name", _JOIN)
@pytest.mark.parametrize("how", ["argument", "configuration"])
@torch.no_grad()
@pytest.mark.long
def test_kept_apart(name: str, how: str) -> None:
    model, fixed = _model(name), {}
    if how == "argument":
        fixed = {"use_cache": False}
    else:
        model.config.use_cache = False
    graph = MaseGraph(model, hf_input_names=_NAMES, cf_args=fixed).model
    given = {"input_ids": _IDS, "position_ids": _PACKED, "use_cache": False}
    assert_close(graph(**given), model(**given))


@torch.no_grad()
def test_encoder() -> None:
    """BERT has `use_cache` in its configuration and makes no cache."""
    model = _model("bert")
    graph = MaseGraph(model, hf_input_names=_NAMES).model
    for flag in ({}, {"use_cache": False}):
        given = {"input_ids": _IDS, "position_ids": _PACKED, **flag}
        assert_close(graph(**given), model(**given))


@pytest.mark.long
@torch.no_grad()
def test_a_mask_in_the_place_of_a_cache() -> None:
    """GPT-2 takes its cache before the mask, and a graph may have none."""
    model, mask = _model("gpt2"), torch.ones_like(_IDS)
    for names in (None, ["input_ids", "attention_mask"]):
        graph = MaseGraph(model, hf_input_names=names).model
        assert_close(graph(_IDS, mask), model(_IDS, attention_mask=mask))


def test_batches() -> None:
    mg = MaseGraph(_model("llama"), hf_input_names=_NAMES)
    batch = {"input_ids": _IDS, "position_ids": _PACKED}
    assert [*select_inputs(mg, [batch], "batches")]
    with pytest.raises(GuardError, match="batch 0: got position_ids that restart"):
        [*select_inputs(mg, [batch | {"use_cache": False}], "batches")]


def test_model_without_configuration() -> None:
    class Positions(nn.Module):
        def forward(self, position_ids: Tensor, use_cache: bool = True) -> Tensor:
            return position_ids.diff(dim=1) if use_cache else position_ids[:, 1:]

    graph = capture(Positions(), {"position_ids": _PLAIN})
    assert torch.equal(graph(_PACKED), _PACKED.diff(dim=1))


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_one_row_of_tokens_and_several_without_a_mask(rows: int) -> None:
    model = _model("llama")
    graph = MaseGraph(model, dummy_in={"input_ids": _IDS[:rows]}).model
    assert not graph.guards
    for ids in (_IDS[:1], _IDS, _IDS.repeat(2, 1), _IDS[:1, :3]):
        assert_close(graph(ids), model(ids))
