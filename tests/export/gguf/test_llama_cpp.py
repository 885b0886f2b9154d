"""GGUF in llama.cpp itself: it generates our tokens, or near-ties of ours.

`CHOP_LLAMA_CPP` names the Python of an environment of its own that has xllamacpp.
"""

import json
import os
import subprocess

import pytest
import torch

from chop import passes
from chop.export.gguf.target import TARGET, read_model
from tests.export.gguf.test_target import (
    CASES,
    NEW,
    ROPES,
    VOCABULARY,
    captured,
    of_kind,
    quantized,
    weight_in,
)
from tests.export.gguf.test_tokenizer import byte_level

pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")

PYTHON = os.environ.get("CHOP_LLAMA_CPP", "")
in_llama_cpp = pytest.mark.skipif(
    not PYTHON, reason="CHOP_LLAMA_CPP names no Python with xllamacpp"
)
pytestmark = [pytest.mark.long, in_llama_cpp]
TOKENS = 20
CLIENT = """
import json, sys, xllamacpp

path, prompt, count, vocabulary = json.loads(sys.argv[1])
settings = xllamacpp.CommonParams()
settings.model.path, settings.n_ctx, settings.n_parallel = path, 64, 1
settings.cpuparams.n_threads = 1
server, found = xllamacpp.Server(settings), []
for _ in range(count):  # a letter is generated: answers have no parts of one, nor an end
    request = {"prompt": prompt, "max_tokens": 1, "logit_bias": [[prompt[-1 - len(found)], 1e3]]}
    (answer,) = server.handle_completions({**request, "logprobs": vocabulary})["choices"]
    (step,) = answer["logprobs"]["content"]
    found.append([(x["logprob"], x["id"]) for x in step["top_logprobs"]])
    prompt = [*prompt, max(found[-1])[1]]
print("\\nFOUND", json.dumps(found))
"""
GEMMA3 = {
    "tie_word_embeddings": True,
    "num_hidden_layers": 6,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0},
    },
}
RUN = [
    ("llama", {"tie_word_embeddings": True, "head_dim": 32}),
    ("llama", {"rope_parameters": ROPES[0]}),
    ("llama", {"rope_parameters": ROPES[1]}),
    *((kind, changes) for kind, changes in CASES[1:-2] if kind != "gemma3"),
    ("gemma3", GEMMA3),  # llama.cpp asks for a layer that attends to all positions
    ("gpt2", {"n_inner": 96}),
    *NEW,
]


@pytest.mark.parametrize("fmt", ["mxint:width=8", "mxint:width=4", "mxfp:width=4"])
@pytest.mark.parametrize(("kind", "changes"), RUN)
def test_llama_cpp_generates_our_tokens(kind, changes, fmt, tmp_path):
    """Or near-ties of ours: ggml rounds the inputs of products to 8 bits, logits are within 2%.

    Those of Gemma and GLM 4, whose norms amplify differences, are within 5%; other rotary
    embeddings, windows or caps would change them by more.
    """
    check_in_llama_cpp(of_kind(kind, changes, fmt), tmp_path / "model.gguf", kind)


@pytest.mark.parametrize(("kind", "changes"), NEW)
def test_llama_cpp_generates_the_tokens_of_float_models(kind, changes, tmp_path):
    """Only rows of the embedding are decoded: no inputs are rounded, logits are within 0.2%.

    A Gemma's embedding is its head, so that it has one quantized layer instead.
    """
    mg = captured(kind, **changes | ({} if kind == "gemma" else {"tie_word_embeddings": False}))
    path = "model.layers.0.self_attn.k_proj" if kind == "gemma" else "model.embed_tokens"
    rules = {"by": "name", path: weight_in("mxint:width=8")}
    mg = passes.quantize_transform_pass(mg, rules)[0]
    check_in_llama_cpp(mg, tmp_path / "model.gguf", kind, 0.002)


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6])
def test_llama_cpp_reads_super_blocks(width, tmp_path):
    """Rows of 256 values; ggml rounds inputs in groups of 256, too: logits are within 3%."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    mg = of_kind("llama", sizes, f"k_quant:width={width}")
    check_in_llama_cpp(mg, tmp_path / "model.gguf", "llama", most=0.03)


def generated(path, prompt, vocabulary=VOCABULARY, count=TOKENS, likeliest=None):
    """Tokens, each the likeliest after those before it; logarithms of probabilities (count, V).

    With `likeliest`, the logarithms of fewer tokens: the others are NaN.
    """
    given = json.dumps([str(path), prompt, count, likeliest or vocabulary])
    done = subprocess.run(
        [PYTHON, "-c", CLIENT, given],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("FOUND ")]
    assert lines, (done.stdout + done.stderr)[-2000:]
    steps = json.loads(lines[-1].removeprefix("FOUND "))
    found = torch.full((count, vocabulary), float("nan"))
    for row, pairs in zip(found, steps, strict=True):
        row[[token for _, token in pairs]] = torch.tensor([x for x, _ in pairs])
    return found.nan_to_num(-torch.inf).argmax(-1).tolist(), found


def check_in_llama_cpp(mg, path, kind, most=None):
    tokenizer = byte_level()
    tokenizer.add_tokens(["<|endoftext|>"], special_tokens=True)  # each model named Phi 3 has it
    TARGET.write(mg, path, tokenizer)
    prompt = [5, 6, 7, 80]
    tokens, found = generated(path, prompt)
    with torch.no_grad():
        (logits,) = read_model(path)(torch.tensor([prompt + tokens[:-1]])).logits
    ours = logits[len(prompt) - 1 :].log_softmax(-1)
    spread = (ours - ours.mean(-1, keepdim=True)).norm(dim=-1)
    errors = (found - ours).norm(dim=-1)
    most = most or (0.05 if "gemma" in kind or kind == "glm4" else 0.02)
    assert (errors < most * spread).all()
    margins = ours.amax(-1) - ours.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert (margins <= 2 * (found - ours).abs().amax(-1)).all()
    assert (margins > 0).sum() <= 2


@pytest.mark.parametrize("kind", ["qwen3", "granite", "phi", "exaone4"])
def test_llama_cpp_multiplies_by_tensor_scales(kind, tmp_path):
    mg = captured(kind, intermediate_size=128)
    parts = ["self_attn.q_proj", *(["mlp.up_proj"] if kind == "qwen3" else [])]
    rules = {f"model.layers.0.{part}": weight_in("nvfp4") for part in parts}
    mg = passes.quantize_transform_pass(mg, {"by": "name", **rules})[0]
    check_in_llama_cpp(mg, tmp_path / "model.gguf", kind)


@pytest.mark.parametrize(
    "fmt",
    [
        "group_affine:width=4:group_size=32",
        "group_affine:width=5:group_size=32",
        "group_integer:width=5",
        "nvfp4",
    ],
)
def test_llama_cpp_reads_other_types(fmt, tmp_path):
    embedding = None if fmt == "nvfp4" else fmt
    mg = quantized(captured("llama", intermediate_size=128), fmt, embedding=embedding)
    check_in_llama_cpp(mg, tmp_path / "model.gguf", "llama")
