"""Decoders with a key-value cache: their graphs, and `generate` on them."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from chop import MaseGraph
from chop.captured.huggingface.cache import (
    cached_length,
    key_sizes,
    pad_attention_mask,
    positions_or_default,
    update_cache,
)
from chop.captured.huggingface.cache_names import CACHE_NAMES, cache_name
from chop.errors import CaptureError, CheckpointError, ChopError, GuardError
from chop.ir.drawing.draw import to_svg
from chop.passes import pack_transform_pass, quantize_transform_pass

CACHE = cache_name(transformers.LlamaForCausalLM)
"""The name that the installed version gives its argument."""
OTHER = next(name for name in CACHE_NAMES if name != CACHE)
WINDOW = 16
NEW = 20
"""Tokens, which with those before are more than the window has."""
LLAMA_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}
GPT2_SIZES = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 100,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPT_SIZES = {
    "hidden_size": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 32,
}
SIZES = {
    "Llama": LLAMA_SIZES,
    "GPT2": GPT2_SIZES,
    "OPT": OPT_SIZES,
    "Mistral": {**LLAMA_SIZES, "sliding_window": WINDOW},
}
MORE_SIZES = {
    # Layers with and without a sliding window in turn.
    "Gemma2": {**LLAMA_SIZES, "head_dim": 8, "sliding_window": WINDOW},
    "Falcon": {key: x for key, x in LLAMA_SIZES.items() if key != "num_key_value_heads"},
}
IN_SHORT = ("Llama", "GPT2", "Mistral")
EVERY = [
    pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.long)
    for name in (*SIZES, *MORE_SIZES)
]


def decoder(name: str) -> Any:
    torch.manual_seed(0)
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **MORE_SIZES}[name])
    return getattr(transformers, f"{name}{head}")(config).eval()


@functools.cache
def captured(name: str) -> tuple[Any, MaseGraph]:
    """A decoder and its graph, for tests that change neither."""
    model = decoder(name)
    return model, MaseGraph(model)


def prompts() -> dict[str, Tensor]:
    """Three texts of different lengths, padded on the left."""
    ids = torch.randint(3, 100, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = mask[2, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def tokens(model: Any, **settings: Any) -> list[list[int]]:
    torch.manual_seed(2)
    lengths = {"max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0}
    found: Tensor = model.generate(**prompts(), **{"do_sample": False, **lengths, **settings})
    return found.tolist()


STRATEGIES: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_p": 0.9},
    "static cache": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.sampled(1)
def test_generate_gives_the_tokens_of_the_model(name: str) -> None:
    model, graph = captured(name)
    expected = tokens(model)
    assert tokens(graph.model) == expected
    assert tokens(graph.to_module()) == expected
    assert len(expected[0]) == 9 + NEW


@pytest.mark.parametrize(
    "name", ["Mistral", *(pytest.param(x, marks=pytest.mark.long) for x in (*SIZES, *MORE_SIZES))]
)
@pytest.mark.long
def test_every_strategy_gives_the_tokens_of_the_model(name: str) -> None:
    model, graph = captured(name)
    for strategy, settings in STRATEGIES.items():
        assert tokens(graph.model, **settings) == tokens(model, **settings), strategy


@pytest.mark.parametrize("mask", [{}, {"attention_mask": torch.ones(2, 4, dtype=torch.long)}])
@pytest.mark.sampled(1)
def test_a_text_without_padding_needs_no_mask(mask: dict[str, Tensor]) -> None:
    (model, graph), ids = captured("Llama"), torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    settings: Any = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **mask}
    found = graph.model.generate(ids, **settings)
    assert found.tolist() == model.generate(ids, **settings).tolist()


WRONG_TEXTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "list": ([[5, 6]], {}, "expected token IDs as a tensor .* got a list"),
    "empty": (torch.ones(1, 0, dtype=torch.long), {}, "a prompt of at least one token"),
    "argument": (torch.ones(1, 2, dtype=torch.long), {"max_tokens": 3}, "cannot generate.*max_tok"),
}


@pytest.mark.parametrize("case", WRONG_TEXTS)
def test_wrong_arguments_of_generate_are_one_sentence(case: str) -> None:
    _, graph = captured("Llama")
    ids, settings, reason = WRONG_TEXTS[case]
    settings = {"max_new_tokens": 1, "pad_token_id": 0, **settings}
    with pytest.raises(ChopError, match=reason) as caught:
        graph.model.generate(ids, **settings)
    assert "\n" not in str(caught.value)


def test_one_graph_takes_texts_single_tokens_and_caches_of_every_kind() -> None:
    model, graph = captured("Llama")
    config, text = model.config, prompts()
    caches = [
        transformers.DynamicCache,
        lambda: transformers.DynamicCache(config=config),
        lambda: transformers.StaticCache(config, max_cache_len=32),
    ]
    with torch.no_grad():
        for make, name in zip(caches, (CACHE, OTHER, CACHE), strict=True):
            ours, theirs = make(), make()
            for step in (text["input_ids"], torch.tensor([[5]] * 3), torch.tensor([[6, 7]] * 3)):
                seen = ours.get_seq_length() + step.shape[1]
                mask = torch.nn.functional.pad(text["attention_mask"], (0, int(seen) - 9), value=1)
                found = graph.model(step, mask, **{name: ours})
                expected = model(step, mask, **{CACHE: theirs})
                torch.testing.assert_close(found.logits, expected.logits)
                assert found[CACHE] is ours
            keys, their_keys = ours.layers[1].keys, theirs.layers[1].keys
            torch.testing.assert_close(keys, their_keys)


@pytest.mark.parametrize("name", ["Llama", pytest.param("Gemma2", marks=pytest.mark.long)])
@pytest.mark.long
def test_the_cache_of_another_model_forgets_as_it_does_with_the_model(name: str) -> None:
    model, text = decoder(name), prompts()
    graph, other = MaseGraph(model).model, decoder("Mistral").config
    for kind, sizes in (
        (transformers.DynamicCache, {}),
        (transformers.StaticCache, {"max_cache_len": 32}),
    ):
        ours, theirs = (kind(config=other, **sizes) for _ in range(2))
        for length in (9, 18, 19, 20):  # more than the window of Mistral
            ids = text["input_ids"][:, :9] if length in (9, 18) else torch.tensor([[5]] * 3)
            mask = torch.nn.functional.pad(text["attention_mask"], (0, length - 9), value=1)
            found = graph(ids, mask, **{CACHE: ours}).logits[:, -1]
            expected = model(ids, mask, **{CACHE: theirs}).logits[:, -1]
            torch.testing.assert_close(found, expected)


@pytest.mark.long
def test_a_call_makes_a_cache_where_it_is_asked_to() -> None:
    (model, graph), text = captured("GPT2"), prompts()
    assert graph.model(**text).get(CACHE) is None
    assert graph.model(**text, use_cache=False).get(CACHE) is None
    made = graph.model(**text, use_cache=True)[CACHE]
    assert made.get_seq_length() == 9
    expected = model(**text, use_cache=True)[CACHE]
    torch.testing.assert_close(made.layers[0].values, expected.layers[0].values)


@pytest.mark.long
def test_a_picture_has_the_cache_and_not_its_sizes() -> None:
    text = to_svg(captured("GPT2")[1].model)
    assert "update_cache" in text and CACHE in text
    assert "cached_length" not in text and "key_sizes" not in text


@pytest.mark.long
def test_positions_are_those_given() -> None:
    model, text = decoder("Llama"), prompts()
    positions = (text["attention_mask"].cumsum(1) - 1).clamp(min=0)
    found = MaseGraph(model).model(**text, position_ids=positions).logits
    expected = model(**text, position_ids=positions).logits
    rows = text["attention_mask"].bool()
    torch.testing.assert_close(found[rows], expected[rows])


def test_quantized_and_packed_graphs_give_the_tokens_of_their_modules(tmp_path: Path) -> None:
    _, graph = captured("Llama")
    rule = {"linear": {"config": {"name": "mxint", "weight_width": 8}}}
    quantized, _ = quantize_transform_pass(graph, {"by": "type", **rule})
    packed, _ = pack_transform_pass(quantized)
    expected = tokens(quantized.to_module())
    assert tokens(quantized.model) == tokens(packed.model) == expected
    assert tokens(packed.to_module()) == expected
    packed.export(tmp_path / "packed")
    loaded = MaseGraph.from_checkpoint(tmp_path / "packed")
    assert tokens(loaded.model) == expected


@pytest.mark.long
def test_copies_pickles_and_checkpoints_keep_the_settings_of_generation(tmp_path: Path) -> None:
    model = decoder("OPT")
    model.generation_config.no_repeat_ngram_size = 2
    graph, expected = MaseGraph(model), tokens(model)
    graph.export(tmp_path / "opt")
    twins = copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))
    for twin in (*twins, MaseGraph.from_checkpoint(tmp_path / "opt")):
        assert tokens(twin.model) == expected


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "number": ({"optional_inputs": 5}, "malformed .*optional_inputs among"),
    "text": ({"optional_inputs": CACHE}, "malformed .*optional_inputs among"),
    "other": ({"optional_inputs": {"$tuple": ["input_ids"]}}, "malformed .*optional_inputs"),
    "fewer": ({"optional_inputs": {"$tuple": [CACHE]}}, "position_ids.* are optional"),
    "twice": ({"optional_inputs": {"$tuple": [*CACHE_NAMES]}}, "malformed .*optional_inputs"),
    "class": ({"class_name": 5}, "expected class_name as str, got 5"),
    "reason": ({"why_no_cache": ["a"]}, "expected why_no_cache as str"),
    "both": ({"why_no_cache": "x"}, "expected why_no_cache or optional_inputs"),
    "settings": ({"generation_config": [1]}, "expected generation_config as dict"),
    "value": ({"generation_config": {"max_new_tokens": "a"}}, "rejects .*config: Type"),
    "function": ({"generation_config": {"validate": 1}}, "'validate' is not a setting"),
    "slots": ({"generation_config": {"__class__": 1}}, "'__class__' is not a setting"),
    "config": ({"config": None}, "needs a configuration of transformers, got NoneType"),
    "foreign": ({"class_name": "pipeline"}, "no generating class pipeline"),
}


def test_a_forged_record_is_refused_in_a_sentence(tmp_path: Path) -> None:
    captured("GPT2")[1].export(tmp_path / "bad")
    written = json.loads((tmp_path / "bad.mz").read_text())
    del written["sha256"]
    for name, (change, message) in FORGED.items():
        forged = {**written, "attributes": {**written["attributes"], **change}}
        (tmp_path / "bad.mz").write_text(json.dumps(forged))
        with pytest.raises((CheckpointError, CaptureError), match=message) as refusal:
            MaseGraph.from_checkpoint(tmp_path / "bad").model.generate(**prompts())
        assert "\n" not in str(refusal.value), name


@pytest.mark.long
def test_a_cache_is_asked_for_by_name() -> None:
    model = decoder("Llama")
    names = ["input_ids", "attention_mask", CACHE]
    assert tokens(MaseGraph(model, hf_input_names=names).model) == tokens(model)
    without = MaseGraph(model, hf_input_names=names[:2])
    assert CACHE not in [node.name for node in without.nodes]
    with pytest.raises(
        CaptureError, match=rf"has no cache: hf_input_names has no {CACHE}.*to_module\(\)"
    ):
        without.model.generate(**prompts())


@pytest.mark.long
def test_what_a_graph_cannot_follow_is_said() -> None:
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 100}
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(**sizes)).eval()
    graph = MaseGraph(bloom)
    with pytest.raises(CaptureError, match=f"BloomForCausalLM has no cache: .*size of {CACHE}"):
        graph.model.generate(**prompts())
    with pytest.raises(CaptureError, match=f"size of {CACHE}"):
        MaseGraph(bloom, hf_input_names=["input_ids", "attention_mask", CACHE])


class Shifts(transformers.LlamaForCausalLM):
    """What prepares its inputs reads a buffer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("shift", torch.tensor(3))

    def prepare_inputs_for_generation(self, input_ids: Any, **kwargs: Any) -> Any:
        return super().prepare_inputs_for_generation((input_ids + self.shift) % 100, **kwargs)


@pytest.mark.long
def test_a_class_of_ones_own_generates_where_it_was_captured(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Shifts(transformers.LlamaConfig(**LLAMA_SIZES)).eval()
    graph = MaseGraph(model)
    assert tokens(graph.model, use_cache=False) == tokens(model, use_cache=False)
    graph.export(tmp_path / "own")
    with pytest.raises(CaptureError, match="no generating class Shifts; .* hold no code"):
        MaseGraph.from_checkpoint(tmp_path / "own").model.generate(**prompts())


class NoSwitch(transformers.LlamaForCausalLM):
    """Takes no `use_cache`."""

    def forward(self, input_ids: Any, attention_mask: Any, cache: Any = None) -> Any:
        return super().forward(input_ids, attention_mask, **{CACHE: cache})


class GivesTuples(transformers.LlamaForCausalLM):
    """Its output has no names."""

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any,
        position_ids: Any = None,
        cache: Any = None,
        use_cache: Any = None,
    ) -> Any:
        inputs = (input_ids, attention_mask, position_ids, cache)
        return super().forward(*inputs, use_cache=use_cache, return_dict=False)


class OneTokenDiffers(transformers.LlamaForCausalLM):
    """Tests whether there is one new token."""

    def forward(
        self, input_ids: Any, attention_mask: Any, past_key_values: Any = None, **given: Any
    ) -> Any:
        output = super().forward(input_ids, attention_mask, **{CACHE: past_key_values}, **given)
        if input_ids.shape[1] == 1:
            output.logits = -output.logits
        return output


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (NoSwitch, "it fails with one .TypeError: .*'use_cache'"),
        (GivesTuples, "expected an output with logits, got tuple"),
        (OneTokenDiffers, r"it requires input_ids.shape\[1\] != 1, which .* tests"),
    ],
)
@pytest.mark.long
def test_a_model_that_fails_with_a_cache_is_captured_without(cls: Any, why: str) -> None:
    torch.manual_seed(0)
    model = cls(transformers.LlamaConfig(**LLAMA_SIZES)).eval()
    graph, text = MaseGraph(model), prompts()
    torch.testing.assert_close(graph.model(**text)[0], model(**text)[0])
    with pytest.raises(CaptureError, match=f"{cls.__name__} has no cache: {why}"):
        graph.model.generate(**text)
    with pytest.raises(CaptureError, match=why):
        MaseGraph(model, hf_input_names=["input_ids", "attention_mask", CACHE])


def test_a_body_without_a_head_has_no_cache() -> None:
    names = ["input_ids", "attention_mask", CACHE]
    with pytest.raises(CaptureError, match="output with logits, got BaseModelOutputWithPast"):
        MaseGraph(decoder("Llama").model, hf_input_names=names)


class Older(transformers.LlamaForCausalLM):
    """Has the older name, with any version."""

    def forward(
        self, input_ids: Any, attention_mask: Any, past_key_values: Any = None, **given: Any
    ) -> Any:
        return super().forward(input_ids, attention_mask, **{CACHE: past_key_values}, **given)


class Newer(transformers.LlamaForCausalLM):
    """Has the newer name, with any version."""

    def forward(self, input_ids: Any, attention_mask: Any, cache: Any = None, **given: Any) -> Any:
        return super().forward(input_ids, attention_mask, **{CACHE: cache}, **given)


@pytest.mark.parametrize(("cls", "name"), [(Older, "past_key_values"), (Newer, "cache")])
@pytest.mark.long
def test_a_class_of_ones_own_has_either_name(cls: Any, name: str) -> None:
    torch.manual_seed(0)
    model = cls(transformers.LlamaConfig(**LLAMA_SIZES)).eval()
    graph = MaseGraph(model, hf_input_names=["input_ids", "attention_mask", OTHER]).model
    assert graph.optional_inputs == (name,)
    text = prompts()
    with torch.no_grad():
        for given in CACHE_NAMES:
            found = graph(**text, **{given: transformers.DynamicCache(config=model.config)})
            torch.testing.assert_close(found.logits, model(**text).logits)
            assert found[CACHE].get_seq_length() == 9


@pytest.mark.long
def test_a_checkpoint_with_the_other_name_generates(tmp_path: Path) -> None:
    model = decoder("GPT2")
    MaseGraph(model).export(tmp_path / "gpt2")
    text, expected = (tmp_path / "gpt2.mz").read_text(), tokens(model)
    text = re.sub(r',\n"sha256": "\w+"\n}', "\n}", text)
    (tmp_path / "gpt2.mz").write_text(text.replace(f'"{CACHE}"', f'"{OTHER}"'))
    loaded = MaseGraph.from_checkpoint(tmp_path / "gpt2").model
    assert OTHER in loaded.optional_inputs and CACHE not in loaded.optional_inputs
    assert tokens(loaded) == expected
    # The output alone: digests of its node, which the file has, are those of either name.
    (tmp_path / "gpt2.mz").write_text(text.replace(f'"{CACHE}": {{', f'"{OTHER}": {{'))
    assert f'"{OTHER}"' in (tmp_path / "gpt2.mz").read_text()
    module = MaseGraph.from_checkpoint(tmp_path / "gpt2").to_module(like=model)
    assert tokens(module) == expected


@pytest.mark.long
def test_a_cache_under_two_names_is_refused() -> None:
    graph, config = MaseGraph(decoder("GPT2")).model, decoder("GPT2").config
    caches = {name: transformers.DynamicCache(config=config) for name in CACHE_NAMES}
    with pytest.raises(GuardError, match=f"got {CACHE} and {OTHER}; omit {OTHER}"):
        graph(**prompts(), **caches)
    made = graph(**prompts(), **{CACHE: caches[CACHE], OTHER: None})[CACHE]
    assert made is caches[CACHE]


def test_what_is_called_cache_elsewhere_is_an_input() -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: Tensor, cache: Tensor) -> Tensor:
            return x + cache

    given = {"x": torch.ones(2, 3), "cache": torch.ones(2, 3)}
    graph = MaseGraph(Adds(), dummy_in=given, hf_input_names=["x", "cache"]).model
    assert graph(**given).tolist() == [[2.0] * 3] * 2


@pytest.mark.long
def test_what_is_no_cache_is_refused() -> None:
    graph = MaseGraph(decoder("GPT2")).model
    with pytest.raises(GuardError, match="expected a cache of transformers .* got list"):
        graph(**prompts(), **{CACHE: []})
    with pytest.raises(GuardError, match=r"expected \(batch, tokens\) or None as position_ids"):
        graph(**prompts(), position_ids=torch.arange(9))
    with pytest.raises(GuardError, match="got Tensor"):
        update_cache(torch.ones(1), torch.ones(1), torch.ones(1), 0)


def test_sizes_of_caches_are_those_of_transformers() -> None:
    config = decoder("Mistral").config
    cache = transformers.DynamicCache(config=config)
    states = torch.ones(1, 2, WINDOW + 3, 8)
    keys, values = update_cache(cache, states, 2 * states, 0)
    assert (keys.shape, values.shape) == (states.shape, states.shape)
    assert cached_length(cache, 0) == WINDOW + 3
    # The window holds the new token and 15 before it, of which the first is the fifth.
    assert key_sizes(cache, 1, 0) == (WINDOW, 4)
    assert update_cache(None, states, values, 0) == (states, values)


def test_a_mask_is_padded_to_the_places_of_a_static_cache() -> None:
    mask = torch.tensor([[0, 1, 1]])
    assert pad_attention_mask(mask, 5).tolist() == [[0, 1, 1, 0, 0]]
    assert pad_attention_mask(mask, 3) is mask


@pytest.mark.parametrize(("by_mask", "expected"), [(True, [[0, 1]]), (False, [[1, 2]])])
def test_positions_follow_the_mask_or_all_tokens(by_mask: bool, expected: list[list[int]]) -> None:
    ids, mask = torch.ones(1, 2, dtype=torch.long), torch.tensor([[0, 1, 1]])
    assert positions_or_default(None, ids, mask, 1, by_mask).tolist() == expected
