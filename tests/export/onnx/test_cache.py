"""Decoders in ONNX with their key-value cache: files that generate, token by token."""

import functools
import json

import pytest
import torch
import transformers

from chop import MaseGraph, passes
from chop.actions.bench.ways import build_backends
from chop.actions.export.proof import exact_graph, example_difference
from chop.errors import GraphError, VerificationError
from chop.export.graphs import cache
from chop.export.targets import target
from chop.formats import parse_format_string
from chop.models import load_model
from chop.pipelines.packed_weights import pack_weights
from tests.export.decoders import HEADS, SIZES
from tests.onnx_runs import session, translations_once

__all__ = ["translations_once"]

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")

GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64}
WINDOW = 6
# model: (class, settings)
MODELS = {
    "Llama, tied": ("LlamaForCausalLM", {**SIZES, **HEADS, "tie_word_embeddings": True}),
    "Mistral, window": ("MistralForCausalLM", {**SIZES, **HEADS, "sliding_window": WINDOW}),
    "Qwen2": ("Qwen2ForCausalLM", {**SIZES, **HEADS, "num_hidden_layers": 2}),
    "GPT2": ("GPT2LMHeadModel", {**GPT2, "bos_token_id": 0, "eos_token_id": 0}),
    "gpt-tiny": ("", {}),
}
FOUR, LLAMA = "group_integer:width=4", "Llama, tied"
FORMATS = {FOUR: "MatMulNBits", "mxint:width=8": "MatMul"}
TOKENS = 20
MARGIN = 1e-5
"""By which logits of engines may differ: they add in another order."""


def float_model(name):
    kind, settings = MODELS[name]
    torch.manual_seed(0)
    if not kind:
        return load_model(name)
    cls = getattr(transformers, kind)
    return cls(cls.config_class(**settings)).eval()


@functools.cache
def graph(name, text):
    return pack_weights(MaseGraph(float_model(name)), parse_format_string(text))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")

    @functools.cache
    def made(name, text):
        return target("onnx").export(graph(name, text), folder / name / text).path

    return made


def prompts(rows):
    """Tokens, of which the first row has three of padding where there are several, and the mask."""
    ids = torch.randint(3, 90, (rows, 7), generator=torch.Generator().manual_seed(rows))
    mask = torch.ones_like(ids)
    mask[0, : 3 * (rows > 1)] = 0
    return ids, mask


def positions_of(mask):
    return (mask.cumsum(1) - 1).clamp(min=0)


class Engine:
    """A file in onnxruntime, with nothing of chop."""

    def __init__(self, path):
        self.session = session(path)
        self.inputs = {each.name: each.shape for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]

    def empty(self, rows):
        pasts = {k: shape for k, shape in self.inputs.items() if k.startswith("past_key_values.")}
        return {k: torch.zeros(rows, x[1], 0, x[3]) for k, x in pasts.items()}

    def __call__(self, ids, mask, past):
        """Logits, and the past of the next call."""
        positions = positions_of(mask)[:, -ids.shape[1] :]
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
        found = self.session.run(None, {name: x.numpy() for name, x in given.items()})
        named = dict(zip(self.outputs, map(torch.from_numpy, found), strict=True))
        past = {name: named[name.replace("past_key_values", "present")] for name in past}
        return named["logits"], past


def one_more(mask):
    return torch.cat([mask, torch.ones_like(mask[:, :1])], 1)


@pytest.mark.parametrize("name, text", [*((n, FOUR) for n in MODELS), (LLAMA, "mxint:width=8")])
@pytest.mark.long
def test_files_generate_what_the_graph_generates(name, text, exported):
    """Tokens are those of `generate` where two are not nearly tied, after the same ones before."""
    engine, mg = Engine(exported(name, text)), graph(name, text)
    assert FORMATS[text] in [node.op_type for node in onnx.load(exported(name, text)).graph.node]
    clear = 0
    for rows in (1, 2):
        ids, mask = prompts(rows)
        greedy = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
        expected = mg.model.generate(
            input_ids=ids, attention_mask=mask, eos_token_id=None, **greedy
        )
        kept, past, tokens = transformers.DynamicCache(), engine.empty(rows), ids
        for step in range(TOKENS):
            found, past = engine(tokens, mask, past)
            with torch.no_grad():
                positions = positions_of(mask)[:, -tokens.shape[1] :]
                given = {"attention_mask": mask, "position_ids": positions, "cache": kept}
                ours = mg.model(input_ids=tokens, **given).logits
            torch.testing.assert_close(found[:, -1], ours[:, -1], atol=MARGIN, rtol=0)
            first, second = ours[:, -1].topk(2).values.unbind(-1)
            is_clear = first - second > 2 * MARGIN
            tokens = expected[:, 7 + step : 8 + step]
            assert torch.equal(found[:, -1].argmax(-1)[is_clear], tokens[is_clear, 0])
            clear += int(is_clear.sum())
            mask = one_more(mask)
        assert all(x.shape[2] == 6 + TOKENS for x in past.values())
    assert clear > 0.9 * 3 * TOKENS


@pytest.mark.long
def test_a_text_in_parts_is_the_text_at_once(exported):
    engine = Engine(exported(LLAMA, FOUR))
    assert engine.inputs["past_key_values.0.key"] == ["batch", 2, "past", 16]
    assert engine.inputs["attention_mask"] == ["batch", "past + sequence"]
    assert engine.inputs["input_ids"] == engine.inputs["position_ids"] == ["batch", "sequence"]
    assert engine.outputs == ["logits", "present.0.key", "present.0.value"]
    described = json.loads(exported(LLAMA, FOUR).with_name("genai_config.json").read_text())
    names = described["model"]["decoder"]
    assert {x.replace("%d", "0") for x in names["inputs"].values()} == {*engine.inputs}
    assert {x.replace("%d", "0") for x in names["outputs"].values()} == {*engine.outputs}
    for rows in (1, 2):
        ids, mask = prompts(rows)
        whole, kept = engine(ids, mask, engine.empty(rows))
        for sizes in ([6, 1], [1] * 7, [3, 4]):
            past, found, end = engine.empty(rows), [], 0
            for part in ids.split(sizes, 1):
                end += part.shape[1]
                logits, past = engine(part, mask[:, :end], past)
                found.append(logits)
            apart = (torch.cat(found, 1) - whole)[mask.bool()]
            assert apart.abs().max() < 1e-5
            for name, x in past.items():
                assert x.shape == kept[name].shape == (rows, 2, 7, 16)


def test_the_file_read_back_takes_a_cache_of_transformers(exported):
    mg, run = graph(LLAMA, FOUR), target("onnx").read(exported(LLAMA, FOUR))
    assert example_difference(exact_graph(mg), run, target("onnx")) < 1e-5
    ids, mask = prompts(2)
    found = run({"input_ids": ids, "attention_mask": mask})
    with torch.no_grad():
        expected = mg.model(input_ids=ids, attention_mask=mask).logits
    apart = (found["logits"] - expected)[mask.bool()]  # turned by other angles, alike in products
    assert apart.abs().max() < 1e-5 and found["present.0.key"].shape == (2, 2, 7, 16)


def test_wrong_wiring_is_found_in_the_file(exported, tmp_path):
    """Keys and values that change places at one end only, and a past that is left out."""
    path, mg = exported(LLAMA, FOUR), graph(LLAMA, FOUR)
    kind, swapped = target("onnx"), {"key": "value", "value": "key"}
    for ends in ("output", "input"):
        proto = onnx.load(path)
        for value in getattr(proto.graph, ends):
            rest, _, part = value.name.rpartition(".")
            other = f"{rest}.{swapped.get(part, part)}" if rest else value.name
            for node in proto.graph.node:
                names = node.output if ends == "output" else node.input
                names[:] = [f"{other}!" if name == value.name else name for name in names]
        for node in proto.graph.node:
            for names in (node.input, node.output):
                names[:] = [name.rstrip("!") for name in names]
        onnx.save(proto, tmp_path / "swapped.onnx")
        with pytest.raises(VerificationError, match="more than rounding explains"):
            example_difference(exact_graph(mg), kind.read(tmp_path / "swapped.onnx"), kind)


@pytest.mark.long
def test_wrong_wiring_is_found_before_a_file_is_written(monkeypatch, tmp_path):
    def swapped(past, keys, values, layer):
        before = past[layer]
        return torch.cat([before["value"], keys], 2), torch.cat([before["key"], values], 2)

    (update,) = (key for key, x in cache.FLAT.items() if x is cache._longer)
    monkeypatch.setitem(cache.FLAT, update, swapped)
    with pytest.raises(VerificationError, match="computes another 'logits'"):
        passes.export_onnx_interface_pass(graph(LLAMA, FOUR), {"path": tmp_path / "wrong"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_files_without_a_cache_where_it_is_not_asked_for(tmp_path):
    mg = graph(LLAMA, FOUR)
    plain = MaseGraph(float_model(LLAMA), hf_input_names=["input_ids", "attention_mask"])
    assert not cache.has_cache(plain) and cache.has_cache(mg)
    cases = [(mg, {"cache": False}), (mg, {"dynamic_axes": False}), (plain, {})]
    for each, settings in cases:
        _, info = passes.export_onnx_interface_pass(each, {"path": tmp_path / "m", **settings})
        assert info["inputs"] == ["input_ids", "attention_mask"] and info["outputs"] == ["logits"]


def test_a_cache_that_something_else_reads_is_refused():
    mg = graph(LLAMA, FOUR).copy()
    (node,) = (node for node in mg.nodes if node.target == "cache")
    with mg.fx_graph.inserting_after(node):
        mg.fx_graph.call_function(len, (node,))
    with pytest.raises(GraphError, match="onnx: the cache is read by len_1"):
        cache.flatten_cache(mg, "onnx")


@pytest.mark.parametrize("rows, tokens", [(3, 14), (1, 1), (2, 3), (9, 5), (1, 4)])
def test_no_axis_of_an_example_is_as_long_as_that_of_the_past(rows, tokens):
    rows, tokens = cache._at_least(torch.ones(rows, tokens), 2).shape
    past = cache._past_tokens(rows, tokens)
    assert min(rows, tokens) > 1 < past and past not in (rows, tokens)
    assert past + tokens not in (rows, tokens, past)


@pytest.mark.long
@pytest.mark.parametrize("name", [LLAMA, "GPT2"])
def test_openvino_generates_too(name, tmp_path):
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    mg = graph(name, FOUR)
    made = target("openvino").export(mg, tmp_path / "model")
    run = target("openvino").read(made.path)
    assert example_difference(exact_graph(mg), run, target("openvino")) < 1e-4
    ids, mask = prompts(2)
    greedy = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = mg.model.generate(input_ids=ids, attention_mask=mask, **greedy)
    past, tokens = {}, ids
    for step in range(TOKENS):
        found = run({"input_ids": tokens, "attention_mask": mask, **past})
        past = {
            k.replace("present", "past_key_values"): x for k, x in found.items() if "present" in k
        }
        tokens, mask = found["logits"][:, -1:].argmax(-1), one_more(mask)
        assert torch.equal(tokens, expected[:, 7 + step : 8 + step])


@pytest.mark.long
def test_whole_texts_are_measured_without_a_cache():
    ids, mask = prompts(2)
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(mask)}]
    made, missing = build_backends(graph(LLAMA, FOUR), ["onnxruntime"], "cpu", batches, 1)
    assert missing == {} and [*made] == ["onnxruntime"]
