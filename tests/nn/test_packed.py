import copy
import io
import math
import pickle
import weakref
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop.base.notices import forget_notices
from chop.errors import ConfigError
from chop.formats import QuantSpec, parse_format, parse_format_string
from chop.formats.binary import Binary
from chop.ir.ops import OPS, get_class_row
from chop.nn import quantized as q
from chop.nn.lora import LoraLinear
from chop.nn.packed import PACKED, PackedEmbedding, PackedLinear, encoding, pack, why_not_packable
from chop.nn.quantized.modules.linear import LinearMXInt
from tests import programs
from tests.stand_ins import Affine, Watch
from tests.subcases import subcases

FORMATS = [
    {"name": "integer", "width": 8, "frac_width": 6},
    {"name": "integer", "width": 5, "frac_width": 4},
    {"name": "integer", "width": 12, "frac_width": "auto"},
    {"name": "scale_integer", "width": 4},
    {"name": "minifloat_ieee", "width": 6, "exponent_width": 3},
    *({"name": "minifloat_denorm", "width": 8, "exponent_width": 4}, {"name": "log", "width": 5}),
    *({"name": "binary", "scaling_factor": True}, {"name": "binary_residual", "levels": 3}),
    *({"name": "ternary", "scaling_factor": True}, {"name": "block_fp", "width": 6}),
    {"name": "block_minifloat", "width": 6, "exponent_width": 3},
    *({"name": "block_log", "width": 4}, {"name": "mxint"}, {"name": "mxint", "width": 4}),
    *({"name": "mxint", "block_dim": 0}, {"name": "mxfp", "width": 6, "exponent_width": 2}),
    *({"name": "nvfp4"}, {"name": "group_affine", "width": 3, "group_size": 16}),
]
LAYERS = {
    "linear": (nn.Linear(40, 9), (3, 40)),
    "conv1d": (nn.Conv1d(4, 6, 3), (2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), groups=2), (2, 4, 7, 6)),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    "batch_norm1d": (nn.BatchNorm1d(5), (4, 5)),
    "batch_norm2d": (nn.BatchNorm2d(5), (4, 5, 2, 3)),
    "layer_norm": (nn.LayerNorm(33), (4, 33)),
    "rms_norm": (nn.RMSNorm(33), (4, 33)),
    "group_norm": (nn.GroupNorm(2, 6), (4, 6, 3)),
    "embedding": (nn.Embedding(50, 24, padding_idx=3), None),
}


def quantized(name, settings, **others):
    layer, shape = LAYERS[name]
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    twin = get_class_row(type(layer)).quantized
    number_format = parse_format(settings)
    spec = QuantSpec(weight=number_format, bias=number_format, **others)
    inputs = torch.randint(50, (4, 5)) if shape is None else torch.randn(shape)
    return twin.from_float(layer, spec).eval(), inputs


def test_every_operator_with_parameters_has_a_packed_class():
    classes = {row.quantized for row in OPS.values() if row.quantized is not None}
    weighted = {cls for cls in classes if "weight" in cls.operands}
    shown = {get_class_row(type(x)).quantized for x, _ in LAYERS.values()}
    assert weighted == set(PACKED) == {*shown, q.QuantExpertLinear}  # it takes two inputs
    assert all(get_class_row(cls).quantized is cls.operator for cls in PACKED.values())


@subcases("settings", FORMATS, ids=str)
def test_every_format_gives_the_same_bits(settings):
    layer, x = quantized("linear", settings, data_in=parse_format({"name": "mxint"}))
    packed = pack(layer, exact=True).eval()
    assert torch.equal(packed(x), layer(x))
    assert torch.equal(packed.weight, layer.quantize("weight", layer.weight))
    assert all(x.dtype in (torch.uint8, torch.float32) for x in packed.state_dict().values())
    stored = sum(x.nbytes for name, x in packed.state_dict().items() if "weight" in name)
    expected = layer.spec.weight.bits(layer.weight.shape) * layer.weight.numel() / 8
    assert stored == pytest.approx(expected, abs=2)  # spare bits of a last byte
    assert packed.packed_bits("weight") == 8 * stored / layer.weight.numel()


@subcases("name", LAYERS)
@subcases("settings", [FORMATS[1], FORMATS[13], FORMATS[15]], ids=str)
def test_every_operator_gives_the_same_bits(name, settings):
    layer, x = quantized(name, settings, data_out=parse_format(FORMATS[0]))
    packed = pack(layer, exact=True).eval()
    assert type(packed) is PACKED[type(layer)]
    assert torch.equal(packed(x), layer(x))
    assert not list(packed.parameters())
    again = packed.unpack().eval()
    assert type(again) is type(layer) and torch.equal(again(x), layer(x))
    assert list(again.state_dict()) == list(layer.state_dict())
    assert all(parameter.requires_grad for parameter in again.parameters())


@subcases("exact", [True, False])
@subcases("name", [*LAYERS, "large"])
def test_inputs_and_results_may_have_stand_ins(name, exact):
    layer, x = quantized("linear" if name == "large" else name, FORMATS[1])
    if name == "large":  # multiplied from codes
        layer, x = q.QuantLinear(160, 128, config=layer.spec).eval(), torch.randn(3, 160)
    watch = Watch()
    packed = pack(layer, exact=exact).eval()
    with torch.no_grad():
        expected = packed(x)
        packed.spec = packed.spec.with_quantizers(data_in=watch, data_out=Affine())
        assert torch.equal(packed(x), expected * -3 + 1)
    assert [torch.equal(seen, x) for seen in watch.seen] == [True] * x.is_floating_point()


def test_a_stand_in_has_no_codes():
    layer = q.QuantLinear(4, 4, config=QuantSpec(weight=Affine())).eval()
    assert why_not_packable(layer) == "has Affine instead of a number format for its weight"
    with pytest.raises(ConfigError, match="pack: the QuantLinear has Affine instead"):
        pack(layer)
    mixed = q.QuantLinear(4, 4, config=QuantSpec(weight=Binary(), bias=Affine())).eval()
    packed, x = pack(mixed, exact=True), torch.randn(2, 4)
    assert list(packed.packed_shapes) == ["weight"] and torch.equal(packed(x), mixed(x))


def test_a_bias_without_a_format_stays_a_parameter():
    layer = q.QuantLinear(64, 8, config={"weight": {"name": "mxint"}}).eval()
    packed = pack(layer, exact=True).eval()
    assert packed.bias is layer.bias and [name for name, _ in packed.named_parameters()] == ["bias"]
    x = torch.randn(3, 64)
    assert torch.equal(packed(x), layer(x))
    bare = pack(q.QuantLinear(64, 8, bias=False, config={"weight": {"name": "nvfp4"}}))
    assert bare.bias is None
    assert list(bare.state_dict()) == ["weight_codes", "weight_scales", "weight_tensor_scale"]


def test_the_layer_that_was_packed_is_left_alone():
    layer, x = quantized("linear", FORMATS[13])
    before, keys = layer(x), list(layer.state_dict())
    pack(layer)
    assert torch.equal(layer(x), before) and list(layer.state_dict()) == keys
    assert isinstance(layer.weight, nn.Parameter)


def test_copies_pickles_files_and_state_dicts_keep_every_bit(tmp_path):
    layer, x = quantized("linear", FORMATS[17])
    packed = pack(layer, exact=True).eval()
    assert torch.equal(copy.deepcopy(packed)(x), layer(x))
    assert torch.equal(pickle.loads(pickle.dumps(packed))(x), layer(x))
    buffer = io.BytesIO()
    torch.save(packed.state_dict(), buffer)
    buffer.seek(0)
    save_file(packed.state_dict(), tmp_path / "layer.safetensors")
    for state in (torch.load(buffer, weights_only=True), load_file(tmp_path / "layer.safetensors")):
        other = pack(quantized("linear", FORMATS[17])[0], exact=True).eval()
        assert not torch.equal(other(x), layer(x))
        # safetensors keeps no metadata, so that the format of the codes is not known.
        named = hasattr(state, "_metadata")
        forget_notices()
        with nullcontext() if named else pytest.warns(match="is assumed"):
            other.load_state_dict(state)
        assert torch.equal(other(x), layer(x))
    older = pickle.loads(pickle.dumps(packed))
    del vars(older)["packed_exact"]
    torch.testing.assert_close(older(x), layer(x))
    with pytest.raises(RuntimeError, match="the state dict has its values: assign them"):
        packed.load_state_dict(layer.state_dict())


@pytest.fixture
def decoded(monkeypatch):
    """The parameters that are decoded."""
    names = []
    decode = PackedLinear._decode
    monkeypatch.setattr(
        PackedLinear, "_decode", lambda self, name, x: names.append(name) or decode(self, name, x)
    )
    return names


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_small_parameters_are_decoded_once(mode, decoded, monkeypatch):
    layer, x = quantized("linear", FORMATS[17])
    packed = pack(layer).eval()
    with mode():
        outputs = [packed(x) for _ in range(3)]
    assert decoded == ["weight", "bias"]
    assert all(torch.equal(y, layer(x)) for y in outputs)
    assert not packed.weight.requires_grad and not packed.weight.is_inference()
    monkeypatch.setattr("chop.nn.packed.base.SMALL", layer.weight.numel() - 1)
    kept = packed.bias
    assert packed.weight is not packed.weight and packed.bias.data_ptr() == kept.data_ptr()
    assert decoded == ["weight", "bias", "weight", "weight"]


def test_what_is_kept_is_dropped_when_the_codes_change(decoded):
    layer, x = quantized("linear", FORMATS[3])
    other = pack(quantized("linear", FORMATS[3])[0]).eval()
    packed = pack(layer).eval()
    unused = len(pickle.dumps(packed))
    before = packed(x)
    assert len(pickle.dumps(packed)) == unused
    copied, pickled = copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))
    packed.load_state_dict(other.state_dict())
    assert torch.equal(packed(x), other(x)) and not torch.equal(packed(x), before)
    assert torch.equal(copied(x), before) and torch.equal(pickled(x), before)
    with torch.no_grad():
        packed.weight_scales.mul_(2)
    assert torch.equal(packed.weight, 2 * other.weight)
    packed.quantize("weight", packed.weight).mul_(0)  # an operator that writes into its operand
    assert torch.equal(packed.weight, 2 * other.weight)
    packed.weight_codes = other.weight_codes.roll(1)
    assert not torch.equal(packed.weight, 2 * other.weight)
    copied.weight_codes.data = other.weight_codes
    copied.weight_scales.data = other.weight_scales
    assert torch.equal(copied.weight, other.weight)
    assert copied.double().weight.dtype == torch.float64
    copied.quantize("weight", copied.weight).add_(1)
    decoded.clear()
    assert torch.equal(copied.float().weight, other.weight) and decoded == ["weight"]
    assert copied.to("meta").weight.is_meta


@pytest.mark.filterwarnings("ignore:the state dict has no format for the codes of 'weight'")
def test_writes_to_codes_of_inference_mode_are_detected(decoded):
    layer, x = quantized("linear", FORMATS[0])
    with torch.inference_mode():
        packed = pack(layer).eval()
        moved = packed.load_state_dict(
            {name: part.clone() for name, part in packed.state_dict().items()}, assign=True
        )
        assert not moved.missing_keys and packed.weight_codes.is_inference()
        packed(x)
        packed.weight_codes.zero_()
        assert (packed.weight == 0).all()
    assert decoded.count("weight") == 2


def test_a_model_loaded_in_inference_mode_is_decoded_once(decoded):
    """Its tensors have no write counter; layers that share one still share it afterwards."""
    layer, x = quantized("linear", FORMATS[0])
    with torch.inference_mode():
        packed = copy.deepcopy(pack(layer).eval())
        tied = copy.deepcopy(packed)
        tied._buffers.update(packed._buffers)
        assert packed.weight_codes.is_inference()
        decoded.clear()
        first = packed(x)
        assert torch.equal(packed(x), first) and torch.equal(tied(x), first)
        assert packed.weight_codes is tied.weight_codes
        packed.weight_codes.zero_()
        assert torch.equal(tied(x), packed(x)) and not torch.equal(tied(x), first)
    assert torch.equal(packed(x), tied(x))
    assert decoded.count("weight") <= 4


def test_tensors_of_inference_mode_stay_the_same_objects():
    """They may be shared with another module, held elsewhere, moved and trained."""
    layer, x = quantized("linear", FORMATS[0])
    layer.spec = QuantSpec(weight=layer.spec.weight)
    with torch.inference_mode():
        packed, tied = copy.deepcopy(pack(layer).eval()), copy.deepcopy(pack(layer).eval())
        tied._buffers.update(packed._buffers)
        tied._parameters.update(packed._parameters)
        packed.bias.note, codes = "shared", packed.weight_codes
        other = nn.ParameterDict({"bias": packed.bias})
        first = packed(x)
        assert packed.bias is other["bias"] and packed.bias.note == "shared"
        assert packed.weight_codes is codes and not codes.is_inference()
        codes.zero_()
        assert not torch.equal(packed(x), first)
        codes.data = torch.full_like(codes, 3)
        second = tied(x)
        assert torch.equal(packed(x), second)
        for each in (packed, tied):
            torch.testing.assert_close(each.double()(x.double()), second.double())
    packed(x.double()).sum().backward()
    assert other["bias"].grad.tolist() == [3.0] * 9


def test_parameters_with_weak_references_are_not_exchanged():
    layer, x = quantized("linear", FORMATS[0])
    layer.spec = QuantSpec(weight=layer.spec.weight)
    with torch.inference_mode():
        packed = copy.deepcopy(pack(layer).eval())
        bias = packed.bias.view(-1)
        holder = weakref.ref(packed.bias)
        first = packed(x)
        assert torch.equal(packed(x), first) and holder() is packed.bias
        packed.bias.add_(1)
        assert torch.equal(bias, packed.bias) and not torch.equal(packed(x), first)


@pytest.mark.parametrize("scales", ["weight_scales", "weight_tensor_scale"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_changes_of_dtype_keep_the_codes_and_the_scales(dtype, scales):
    layer, x = quantized("linear", {"name": "nvfp4"} if "tensor" in scales else FORMATS[3])
    packed = pack(layer, exact=True).eval()
    exact = packed.weight
    moved = copy.deepcopy(packed).to(dtype)
    assert moved.weight_codes.dtype == torch.uint8
    assert getattr(moved, scales).dtype == torch.float32
    assert moved.weight.dtype == dtype == moved(x.to(dtype)).dtype
    assert torch.equal(moved.weight.float().to(dtype), exact.to(dtype))
    assert torch.equal(moved.to(torch.float32).weight, exact)


def test_changes_of_device():
    packed = pack(quantized("linear", FORMATS[3])[0])
    meta = copy.deepcopy(packed).to("meta")
    assert meta.weight_codes.is_meta and meta.weight_scales.is_meta and meta.weight.is_meta
    assert meta.to_empty(device="cpu").weight.shape == packed.weight.shape
    assert copy.deepcopy(packed).half().to("meta").weight.dtype == torch.float16


def test_low_precision_layers_are_packed_in_their_dtype():
    layer, x = quantized("linear", FORMATS[13])
    layer, x = layer.bfloat16(), x.bfloat16()
    packed = pack(layer, exact=True).eval()
    assert packed.weight.dtype == torch.bfloat16
    assert torch.equal(packed(x), layer(x))


@pytest.mark.parametrize("name", ["linear", "embedding"])
@pytest.mark.sampled(1)
def test_compiles_without_a_break(name):
    layer, x = quantized(name, FORMATS[14])
    packed = torch.compile(pack(layer, exact=True).eval(), fullgraph=True, backend="aot_eager")
    assert torch.equal(packed(x), layer(x))
    torch.library.opcheck(
        torch.ops.chop.decode.default,
        (torch.zeros(32, dtype=torch.uint8), None, None, [4, 8], INTEGER.key, torch.float32),
    )


INTEGER = parse_format(FORMATS[0])


def test_scales_that_are_learned_settle_first():
    settings = {"weight": {"name": "scale_integer", "width": 8}, "gradient": "lsq"}
    layer = q.QuantLinear(16, 8, config=settings)
    layer(torch.randn(2, 16))
    with pytest.raises(ConfigError, match=r"learns its scales: layer.freeze_scales\(\)"):
        pack(layer)
    x, settled = torch.randn(3, 16), layer.freeze_scales().eval()
    assert torch.equal(pack(settled, exact=True).eval()(x), layer.eval()(x))


def test_training_is_refused_and_unpacking_allows_it():
    layer, x = quantized("linear", FORMATS[13])
    packed = pack(layer, exact=True).train()
    with pytest.raises(ConfigError, match="PackedLinear cannot be trained: its weight is stored"):
        packed(x)
    with torch.no_grad():
        assert torch.equal(packed(x), layer(x))
    x.requires_grad_()
    packed.eval()(x).sum().backward()  # gradients pass through to what lies before
    assert torch.allclose(x.grad, packed.weight.sum(0).expand_as(x))
    trainable = packed.unpack()
    trainable.train()(x).sum().backward()
    assert trainable.weight.grad is not None and trainable.weight.grad.abs().sum() > 0


def test_frozen_parameters_come_back_frozen():
    layer, _ = quantized("linear", FORMATS[13])
    layer.weight.requires_grad_(False)
    again = pack(layer).unpack()
    assert not again.weight.requires_grad and again.bias.requires_grad


def test_a_pruned_layer_packs_what_it_computes_with_and_stays_pruned():
    layer, x = quantized("linear", FORMATS[14])
    layer.register_buffer("weight_mask", torch.rand(9, 40) > 0.5)
    packed = pack(layer, exact=True).eval()
    assert torch.equal(packed(x), layer(x))
    assert "weight_mask" not in packed.state_dict()
    assert (packed.weight[~layer.weight_mask] == 0).all()
    again = packed.unpack().eval()
    assert again.is_pruned and not (again.weight_mask & ~layer.weight_mask).any()
    assert torch.equal(again(x), layer(x))


def test_what_cannot_be_packed_says_why():
    layer, _ = quantized("linear", {"name": "binary"})
    layer.register_buffer("weight_mask", torch.rand(9, 40) > 0.5)
    with pytest.raises(ConfigError, match="QuantLinear has a pruning mask, but binary.*zero"):
        pack(layer)
    layer, _ = quantized("linear", FORMATS[0])
    with torch.no_grad():
        layer.weight[0, 0] = torch.nan
    assert "non-finite values in its weight" in why_not_packable(layer)
    drawn = QuantSpec(weight=Binary(stochastic=True))
    assert "stochastic rounding" in why_not_packable(q.QuantLinear(8, 8, config=drawn))
    waiting = {"data_in": {"name": "mxint"}}
    assert "no format for its weight" in why_not_packable(q.QuantLinear(8, 8, config=waiting))
    assert "no format for its weight" in why_not_packable(nn.Linear(8, 8))
    adapted = LoraLinear.around(quantized("linear", FORMATS[0])[0])
    assert "LoraLinear, which has no packed form" in why_not_packable(adapted)
    assert "already packed" in why_not_packable(pack(quantized("linear", FORMATS[0])[0]))
    with pytest.raises(ConfigError, match="from a QuantLinear by pack\\(layer\\)"):
        PackedLinear(4, 4)


def test_bound_classes_and_other_formats():
    layer = LinearMXInt(64, 8).eval()
    packed = pack(layer)
    assert type(packed) is PackedLinear and type(packed.unpack()) is q.QuantLinear
    other = packed.with_spec(QuantSpec.uniform(INTEGER))
    assert type(other) is q.QuantLinear and other.spec.weight == INTEGER
    assert torch.equal(other.weight, packed.weight)
    adapted = LoraLinear.around(packed)
    assert torch.equal(adapted.weight, packed.weight) and adapted.rank == 8
    assert type(PackedLinear.from_float(nn.Linear(64, 8), layer.spec)) is PackedLinear


@pytest.mark.parametrize("settings", [FORMATS[14], FORMATS[15]], ids=str)
def test_embeddings_look_up_single_rows(settings, monkeypatch):
    layer, _ = quantized("embedding", settings)
    packed = pack(layer, exact=True).eval()
    rows = []
    decode = PackedEmbedding._decode
    monkeypatch.setattr(
        PackedEmbedding, "_decode", lambda self, *a: rows.append(decode(self, *a)) or rows[-1]
    )
    monkeypatch.setattr("chop.nn.packed.base.SMALL", 0)
    for index in (torch.tensor([[3, 49], [0, 3]]), torch.arange(50).repeat(2), torch.tensor(7)):
        assert torch.equal(packed(index), layer(index))
    by_rows = settings is FORMATS[14]
    assert [len(x) for x in rows] == ([4, 50, 1] if by_rows else [50, 50, 50])
    monkeypatch.setattr("chop.nn.packed.base.SMALL", packed.packed_shapes["weight"].numel())
    rows.clear()
    for index in (torch.tensor([[3, 49], [0, 3]]), torch.arange(50)):
        assert torch.equal(packed(index), layer(index))
    assert [len(x) for x in rows] == [50]
    for wrong in (50, -1):
        with pytest.raises((IndexError, RuntimeError)):
            packed(torch.tensor([wrong]))


def test_state_is_read_in_a_fresh_process(tmp_path):
    layer, x = quantized("linear", FORMATS[14])
    packed = pack(layer, exact=True).eval()
    (tmp_path / "packed.pickle").write_bytes(pickle.dumps((packed, x, layer(x))))
    script = tmp_path / "read.py"
    script.write_text(
        "import pickle, torch; torch.set_num_threads(1)\n"
        f"packed, x, y = pickle.load(open({str(tmp_path / 'packed.pickle')!r}, 'rb'))\n"
        "print(torch.equal(packed(x), y))"
    )
    assert programs.run(script).stdout.strip() == "True"


@pytest.mark.parametrize("name", ["mxint:width=4", "nvfp4", "8.5", "binary"])
def test_codes_made_in_parts_are_those_of_the_whole(name, monkeypatch):
    stored_in = parse_format_string(name)
    layer = q.QuantLinear.from_float(nn.Linear(64, 37), QuantSpec(weight=stored_in)).eval()
    whole = pack(layer)
    monkeypatch.setattr(encoding, "PART", 64 * 5)
    parts = pack(layer)
    buffers = dict(whole.named_buffers())
    assert buffers and all(torch.equal(x, buffers[key]) for key, x in parts.named_buffers())
    assert torch.equal(parts.weight, layer.quantize("weight", layer.weight))
    layer.weight.data[36, 3] = math.nan
    with pytest.raises(ConfigError, match="non-finite"):
        pack(layer)
