"""A walk block by block gives the codes that the whole graph gives, and goes on after a kill."""

import contextlib
import functools
import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop import MaseGraph, passes
from chop.formats import parse_format_string
from chop.ir.batches import select_inputs
from chop.models.meta import meta_model, weights_source
from chop.nn.packed import PackedOperator
from chop.nn.quantized.base import quantizers_off
from chop.quantization.folding.awq import awq
from chop.quantization.folding.engine import sites_of_parts
from chop.quantization.folding.smoothquant import smooth
from chop.quantization.rounding import gptq as block_gptq
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import Gptq
from chop.quantization.rounding.learned import BlockLearning, Learning
from chop.quantization.walk import files as block_files
from chop.quantization.walk import values as block_values
from chop.quantization.walk.blocks import BlockWalk
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.parts import block_paths, get_parts
from chop.quantization.walk.values import NoBlocksError
from chop.quantization.walk.walk import Rounded, Walk
from chop.quantization.walk.weights import LazyWeights
from tests.experts import MIXTURES, mixture

MASKED = torch.ones(3, 12, dtype=torch.long)
MASKED[1, :5] = 0


def decoder(kind, tied=False):
    import transformers as t

    if kind in MIXTURES:
        return mixture(kind, vocab_size=100, num_hidden_layers=2, tie_word_embeddings=tied)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 100, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    if kind == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**sizes, **heads))
    if kind == "qwen2":
        return t.Qwen2ForCausalLM(t.Qwen2Config(**sizes, **heads))
    small = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32}
    return t.GPT2LMHeadModel(t.GPT2Config(**small, bos_token_id=0, eos_token_id=0))


def texts():
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(0, 100, (3, 12), generator=generator), "attention_mask": mask}
        for mask in (MASKED, torch.ones_like(MASKED))
    ]


def rules(*operators, name="mxint", width=4):
    config = {"config": {"weight": {"name": name, "width": width}}}
    return {"by": "type", **dict.fromkeys(operators, config)}


LAYERS = ("linear", "embedding", "layer_norm")
EXPERTS = ("linear", "embedding", "expert_linear")


@functools.cache
def captured(kind, tied=False):
    """A folder of a decoder, its blocks, its graph without weights, and how to read them."""
    folder = Path(tempfile.mkdtemp())
    decoder(kind, tied).save_pretrained(folder)
    model = meta_model(folder)
    blocks = block_paths(model)
    mg = MaseGraph(model, hf_input_names=[*texts()[0]])
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    source = weights_source(model, folder, mg.model)
    shapes = {name: x.shape for name, x in mg.model.named_parameters(remove_duplicate=False)}

    def read(name):
        return source.read(name, tuple(slice(0, size) for size in shapes[name]))

    return folder, blocks, mg, read


def with_rule(kind, rule, tied=False):
    _, blocks, mg, read = captured(kind, tied)
    present = {mg.operator(node).name for node in mg.nodes}
    kept = {name: x for name, x in rule.items() if name == "by" or name in present}
    return passes.quantize_transform_pass(mg, kept)[0], blocks, read


def walk_of(prepared, out, runs_float=False):
    mg, blocks, read = prepared
    weights = LazyWeights(mg.model, read)
    batches = list(select_inputs(mg, texts(), "test"))
    files = BlockFiles(out, {})
    return BlockWalk(mg, get_parts(mg, blocks), weights, batches, files, runs_float)


def walked(prepared, out, row_weights="gradient"):
    mg, walk = prepared[0], walk_of(prepared, out)
    rounder = Gptq(walk, Solver(actorder=True), row_weights == "gradient")
    told = walk.run(rounder, lambda _: contextlib.nullcontext())
    walk.weights.load_rest()
    return mg, {path: errors for part in told for path, errors in part.report.items()}


def in_memory(prepared, row_weights="gradient"):
    mg, _, read = prepared
    weights = LazyWeights(mg.model, read)
    weights.load_rest()
    settings = {"batches": texts(), "row_weights": row_weights}
    mg, info = passes.gptq_transform_pass(mg, settings, inplace=True)
    return passes.pack_transform_pass(mg, {"silent": True})[0], info["layers"]


def assert_same(found, expected):
    state = expected.model.state_dict()
    assert found.model.state_dict().keys() == state.keys()
    different = [n for n, x in found.model.state_dict().items() if not torch.equal(x, state[n])]
    assert different == []


@pytest.mark.parametrize("row_weights", ["gradient", "uniform"])
@pytest.mark.parametrize("kind, tied", [("llama", False), ("qwen2", True), ("gpt2", True)])
@pytest.mark.sampled(1)
def test_codes_are_those_of_the_whole_graph(tmp_path, kind, tied, row_weights):
    expected, layers = in_memory(with_rule(kind, rules(*LAYERS), tied), row_weights)
    found, told = walked(with_rule(kind, rules(*LAYERS), tied), tmp_path, row_weights)
    assert_same(found, expected)
    assert told == layers and any(row["after"] < row["before"] for row in told.values())
    packed = [x for x in found.model.modules() if isinstance(x, PackedOperator)]
    assert len(packed) >= 10
    body = "transformer.wte" if kind == "gpt2" else "model.embed_tokens"
    table, head = (found.model.get_submodule(path) for path in (body, "lm_head"))
    assert (table.weight_codes is head.weight_codes) == tied
    batch = texts()[0]
    assert torch.equal(found.model(**batch).logits, expected.model(**batch).logits)


@pytest.mark.parametrize("name", ["Mixtral", "Olmoe", "Qwen3Moe", "GptOss"])
@pytest.mark.long
def test_experts_have_the_codes_of_the_whole_graph(tmp_path, monkeypatch, name):
    monkeypatch.setattr("chop.quantization.walk.weights.SMALL", 100)
    expected, layers = in_memory(with_rule(name, rules(*EXPERTS)))
    found, told = walked(with_rule(name, rules(*EXPERTS)), tmp_path)
    assert_same(found, expected)
    assert told == layers and any("experts.gate_up[" in path for path in told)
    # Experts that stay float come from the walk's files, too.
    floats, _ = walked(with_rule(name, rules("linear")), tmp_path / "floats", "uniform")
    own = decoder(name).state_dict()
    state = floats.model.state_dict()
    for path in (x for x in own if x.endswith("experts.gate_up_proj")):
        assert torch.equal(state[path], own[path])


def folded_in_memory(prepared, methods):
    """The float graph scaled as a whole, then rounded and packed."""
    (mg, _, read), told = prepared, {}
    LazyWeights(mg.model, read).load_rest()
    batches = list(select_inputs(mg, texts(), "test"))
    with quantizers_off(mg.model):
        if "smoothquant" in methods:
            told["smoothquant"] = smooth(Walk(mg, batches))
        if "awq" in methods:
            number_format = parse_format_string("mxint:width=4")
            told["awq"] = awq(Walk(mg, batches), number_format)
    if "gptq" in methods:
        mg, _ = passes.gptq_transform_pass(mg, {"batches": texts()}, inplace=True)
    return passes.pack_transform_pass(mg, {"silent": True})[0], told


def folded_by_block(prepared, out, methods):
    mg, walk, told = prepared[0], walk_of(prepared, out), {}
    with quantizers_off(mg.model):
        if "smoothquant" in methods:
            told["smoothquant"] = smooth(walk)
        if "awq" in methods:
            told["awq"] = awq(walk, parse_format_string("mxint:width=4"))
    is_corrected = "gptq" in methods
    rounder = Gptq(walk, Solver(actorder=True), True) if is_corrected else lambda _: Rounded()
    walk.run(rounder, lambda _: contextlib.nullcontext())
    walk.weights.load_rest()
    return mg, told


@pytest.mark.parametrize(
    "methods", [("awq",), ("smoothquant",), ("awq", "gptq"), ("smoothquant", "awq", "gptq")]
)
@pytest.mark.parametrize("kind, tied", [("llama", False), ("qwen2", True), ("gpt2", True)])
@pytest.mark.long
def test_scales_are_those_of_the_whole_graph(tmp_path, monkeypatch, kind, tied, methods):
    monkeypatch.setattr("chop.quantization.walk.weights.SMALL", 100)  # matrices are read again
    expected, chosen = folded_in_memory(with_rule(kind, rules(*LAYERS), tied), methods)
    found, told = folded_by_block(with_rule(kind, rules(*LAYERS), tied), tmp_path, methods)
    assert told == chosen and all(all(pair) for pair in chosen.values())
    assert_same(found, expected)
    batch = texts()[0]
    assert torch.equal(found.model(**batch).logits, expected.model(**batch).logits)


@pytest.mark.parametrize("name", ["Mixtral", "Olmoe", "Qwen3Moe", "GptOss"])
@pytest.mark.parametrize("methods", [("awq",), ("smoothquant", "awq", "gptq")])
@pytest.mark.parametrize("memory", [1000, 2**27])
@pytest.mark.long
def test_scales_of_experts_are_those_of_the_whole_graph(
    tmp_path, monkeypatch, name, methods, memory
):
    monkeypatch.setattr("chop.quantization.walk.weights.SMALL", 100)  # matrices are read again
    monkeypatch.setattr(block_values, "MEMORY_BYTES", memory)
    expected, chosen = folded_in_memory(with_rule(name, rules(*EXPERTS)), methods)
    found, told = folded_by_block(with_rule(name, rules(*EXPERTS)), tmp_path, methods)
    assert told == chosen
    has_scales = any("gate_up[" in path for path in chosen["awq"][0])
    assert has_scales == (name == "Qwen3Moe")  # experts of others saw too few rows
    assert_same(found, expected)


@pytest.mark.parametrize("rule", [rules("linear", name="group_integer", width=3), rules(*LAYERS)])
@pytest.mark.sampled(1)
def test_values_that_lie_in_files_are_the_same(tmp_path, monkeypatch, rule):
    expected, _ = walked(with_rule("llama", rule), tmp_path / "memory", "uniform")
    monkeypatch.setattr(block_values, "MEMORY_BYTES", 1000)
    found, _ = walked(with_rule("llama", rule), tmp_path / "files", "uniform")
    assert_same(found, expected)
    # A table that is tied to no quantized head stays float, and is that of the folder.
    assert all(not x.is_meta for x in found.model.state_dict().values())


def test_one_block_of_floats_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("chop.quantization.walk.weights.SMALL", 100)
    held = []

    def noted(mg, node, *rest):
        own = [x for x in weights[0]._lazy.values() if x.untyped_storage().nbytes() > 4]
        held.append(sum(x.numel() for x in {id(x): x for x in own}.values()))
        return original(mg, node, *rest)

    weights, original, made = [], block_gptq.correct_layer, LazyWeights.__init__
    monkeypatch.setattr(
        LazyWeights, "__init__", lambda self, *x: weights.append(self) or made(self, *x)
    )
    monkeypatch.setattr(block_gptq, "correct_layer", noted)
    walked(with_rule("llama", rules(*LAYERS)), tmp_path, "uniform")
    block, norms = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48, 5 * 32
    assert held == [block + norms] * 14 + [100 * 32 + norms]


def test_floats_are_read_when_a_module_is_called(monkeypatch):
    monkeypatch.setattr("chop.quantization.walk.weights.SMALL", 100)
    mg, _, read = with_rule("llama", rules("linear"))
    names = []
    weights = LazyWeights(mg.model, lambda name: names.append(name) or read(name))
    direct = [str(node.target) for node in mg.nodes if node.op == "get_attr"]
    model = decoder("llama").eval()
    with quantizers_off(mg.model), weights.on_demand(direct), torch.no_grad():
        found = mg.model(**texts()[0]).logits
    torch.testing.assert_close(found, model(**texts()[0]).logits, atol=1e-5, rtol=1e-5)
    assert names.count("lm_head.weight") == 1 and "model.layers.1.mlp.up_proj.weight" in names
    assert mg.model.get_submodule("lm_head").weight.untyped_storage().nbytes() == 4
    assert not mg.model.get_submodule("lm_head")._forward_pre_hooks


def in_child(job):
    """Runs a job in a forked process; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            job()
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def killed_at(owner, name, call):
    """Replaces a function by one that kills this process at so many calls."""
    original, calls = getattr(owner, name), []

    def replaced(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, replaced)


def assert_goes_on(tmp_path, walk, moment, watch=lambda done: None):
    """A walk that is killed at a moment ends with the bytes of one that is not."""

    def finish(out, file):
        found, _ = walk(out)
        save_file({n: x.contiguous().clone() for n, x in found.model.state_dict().items()}, file)
        os._exit(0)

    def die():
        killed_at(*moment)
        walk(tmp_path / "killed")

    assert in_child(lambda: finish(tmp_path / "whole", tmp_path / "expected")) == 0
    assert os.WTERMSIG(in_child(die)) == signal.SIGKILL
    (folder,) = (tmp_path / "killed").iterdir()
    done = len((folder / block_files.JOURNAL).read_text().splitlines())

    def resume():
        watch(done)
        finish(tmp_path / "killed", tmp_path / "found")

    assert in_child(resume) == 0
    expected, found = load_file(tmp_path / "expected"), load_file(tmp_path / "found")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


MOMENTS = {
    "correcting the second block": (block_gptq, "correct_layer", 9),
    "before the journal": (block_files.Journal, "add", 2),
    "before the codes": (block_files, "save_file", 3),
    "half of the values": (torch, "save", 4),
    "after the journal": (block_files.shutil, "rmtree", 5),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.sampled(1)
def test_a_killed_walk_goes_on_to_the_same_bytes(tmp_path, moment):
    prepared = with_rule("llama", rules(*LAYERS))

    def watch(done):
        assert done in (1, 2, 3)
        killed_at(block_gptq, "correct_layer", 16 - 7 * (done - 1))  # fewer calls are left

    walk = functools.partial(walked, prepared, row_weights="uniform")
    assert_goes_on(tmp_path, walk, MOMENTS[moment], watch)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.long
def test_a_walk_that_goes_on_tells_of_all_experts_left_alone(tmp_path, monkeypatch, learns):
    """Of those of parts that an earlier run has done as well."""
    prepared = with_rule("Olmoe", rules(*EXPERTS))

    def left(out):
        walk = walk_of(prepared, out, runs_float=learns)
        solver = Solver(actorder=True)
        learning = (
            BlockLearning(walk, Learning(1, 3, 0, None, False), walk.parts) if learns else None
        )
        rounder = learning or Gptq(walk, solver, False)
        parts = walk.run(rounder, lambda _: contextlib.nullcontext())
        return [list(part.skipped.items()) for part in parts]

    whole = left(tmp_path / "whole")
    first, second = (" ".join(reason for _, reason in found) for found in whole[1:3])
    assert "fewer than its 32 inputs" in first and "fewer than" in second
    prepared, keep = with_rule("Olmoe", rules(*EXPERTS)), BlockFiles.keep

    def stopped(self, part, *given):
        keep(self, part, *given)
        if part == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(BlockFiles, "keep", stopped)
        left(tmp_path / "killed")
    prepared = with_rule("Olmoe", rules(*EXPERTS))
    assert left(tmp_path / "killed") == whole


class Repeated(nn.Module):
    """Runs its blocks twice over."""

    def __init__(self, write=False):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.write = write

    def forward(self, x):
        for _ in range(1 if self.write else 2):
            for block in self.blocks:
                y = block(x)
                if self.write:
                    x += y
                x = x + y
        return x


@pytest.mark.parametrize("write, reason", [(False, "one after the other"), (True, "memory of")])
def test_what_cannot_be_cut_is_refused(write, reason):
    model = Repeated(write)
    mg = MaseGraph(model, dummy_in={"x": torch.randn(2, 4)})
    with pytest.raises(NoBlocksError, match=reason):
        get_parts(mg, block_paths(model))


class Normed(nn.Module):
    """What a block ends with, the next one begins with."""

    def __init__(self):
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_scales_that_would_move_to_another_block_are_refused():
    model = Normed()
    mg = MaseGraph(model, dummy_in={"x": torch.randn(2, 4)})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    parts = get_parts(mg, block_paths(model))
    with pytest.raises(NoBlocksError, match=r"scales of 'blocks.0.1' would move to another block"):
        sites_of_parts(mg, parts)


def test_blocks_are_those_with_most_parameters():
    model = nn.Module()
    model.small = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))
    model.body = nn.Module()
    model.body.large = nn.ModuleList(nn.Linear(9, 9) for _ in range(2))
    model.mixed = nn.ModuleList([nn.Linear(99, 99), nn.Conv2d(3, 3, 3)])
    assert block_paths(model) == ["body.large.0", "body.large.1"]
    with pytest.raises(NoBlocksError, match="no list of blocks"):
        get_parts(MaseGraph(nn.Linear(2, 2)), block_paths(nn.Linear(2, 2)))
