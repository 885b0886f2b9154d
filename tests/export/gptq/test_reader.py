"""Folders of GPTQ become packed layers with the values that their definition gives."""

import json

import pytest
import torch

from chop import MaseGraph
from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.readers import load
from chop.models import load_model
from chop.nn.packed import PackedLinear
from chop.quantization.freezing import freeze_layers
from tests.export.decoders import logits, tokens
from tests.export.tools import (
    change_config,
    change_tensors,
    dense_logits,
    gptq_parts,
    gptq_settings,
    write_folder,
)


def packed_layers(model):
    return {path: x for path, x in model.named_modules() if isinstance(x, PackedLinear)}


def check(folder, values, name, width=None):
    """Every weight is the value of its codes; so are the logits, packed and unpacked."""
    model = load_model(folder)
    layers = packed_layers(model)
    assert set(layers) == set(values)
    for path, layer in layers.items():
        assert layer.spec.weight.name == name
        assert width is None or layer.spec.weight.width == width
        assert torch.equal(layer.weight, values[path]), path
    expected = dense_logits(values, tokens())
    torch.testing.assert_close(logits(model, tokens()), expected, rtol=1e-4, atol=1e-5)
    return model, expected


CASES = {
    "4 bits": (gptq_settings(4, 32), gptq_parts(4, 32), "scale_integer", 4),
    "8 bits": (gptq_settings(8, 16), gptq_parts(8, 16), "scale_integer", 8),
    "2 bits": (gptq_settings(2, 16), gptq_parts(2, 16), "scale_integer", 2),
    "3 bits": (gptq_settings(3, 32), gptq_parts(3, 32), "scale_integer", 3),
    "rows": (gptq_settings(4, -1), gptq_parts(4, -1), "scale_integer", 4),
    "gptq_v2": (
        gptq_settings(4, 32, checkpoint_format="gptq_v2"),
        gptq_parts(4, 32, added=0),
        "scale_integer",
        4,
    ),
    "zero points": (
        gptq_settings(4, 32, sym=False),
        gptq_parts(4, 32, symmetric=False),
        "scale_integer",
        5,
    ),
    "zero points of 8 bits": (
        gptq_settings(8, 32, sym=False),
        gptq_parts(8, 32, symmetric=False),
        "scale_integer",
        9,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2)
def test_folders_keep_every_code(case, tmp_path):
    settings, parts, name, width = CASES[case]
    check(tmp_path, write_folder(tmp_path, settings, parts), name, width)


@pytest.mark.parametrize("group", [2**20, 2**26])
@pytest.mark.sampled(1)
def test_groups_beyond_the_columns_are_rows(group, tmp_path):
    parts = gptq_parts(4, -1, symmetric=False)
    values = write_folder(tmp_path, gptq_settings(4, group, sym=False), parts)
    check(tmp_path, values, "scale_integer", 5)


def test_one_file_of_weights_is_read_whatever_an_index_says(tmp_path):
    values = write_folder(tmp_path, gptq_settings(4, 32), gptq_parts(4, 32))
    index = {"weight_map": {"a": "other.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    check(tmp_path, values, "scale_integer")


@pytest.mark.parametrize("is_coded", [True, False])
def test_code_of_a_folder_is_not_asked_for(is_coded, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks on the terminal"))
    write_folder(tmp_path, gptq_settings(4, 32), gptq_parts(4, 32))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["auto_map"] = {"AutoModelForImageClassification": "evil.Evil"}
    if not is_coded:
        del config["quantization_config"]
    file.write_text(json.dumps(config))
    for pretrained in (True, False):
        with pytest.raises((CheckpointError, ConfigError), match="contains custom code"):
            load_model(tmp_path, task="image-classification", pretrained=pretrained)
    if is_coded:
        assert set(packed_layers(load_model(tmp_path)))


def test_a_lack_of_memory_is_one_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    write_folder(tmp_path, gptq_settings(4, 32), gptq_parts(4, 32))
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", full)
    with pytest.raises(CheckpointError, match="there is not enough memory for it"):
        load(tmp_path)


@pytest.mark.long
def test_a_graph_of_a_folder_computes_with_its_values_bit_for_bit(tmp_path):
    values = write_folder(tmp_path, gptq_settings(4, 32), gptq_parts(4, 32))
    model, expected = check(tmp_path, values, "scale_integer")
    exact = MaseGraph(model)
    freeze_layers(exact)  # in the order of sums of torch
    mask = torch.ones_like(tokens())
    with torch.no_grad():
        found = exact.model(input_ids=tokens(), attention_mask=mask)["logits"]
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("symmetric", "name"), [(True, "group_integer"), (False, "group_affine")])
def test_scales_of_fewer_bits_are_kept_in_sixteen(symmetric, name, tmp_path):
    settings = gptq_settings(4, 32, sym=symmetric)
    values = write_folder(tmp_path, settings, gptq_parts(4, 32, symmetric, in_bfloat16=True))
    check(tmp_path, values, name, 4)


LAYER = "model.layers.0.mlp.up_proj"


def test_biases_of_zeros_that_a_model_has_no_place_for_are_left_out(tmp_path):
    values = write_folder(tmp_path, gptq_settings(4, 32), gptq_parts(4, 32))
    change_tensors(tmp_path, lambda tensors: tensors.update({f"{LAYER}.bias": torch.zeros(96)}))
    check(tmp_path, values, "scale_integer")
    change_tensors(tmp_path, lambda tensors: tensors.update({f"{LAYER}.bias": torch.ones(96)}))
    with pytest.raises(CheckpointError, match=r"up_proj\.bias', for which LlamaForCausalLM has no"):
        load(tmp_path)


def test_modules_may_have_settings_of_their_own(tmp_path):
    four, eight = gptq_parts(4, 32), gptq_parts(8, 16)
    sizes = {(64, 96): eight}  # the gate and up projections
    dynamic = {"-:lm_head": {}, r"+:.*\.(gate|up)_proj": {"bits": 8, "group_size": 16}}
    values = write_folder(
        tmp_path,
        gptq_settings(4, 32, dynamic=dynamic),
        lambda draw, *size: sizes.get(size, four)(draw, *size),
    )
    model, _ = check(tmp_path, values, "scale_integer")
    layer = model.get_submodule(LAYER)
    assert (layer.spec.weight.width, layer.spec.weight.group_size) == (8, 16)
    assert model.model.layers[0].mlp.down_proj.spec.weight.width == 4


def another_order(tensors):
    tensors[f"{LAYER}.g_idx"] = tensors[f"{LAYER}.g_idx"].flip(0)


def no_order(tensors):
    del tensors[f"{LAYER}.g_idx"]


def ambiguous_zero(tensors):
    tensors[f"{LAYER}.qzeros"][:] = -1


@pytest.mark.parametrize(
    ("settings", "change", "reason"),
    [
        ({}, another_order, f"'{LAYER}' has reordered inputs"),
        ({"desc_act": True}, no_order, f"'{LAYER}' lacks g_idx"),
        ({}, ambiguous_zero, "stores a zero point of 15, which engines read as 0"),
        ({"bits": 5}, None, r"expected bits of \(2, 3, 4, 8\), got 5"),
        ({"bits": True}, None, "expected bits of"),
        ({"group_size": 0}, None, "expected a group_size of at least 1, or -1, got 0"),
        ({"checkpoint_format": "marlin"}, None, "checkpoint_format: .*gptq"),
        ({"dynamic": {"+:(a+)+": {}}}, None, "no repeated group"),
        ({"dynamic": {"+:[": {}}}, None, "is not a regular expression"),
        ({"adapter": {"name": "lora"}}, None, "adapters are not supported"),
    ],
)
def test_what_has_no_format_here_is_refused_by_name(settings, change, reason, tmp_path):
    write_folder(tmp_path, gptq_settings(4, 32) | settings, gptq_parts(4, 32))
    if change is not None:
        change_tensors(tmp_path, change)
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path)


def test_settings_of_no_folder_are_refused(tmp_path):
    write_folder(tmp_path, gptq_settings(4, 32), gptq_parts(4, 32))
    for settings in (None, {"quant_method": "quip"}):
        change_config(tmp_path, quantization_config=settings)
        with pytest.raises(ConfigError, match="a folder of compressed-tensors, gptq, awq"):
            load(tmp_path)
