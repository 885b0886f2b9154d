"""Every registered format, reached by its name through the pass."""

import pytest
import torch

from chop import MaseGraph, passes
from chop.formats import MXFP, MXInt, formats, get_format
from chop.nn import quantized as q

FLOATS = {"width": 8, "exponent_width": 4}
NEEDED = {
    "integer": {"width": 8, "frac_width": 4},
    "minifloat_ieee": FLOATS,
    "minifloat_denorm": FLOATS,
    "log": {"width": 8},
    "scale_integer": {"width": 8},
    "block_fp": {"width": 8},
    "block_minifloat": FLOATS,
    "block_log": {"width": 8},
}
NAMES = [kind.name for kind in formats() if kind.name != "float"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(3)
def test_every_format_by_name_through_the_pass_and_a_checkpoint(net_graph, name, tmp_path):
    config = {"by": "type", "default": {"config": {"name": name, **NEEDED.get(name, {})}}}
    quantized, info = passes.quantize_transform_pass(net_graph, config)
    assert info["quantized"] == 8
    for module in (quantized.modules["conv"], quantized.modules["fc1"]):
        assert type(module.spec.weight) is type(module.spec.data_in) is get_format(name)
    x = torch.randn(5, 1, 6, 7)
    y = quantized.model(x)
    assert y.isfinite().all()
    y.square().sum().backward()
    parameters = dict(quantized.model.named_parameters())
    assert all(parameter.grad.isfinite().all() for parameter in parameters.values())
    quantized.export(tmp_path / "checkpoint")
    restored = MaseGraph.from_checkpoint(tmp_path / "checkpoint")
    assert torch.equal(restored.model(x), y.detach())
    bits = passes.calculate_avg_bits_mg_analysis_pass(quantized)[1]
    # A row of 3 to 8 elements has the 16 bytes of scales of a super-block: 46.7 to 20 bits each.
    most = (30.5, 23) if name == "k_quant" else (24, 16)
    assert bits["w_avg_bit"] < most[0] and bits["data_avg_bit"] < most[1]


def test_operands_in_different_formats(net_graph):
    config = {
        "by": "type",
        "linear": {
            "config": {
                "data_in": {"name": "mxfp", "width": 8, "exponent_width": 4},
                "weight": {"name": "mxint", "width": 4, "block_size": [1, 32]},
            }
        },
    }
    quantized, _ = passes.quantize_transform_pass(net_graph, config)
    layer = quantized.modules["fc1"]
    assert isinstance(layer, q.QuantLinear)
    assert (layer.spec.data_in, layer.spec.weight) == (MXFP(), MXInt(4))
    assert layer.spec.bias.is_identity
    x = torch.randn(3, 4)
    expected = MXFP().round(x) @ MXInt(4).round(layer.weight).T + layer.bias
    torch.testing.assert_close(layer(x), expected)
