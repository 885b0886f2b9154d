"""4-bit weights of bitsandbytes become packed layers with its own values."""

import json
import zlib

import pytest
import torch

from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.bitsandbytes_reader import stored
from chop.export.foreign.readers import get_reader
from chop.formats import NF4, Encoded
from chop.formats.nf4 import TABLES, nested_table
from chop.formats.packing import unpack_bits
from chop.models import load_model
from chop.nn.packed import PackedLinear
from tests.export.decoders import logits, tokens
from tests.export.tools import change_config, change_tensors, linear_layers, write_folder

# bitsandbytes 0.50.2: quantize_4bit(0.05 * torch.randn(shape)) after torch.manual_seed(0), and the
# CRC-32 of the values that its default backend decodes.
RECORDED = {
    "nested nf4": (
        ("nf4", (4, 64), "ffc21f1c", (0.04705838859081268, 0.12346674501895905), 682670994),
        "4466a96183887bb6329a936da568cca4575897997a679e325ab866966acf33d55bcc2f5915553c6b7a47b5c96f17"
        "337ad2990168879994b36077b93745e58cbd353abaf278416259689d996683083989c296d4cb986952917515d8ec"
        "23e9b2214aaa8c5d72abb1b4d8dc1d41de3b97265e896b51644c2cd01082e6b67dc438fa",
    ),
    "blocks that span rows": (
        ("nf4", (2, 96), "249e2e3e57cd053e4fbfc73d", None, 3356358288),
        "4466a96183887bb6329a936da568cca4575897997a679e325ab866966acf33d55bcc2f5915553c6b7a47b5c96f17"
        "337ad2990168879994b36077b93745e58cbd353abaf278416259689d996683083989c296d4cb986952917515d8ec"
        "23e9b221",
    ),
    "nested fp4": (
        ("fp4", (2, 96), "ff4e04", (0.03761708736419678, 0.13290804624557495), 3965894667),
        "cc9e76ea6c661449cd676de57e91457fe1e16166979162dde7419e6ee753dc5ef455d3e6afeec59497c84e46e3a9"
        "cc172d66bae661666c4c9b9946c9fe2e1545dfc7473d91ca9de6e16266e96cb1c6165d695f446696ed6a9eae5124"
        "dc264daa",
    ),
}


def plain_bytes(text):
    return torch.tensor([*bytes.fromhex(text)], dtype=torch.uint8)


def parts_by_hand(codes, absmax, kind, shape, nested, storage=torch.uint8):
    """Tensors of a weight as bitsandbytes names them; `nested` is a scale and an offset."""
    state = {"quant_type": kind, "blocksize": 64, "dtype": "float32", "shape": [*shape]}
    parts = {
        "weight": codes.view(storage).view(-1, 1),
        "weight.absmax": absmax,
        "weight.quant_map": torch.tensor(TABLES[kind]),
    }
    if nested is not None:
        state |= {"nested_blocksize": 256, "nested_offset": nested[1]}
        parts["weight.nested_absmax"] = torch.tensor(nested[0]).view(-1)
        parts["weight.nested_quant_map"] = torch.tensor(nested_table())
    document = torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8)
    return parts | {f"weight.quant_state.bitsandbytes__{kind}": document}


def recorded(name):
    (kind, shape, absmax, nested, crc), codes = RECORDED[name]
    scales = plain_bytes(absmax)
    scales = scales.view(torch.float32) if nested is None else scales
    return parts_by_hand(plain_bytes(codes), scales, kind, shape, nested), shape, crc


def decoded(one):
    shape = torch.Size(one.shape)
    return one.number_format.decode(Encoded(one.codes, shape, torch.float32, one.scales))


@pytest.mark.parametrize("name", RECORDED)
def test_values_are_those_of_bitsandbytes(name):
    parts, shape, crc = recorded(name)
    one = stored("up", parts)
    assert zlib.crc32(decoded(one).numpy().tobytes()) == crc
    assert one.shape == shape
    assert one.number_format.nested == (name == "nested nf4")
    packed = parts["weight"].view(-1)
    in_order = torch.stack([packed >> 4, packed & 15], 1).view(-1)
    assert torch.equal(unpack_bits(one.codes, 4, in_order.numel()), in_order)


def test_encoding_gives_the_codes_of_bitsandbytes():
    torch.manual_seed(0)
    x = torch.randn(4, 64) * 0.05
    (_, _, absmax, nested, _), codes = RECORDED["nested nf4"]
    packed = plain_bytes(codes)
    plain = NF4().encode(x)
    assert torch.equal(
        unpack_bits(plain.codes, 4, 256), torch.stack([packed >> 4, packed & 15], 1).view(-1)
    )
    assert torch.equal(plain.scales, x.abs().amax(1))
    scales = NF4(nested=True).encode(x).scales
    assert torch.equal(scales[:4], plain_bytes(absmax))
    assert torch.equal(scales[4:].clone().view(torch.float32), torch.tensor(nested))


def get_parts(nested, storage=torch.uint8):
    def draw_parts(draw, inputs, outputs):
        count = inputs * outputs
        codes = torch.from_numpy(draw.integers(0, 256, count // 2, "uint8"))
        blocks = -(-count // 64)
        scales = torch.from_numpy(draw.random(blocks, "float32")) * 0.1
        if nested:
            scales = torch.from_numpy(draw.integers(0, 256, blocks, "uint8"))
            table = torch.tensor(nested_table())[scales.int()]
            factors = torch.full((-(-blocks // 256),), 0.03)
            floats = table * 0.03 + torch.tensor(0.05)
        else:
            factors, floats = None, scales
        values = torch.tensor(TABLES["nf4"])[torch.stack([codes >> 4, codes & 15], 1).int()].view(
            -1
        )
        dense = (values * floats.repeat_interleave(64)[:count]).view(outputs, inputs)
        own = (factors.tolist(), 0.05) if nested else None
        return parts_by_hand(codes, scales, "nf4", (outputs, inputs), own, storage), dense.t()

    return draw_parts


SETTINGS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
def test_folders_become_packed_models_with_the_same_values(nested, storage, tmp_path):
    values = write_folder(tmp_path, SETTINGS, get_parts(nested, storage))
    model = load_model(tmp_path)
    found = {x: y for x, y in model.named_modules() if isinstance(y, PackedLinear)}
    assert found.keys() == values.keys() == linear_layers(model).keys()
    for path, layer in found.items():
        assert torch.equal(layer.weight, values[path]), path
    before = logits(model, tokens())
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load_model(tmp_path / "again"), tokens()), before)


def test_folders_of_eight_bits_are_left_to_transformers(tmp_path):
    write_folder(tmp_path, SETTINGS, get_parts(False))
    assert get_reader(tmp_path).name == "bitsandbytes"
    change_config(tmp_path, quantization_config={"_load_in_4bit": True, "load_in_4bit": True})
    assert get_reader(tmp_path).name == "bitsandbytes"
    change_config(tmp_path, quantization_config=SETTINGS | {"load_in_8bit": True})
    assert get_reader(tmp_path) is None


@pytest.mark.parametrize(
    ("part", "value", "error", "reason"),
    [
        ("weight.quant_map", torch.ones(16), ConfigError, "not the table of 'nf4'"),
        ("weight.absmax", torch.ones(3), CheckpointError, "3 scales instead of 4"),
        ("weight.absmax", torch.full((4,), torch.nan), CheckpointError, "NaN or infinite"),
        ("weight.nested_absmax", torch.ones(2), CheckpointError, "2 nested scales"),
        ("weight", torch.ones(3, 1, dtype=torch.uint8), CheckpointError, "3 bytes for 256 codes"),
        (
            "weight.quant_state.bitsandbytes__nf4",
            torch.tensor([*b'{"quant_type": "nf5"}'], dtype=torch.uint8),
            ConfigError,
            "expected one of",
        ),
        (
            "weight.quant_state.bitsandbytes__nf4",
            torch.tensor([*b"\xff{"], dtype=torch.uint8),
            CheckpointError,
            "does not fit",
        ),
    ],
)
def test_broken_weights_are_refused(part, value, error, reason):
    parts, _, _ = recorded("nested nf4")
    with pytest.raises(error, match=reason):
        stored("up", parts | {part: value})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quant_type": []}, r"expected one of \['nf4', 'fp4'\], got \[\]"),
        ({"nested_offset": None}, "offset None"),
        ({"nested_offset": [1.0]}, r"offset \[1.0\]"),
        ({"nested_offset": 10**400}, "offset 1000"),
        ({"nested_offset": float("inf")}, "NaN or infinite"),
        ({"nested_blocksize": "256"}, "nested_blocksize is '256'"),
        ({"shape": [2**20, 2**20]}, "128 bytes for 1099511627776 codes"),
    ],
)
def test_broken_states_are_refused(changes, reason):
    parts, _, _ = recorded("nested nf4")
    name = "weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(parts[name].tolist())) | changes
    parts[name] = torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8)
    with pytest.raises((CheckpointError, ConfigError), match=reason):
        stored("up", parts)


def test_overflowing_scales_are_refused():
    parts, _, _ = recorded("nested nf4")
    largest = torch.tensor([torch.finfo(torch.float32).max])
    parts["weight.absmax"].fill_(255)
    parts = parts_by_hand(
        *(parts["weight"], parts["weight.absmax"], "nf4", (4, 64)), (largest.tolist(), 3e38)
    )
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        stored("up", parts)


@pytest.mark.parametrize("shape", [(1, 48), (1, 100), (3, 48), (7, 3), (1, 1)])
def test_groups_have_a_scale_each(shape):
    count = shape[0] * shape[1]
    codes, absmax = torch.arange(count + count % 2) % 16, torch.rand(-(-count // 64))
    packed = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)
    one = stored("up", parts_by_hand(packed, absmax, "nf4", shape, None))
    values = torch.tensor(TABLES["nf4"])[codes[:count]] * absmax.repeat_interleave(64)[:count]
    assert torch.equal(decoded(one), values.view(shape))
    assert len(one.scales) == one.number_format.groups.count(shape)


def test_weights_without_their_state_are_refused(tmp_path):
    write_folder(tmp_path, SETTINGS, get_parts(False))
    name = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"
    change_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match="0 tensors weight.quant_state"):
        load_model(tmp_path)
