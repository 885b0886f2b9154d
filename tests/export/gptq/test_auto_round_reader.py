"""Folders of auto-round become packed layers with the values of their packing."""

import pytest
import torch

from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.readers import load
from chop.models import load_model
from chop.nn.packed import PackedLinear
from tests.export.gptq.test_reader import check
from tests.export.tools import awq_parts, gptq_parts, linear_layers, write_folder


def settings(bits=4, group=32, **changes):
    plain = {"quant_method": "auto-round", "bits": bits, "group_size": group, "data_type": "int"}
    return plain | {"sym": True, "packing_format": "auto_round:auto_gptq"} | changes


def own_parts(bits, group):
    """Its own packing: zero points as they are, and no order."""
    make = gptq_parts(bits, group, symmetric=False, added=0)

    def get_parts(draw, inputs, outputs):
        parts, dense = make(draw, inputs, outputs)
        del parts["g_idx"]
        return parts, dense

    return get_parts


CASES = {
    "GPTQ": (settings(), gptq_parts(4, 32), 4),
    "older name": (settings(packing_format="auto_round:gptq:exllamav2"), gptq_parts(4, 32), 4),
    "older method": (
        settings(
            quant_method="intel/auto-round",
            packing_format=None,
            backend="auto_round:gptq:exllamav2",
        ),
        gptq_parts(4, 32),
        4,
    ),
    "two bits": (settings(2), gptq_parts(2, 32), 2),
    "own": (settings(sym=False, packing_format="auto_round"), own_parts(4, 32), 5),
    "own, three bits": (
        settings(3, sym=False, packing_format="auto_round:tritonv2"),
        own_parts(3, 32),
        4,
    ),
    "AWQ": (settings(sym=False, packing_format="auto_round:auto_awq"), awq_parts(32), 5),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_folders_keep_every_code(case, tmp_path):
    of_folder, parts, width = CASES[case]
    check(tmp_path, write_folder(tmp_path, of_folder, parts), "scale_integer", width)


def test_layers_have_settings_of_their_own(tmp_path):
    kinds = {"down_proj": (8, 16), "up_proj": (2, 32)}
    names = ["q", "k", "v", "o", "gate_proj", "up_proj", "down_proj"]
    plain, turns = gptq_parts(4, 32), iter(names * 9)

    def get_parts(draw, inputs, outputs):
        own = kinds.get(next(turns))
        return (gptq_parts(*own) if own else plain)(draw, inputs, outputs)

    extra = {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 16}, "lm_head": {"bits": 16}}
    extra |= {"model.layers.1.mlp.down_proj": {"bits": 8, "group_size": 16}}
    extra |= {r".*up_proj": {"bits": 2}}
    values = write_folder(tmp_path, settings(extra_config=extra), get_parts)
    model = load_model(tmp_path)
    for path, value in values.items():
        layer = model.get_submodule(path)
        assert torch.equal(layer.weight, value), path
        assert layer.spec.weight.width == kinds.get(path.split(".")[-1], (4,))[0]


def mxfp4_parts(draw, inputs, outputs):
    packed = torch.from_numpy(draw.integers(0, 256, (outputs, inputs // 2), "uint8"))
    scale = torch.from_numpy(draw.integers(118, 124, (outputs, inputs // 32), "uint8"))
    steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([steps, -steps])[torch.stack([packed & 15, packed >> 4], -1).int()]
    factors = torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
    dense = values.view(outputs, inputs) * factors
    return {"weight_packed": packed, "weight_scale": scale}, dense.T


def test_minifloats_in_the_tensors_of_compressed_tensors(tmp_path, caplog):
    how = settings(data_type="mx_fp_rceil", packing_format="auto_round:llm_compressor", act_bits=4)
    values = write_folder(tmp_path, how, mxfp4_parts)
    model = load_model(tmp_path)
    assert "inputs of layers stay float" in caplog.text
    assert all(isinstance(x, PackedLinear) for x in linear_layers(model).values())
    for path, value in values.items():
        assert torch.equal(model.get_submodule(path).weight, value), path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"packing_format": "auto_round:fp8"}, "expected a packing_format .* got 'auto_round:fp8'"),
        ({"packing_format": "itrex"}, "expected a packing_format"),
        ({"bits": 5}, "expected bits of .*, got 5"),
        ({"data_type": "mx_fp"}, "expected a data_type of int, got mx_fp"),
        ({"act_bits": 8}, "expected float inputs, got act_bits 8"),
        ({"act_bits": "8"}, "expected a whole number of act_bits, got '8'"),
        ({"extra_config": {"(a+)+": {"bits": 2}}}, "no repeated group"),
        ({"extra_config": {"a": {"bits": "2"}}}, "'a': expected bits of .*, got '2'"),
        ({"extra_config": {"a": {"bits": None}}}, "'a': expected bits of .*, got None"),
        (
            {"packing_format": "auto_round:llm_compressor", "data_type": "fp"},
            "expected mx_fp in 4 or 8 bits, or nv_fp in 4, got fp in 4",
        ),
    ],
)
def test_other_settings_are_refused(changes, reason, tmp_path):
    write_folder(tmp_path, settings(**changes), gptq_parts(4, 32))
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path)


def test_tensors_of_other_settings_are_refused(tmp_path):
    write_folder(tmp_path, settings(8), gptq_parts(4, 32))
    with pytest.raises(CheckpointError, match="does not fit 8 bits"):
        load(tmp_path)
