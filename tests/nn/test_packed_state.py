"""State dicts of packed layers: what they say of their codes, and what is read as codes."""

import io

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from chop.base.notices import AdjustedWarning, forget_notices
from chop.formats import QuantSpec, parse_format_string
from chop.nn import quantized as q
from chop.nn.packed import pack


def packed(text, shape=(8, 64), seed=0, bias="mxint"):
    torch.manual_seed(seed)
    spec = QuantSpec(weight=parse_format_string(text))
    if bias is None:
        layer = q.QuantEmbedding(*shape, config=spec).eval()
    else:
        spec = spec.with_quantizers(bias=parse_format_string(bias))
        layer = q.QuantLinear(*reversed(shape), config=spec).eval()
    return nn.Sequential(nn.Sequential(pack(layer)))


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


LOOK_ALIKES = {
    "fractional bits": (["integer:width=8:frac_width=4"], ["integer:width=8:frac_width=6"]),
    "elements": (["mxint:width=8"], ["mxfp:width=8:exponent_width=4"]),
    "bias": (["mxint"], ["mxint", (8, 64), 0, "mxfp:width=8:exponent_width=4"]),
    "shape": (["mxint", (32, 64), 0, None], ["mxint", (64, 32), 0, None]),
}


@pytest.mark.parametrize("passed_on", [lambda state: state, saved], ids=["memory", "file"])
@pytest.mark.parametrize("case", LOOK_ALIKES)
def test_codes_are_not_read_as_those_of_another_format(case, passed_on):
    source, target = (packed(*options) for options in LOOK_ALIKES[case])
    before = target[0][0].weight.clone()
    own, state = target.state_dict(), passed_on(source.state_dict())
    fits = {name: x.shape == own[name].shape for name, x in state.items()}
    assert all(fits.values()), "the case shows nothing where torch compares the shapes"
    with pytest.raises(RuntimeError, match=r"'0.0.(weight|bias)' is stored as codes of .* but the"):
        target.load_state_dict(state, strict=False)
    assert torch.equal(target[0][0].weight, before)


@pytest.mark.parametrize("text", ["mxint:width=4", "nvfp4", "group_affine:width=4:group_size=32"])
def test_codes_of_the_same_format_are_loaded_without_a_word(text):
    source, target = packed(text), packed(text, seed=1)
    target.load_state_dict(saved(source.state_dict()))
    assert torch.equal(target[0][0].weight, source[0][0].weight)
    target = packed(text, seed=1)
    target[0][0].load_state_dict(source[0][0].state_dict(), assign=True)
    assert torch.equal(target[0][0].weight, source[0][0].weight)


@pytest.mark.parametrize("passed_on", [lambda state: load(save(state)), dict], ids=["file", "dict"])
def test_codes_whose_format_nobody_names_are_loaded_with_one_warning(passed_on, recwarn):
    forget_notices()
    source = packed("mxint:width=4")
    for _ in range(2):
        target = packed("mxint:width=4", seed=1)
        target.load_state_dict(passed_on(source.state_dict()))
        assert torch.equal(target[0][0].weight, source[0][0].weight)
    (said,) = [str(w.message) for w in recwarn.list if w.category is AdjustedWarning]
    assert "no format for the codes of '0.0.weight'; mxint" in said


@pytest.mark.parametrize("options", [{}, {"strict": False}, {"assign": True}])
def test_floats_are_refused_with_the_way_to_encode_them(options):
    target = packed("mxint:width=8")
    values = {"0.0.weight": torch.randn(8, 64), "0.0.bias": torch.randn(8)}
    with pytest.raises(RuntimeError, match=r"has its values: assign them, layer.weight = values"):
        target.load_state_dict(values, **options)
