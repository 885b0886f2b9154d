"""Folders of GPTQ: their codes, taken apart by definition, stand for the values of the graph."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.export.coded import coded_weight
from chop.export.foreign.readers import load
from chop.export.gptq import target
from chop.formats import QuantSpec, parse_format_string
from chop.models import load_model
from chop.nn.packed import PackedLinear
from tests.export.decoders import captured, logits, quantized, rounded, tokens
from tests.export.tools import gptq_parts, gptq_settings, write_folder

FORMATS = {
    "group_integer:width=4": (4, 32),
    "mxint:width=8": (8, 32),
    "group_integer:width=3:group_size=16": (3, 16),
    "group_integer:width=2": (2, 32),
    "integer:width=8:frac_width=6": (8, -1),
}


def get_codes(words, bits, count):
    """The reference, a row at a time: all words as one integer of Python, cut into codes."""
    rows = []
    for row in words.astype(np.uint32).tolist():
        whole = sum(word << 32 * at for at, word in enumerate(row))
        rows.append([whole >> bits * at & (2**bits - 1) for at in range(count)])
    return np.array(rows)


def dense(tensors, path, bits, group):
    """float64 (outputs, inputs), as GPTQModel dequantizes: scale (code - (stored zero + 1))."""
    words, zeros, scales, order = (
        tensors[f"{path}.{end}"].numpy() for end in ("qweight", "qzeros", "scales", "g_idx")
    )
    inputs, outputs = len(order), words.shape[1]
    codes = get_codes(words.T, bits, inputs).T
    zeros = get_codes(zeros, bits, outputs) + 1
    assert np.array_equal(order, np.arange(inputs) // (inputs if group == -1 else group))
    assert (zeros == 2 ** (bits - 1)).all() and scales.dtype == np.float16
    return (scales[order].astype(np.float64) * (codes - zeros[order])).T


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.sampled(1)
def test_folders_hold_every_value(text, tmp_path):
    bits, group = FORMATS[text]
    mg = quantized(captured("Llama"), {"linear": text})
    info = target.write(mg, tmp_path)
    assert set(info["formats"].values()) == {"gptq"} and len(info["formats"]) == 8
    assert info["notes"] == [
        "the head is packed, which vLLM and GPTQModel support; other engines may not"
    ]
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["group_size"], config["sym"]) == (bits, group, True)
    assert (config["lm_head"], config["desc_act"], "dynamic" in config) == (True, False, False)
    tensors, expected = load_file(tmp_path / "model.safetensors"), rounded(mg)
    for path in info["formats"]:
        layer = expected.get_submodule(path)
        value = layer.quantize("weight", layer.weight).detach().double().numpy()
        assert np.array_equal(dense(tensors, path, bits, group), value), path
    found = logits(load(tmp_path), tokens())
    torch.testing.assert_close(found, logits(expected, tokens()), rtol=1e-4, atol=1e-5)


def test_layers_that_stay_float_are_skipped_by_name(tmp_path):
    path = "model.layers.0.self_attn.o_proj"
    rules = {r"model\.layers\.0\.(mlp\..*|self_attn\.[qkv]_proj)": "mxint:width=8"}
    mg = quantized(captured("Llama"), rules, by="regex_name")
    info = target.write(mg, tmp_path)
    assert info["notes"] == [f"engines must skip the float layers {path}"]
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["dynamic"] == {r"-:model\.layers\.0\.self_attn\.o_proj$": {}}
    assert not config["lm_head"]
    layers = [x for x, m in load_model(tmp_path).named_modules() if isinstance(m, PackedLinear)]
    assert len(layers) == 6 and path not in layers


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"lm_head": "mxfp:width=4"}, "lm_head: GPTQ does not support its elements and scales"),
        ({"lm_head": "mxint:width=5"}, "lm_head: its codes have 5 bits instead of 2, 3, 4 or 8"),
        ({"lm_head": "scale_integer:width=8"}, "lm_head: its scales are not float16 numbers"),
        ({"lm_head": "mxint:width=8:block_size=48"}, "not a multiple of the group size 48"),
        ({"lm_head": "group_affine:width=4"}, "is not elements times one scale each"),
        (
            {"lm_head": "mxint:width=8", "model.layers.0.mlp.*": "mxint:width=4"},
            "lm_head: it has 8 bits in groups of 32, but most modules have 4 bits in groups of 32",
        ),
    ],
)
def test_what_it_cannot_hold_is_listed_before_anything_is_written(rules, reason, tmp_path):
    mg = quantized(captured("Llama"), rules, by="regex_name")
    with pytest.raises(ConfigError, match=reason) as error:
        target.write(mg, tmp_path / "folder")
    assert "gptq cannot store 1 module:" in str(error.value)
    assert "one integer format of 2, 3, 4 or 8 bits" in str(error.value)
    assert not (tmp_path / "folder").exists()


def test_sizes_that_fill_no_words_are_refused():
    spec = QuantSpec(weight=parse_format_string("mxint:width=8:block_size=16"))
    layer = PackedLinear.from_float(nn.Linear(48, 40), spec)
    reason = target.get_scheme(coded_weight(layer), torch.float32)
    assert reason == "its 48 inputs and 40 outputs are not multiples of 32"


def test_a_folder_that_was_read_is_written_as_it_was(tmp_path):
    write_folder(tmp_path / "theirs", gptq_settings(4, 32), gptq_parts(4, 32))
    target.write(MaseGraph(load_model(tmp_path / "theirs")), tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / x / "model.safetensors") for x in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
