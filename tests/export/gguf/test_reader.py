"""Files of GGUF become packed layers with the values that ggml's own decoding gives."""

import logging
import multiprocessing
import os
import signal
import tempfile
import time

import numpy as np
import pytest
import torch
import transformers

from chop import MaseGraph, passes
from chop.errors import CheckpointError, ConfigError, WriteError
from chop.export.foreign import loading
from chop.export.gguf import reader as gguf_reader
from chop.export.gguf import target as writer
from chop.export.gguf.blocks import Blocks
from chop.export.gguf.header import read_header
from chop.export.gguf.k_blocks import pack_k_blocks
from chop.export.gguf.stored import read_blocks
from chop.export.gguf.target import TARGET
from chop.formats import Encoded, KQuant
from chop.models import load_model, read_config
from tests.export.gguf import gguf_bytes
from tests.export.gguf.test_target import captured, packed_layers, quantized, read_back
from tests.limits import files_up_to

gguf = pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")


def drawn(name, rows, columns, scale=None):
    """Random blocks of a type: uint8 (rows, bytes of a row), with float16 scales of either sign."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (rows, columns // block, size), np.uint8)
    if scale is None:
        scale = np.random.default_rng(1).normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
    factors = np.asarray(scale, np.float16)[..., None].view(np.uint8)
    for at in {"Q2_K": (-4, -2), "Q3_K": (-2,), "Q6_K": (-2,), "Q4_K": (0, 2), "Q5_K": (0, 2)}.get(
        name, (0,)
    ):
        blocks[..., at % size : at % size + 2] = factors
    return blocks


def decoded(stored, shape):
    parts = stored.scales, stored.tensor_scale
    encoded = Encoded(stored.codes, torch.Size(shape), torch.float32, *parts)
    return stored.number_format.decode(encoded).numpy()


def dequantized(name, blocks):
    """As ggml does, by the library."""
    kind = gguf.GGMLQuantizationType[name]
    return gguf.quants.dequantize(blocks.reshape(len(blocks), -1), kind)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0"])
def test_blocks_of_integers_keep_every_value(name):
    blocks = drawn(name, 5, 512)
    stored = read_blocks(name, torch.from_numpy(blocks))
    assert stored.number_format.name == "scale_integer"  # float16 scales are no bfloat16 numbers
    assert np.array_equal(decoded(stored, (5, 512)), dequantized(name, blocks))
    coarse = drawn(name, 5, 512, scale=np.full((5, 512 // gguf_block(name)), -0.25))
    stored = read_blocks(name, torch.from_numpy(coarse))
    assert stored.number_format.name == "group_integer"
    assert np.array_equal(decoded(stored, (5, 512)), dequantized(name, coarse))


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6])
def test_k_quants_keep_every_value_and_their_size(width):
    name = f"Q{width}_K"
    blocks = drawn(name, 5, 768)
    stored = read_blocks(name, torch.from_numpy(blocks))
    assert stored.number_format == KQuant(width)
    assert np.array_equal(decoded(stored, (5, 768)), dequantized(name, blocks))
    assert stored.codes.nbytes + stored.scales.nbytes == blocks.nbytes
    encoded = Encoded(stored.codes, torch.Size((5, 768)), torch.float32, stored.scales)
    written = pack_k_blocks(KQuant(width), encoded)
    assert written.type_name == name and np.array_equal(written.data, blocks.reshape(5, -1))
    with pytest.raises(ValueError, match="NaN or infinite"):
        read_blocks(name, torch.from_numpy(drawn(name, 1, 256, scale=[[np.inf]])))


@pytest.mark.long
@pytest.mark.parametrize("width", [4, 6])
def test_k_quants_are_written_and_read_with_the_same_codes(width, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 64}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()
    rule = {"by": "type", "linear": {"config": {"weight": {"name": "k_quant", "width": width}}}}
    mg, _ = passes.quantize_transform_pass(MaseGraph(model), rule)
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    TARGET.write(mg, tmp_path / "model.gguf")
    expected, again = packed_layers(mg.model), packed_layers(load_model(tmp_path / "model.gguf"))
    assert len(again) == 8
    for path, layer in again.items():
        assert layer.spec.weight == KQuant(width)
        assert torch.equal(layer.weight_codes, expected[path].weight_codes), path
        assert torch.equal(layer.weight_scales, expected[path].weight_scales), path
    TARGET.write(MaseGraph(load_model(tmp_path / "model.gguf")), tmp_path / "again.gguf")
    one, two = (read_header(tmp_path / f"{x}.gguf").tensors for x in ("model", "again"))
    assert {name: x.type_name for name, x in one.items()} == {
        name: x.type_name for name, x in two.items()
    }


def gguf_block(name):
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0]


def test_nvfp4_keeps_every_value():
    blocks = np.random.default_rng(0).integers(0, 256, (5, 8, 36), np.uint8)
    blocks[..., :4] &= 127
    blocks[..., :4] -= blocks[..., :4] == 127
    stored = read_blocks("NVFP4", torch.from_numpy(blocks))
    assert np.array_equal(decoded(stored, (5, 512)), dequantized("NVFP4", blocks))
    for wrong in (127, 128, 255):
        blocks[2, 3, 1] = wrong
        with pytest.raises(ValueError, match="scales are not positive e4m3 numbers"):
            read_blocks("NVFP4", torch.from_numpy(blocks))


def test_five_bits_with_lowest_values():
    blocks = drawn("Q5_1", 3, 64, scale=np.full((3, 2), 0.25))
    blocks[..., 2:4] = np.full((3, 2, 1), -5.0, np.float16).view(np.uint8)
    stored = read_blocks("Q5_1", torch.from_numpy(blocks))
    assert stored.number_format.label.startswith("group_affine")
    assert np.array_equal(decoded(stored, (3, 64)), dequantized("Q5_1", blocks))


@pytest.mark.parametrize(
    ("scale", "lowest", "expected"),
    [
        (0.25, -3.0, "group_affine"),  # a zero point of 12
        (0.25, -0.390625, "group_affine"),  # of 25/16
        (0.0999755859375, -0.7998046875, "scale_integer"),  # of 8: four bits without one
        (0.0999755859375, 0.0, "scale_integer"),  # of 0, and a scale that needs float16
        (-0.25, -1.0, "group_integer"),  # of -4
        (0.25, -0.3, None),
        (0.25, 16.0, "group_integer"),  # of -64: eight bits
        (0.25, 30.0, None),  # of -120: nine bits
        (2.0**-10, -64.0, None),  # of 65536
        (2.0**-10, 6e4, None),
        (0.0, 1.0, None),
    ],
)
def test_lowest_values_become_zero_points_where_they_are_some(scale, lowest, expected):
    blocks = drawn("Q4_1", 3, 64, scale=np.full((3, 2), scale))
    blocks[..., 2:4] = np.full((3, 2, 1), lowest, np.float16).view(np.uint8)
    stored = read_blocks("Q4_1", torch.from_numpy(blocks))
    assert (expected is None) == (stored is None)
    if stored is not None:
        assert stored.number_format.name == expected
        assert np.array_equal(decoded(stored, (3, 64)), dequantized("Q4_1", blocks))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "is_packed"), [("Q4_0", True), ("IQ4_NL", False)])
def test_types_without_a_format_become_floats_and_are_told(
    name, is_packed, tmp_path, monkeypatch, caplog
):
    mg = quantized(captured("llama"))
    monkeypatch.setattr(
        writer,
        "pack_blocks",
        lambda weight: Blocks(
            name, drawn(name, weight.rows, weight.columns).reshape(weight.rows, -1)
        ),
    )
    TARGET.write(mg, tmp_path / "model.gguf")
    with caplog.at_level(logging.WARNING, "chop.export"):
        layers = packed_layers(read_back(tmp_path))
    assert len(layers) == (8 if is_packed else 0)
    assert (f"blk.0.attn_k.weight ({name})" in caplog.text) == (not is_packed)
    assert ("float32 numbers of the same values" in caplog.text) == (not is_packed)


def llama_with(path, rope, **pairs):
    """A file of llama.cpp with the frequencies of a scaled rotary embedding."""
    file = gguf_bytes.llama()
    for key, plain in pairs.items():
        file.set(f"llama.rope.{key}", plain)
    config = transformers.LlamaConfig(head_dim=16, rope_parameters={"rope_theta": 1e4, **rope})
    expected = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    if rope["rope_type"] == "llama3":
        divisors = 1e4 ** (-torch.arange(0, 16, 2) / 16) / expected
        tensor = gguf_bytes.Tensor((8,), gguf_bytes.F32, divisors.numpy().tobytes())
        file.tensors.append(("rope_freqs.weight", tensor))
    path.write_bytes(file.content())
    return expected


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_rotary_embeddings_of_llama3_are_found_in_their_divisors(factor, tmp_path):
    rope = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = llama_with(tmp_path / "model.gguf", rope)
    model = load_model(tmp_path / "model.gguf")
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected)
    assert model.config.rope_parameters["factor"] == factor


FACTOR = gguf_bytes.value(gguf_bytes.FLOAT32, 4.0)


@pytest.mark.parametrize(
    "pairs",
    [
        {"scaling.type": gguf_bytes.value(gguf_bytes.TEXT, "linear"), "scaling.factor": FACTOR},
        {"scaling.factor": FACTOR},
        {"scale_linear": FACTOR},
    ],
)
def test_linear_scaling_of_rotary_embeddings_is_read(pairs, tmp_path):
    rope = {"rope_type": "linear", "factor": 4.0}
    expected = llama_with(tmp_path / "model.gguf", rope, **pairs)
    model = load_model(tmp_path / "model.gguf")
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected)


def test_a_file_says_once_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(gguf_bytes.llama().content())
    read = []
    monkeypatch.setattr(gguf_reader, "read_header", lambda x: read.append(x) or read_header(x))
    load_model(tmp_path)
    assert read == [tmp_path / "model.gguf"]


def with_tokens(file, count):
    """A file with a vocabulary in the place of its size."""
    file.pairs = [pair for pair in file.pairs if b"vocab_size" not in pair[0]]
    tokens = b"".join(gguf_bytes.text(f"t{n}") for n in range(count))
    file.set("tokenizer.ggml.tokens", gguf_bytes.array(gguf_bytes.TEXT, count, tokens))


def test_long_arrays_are_passed_over(tmp_path, monkeypatch):
    file, size = gguf_bytes.llama(tokens=64), 2**22
    with_tokens(file, 64)
    file.set("tokenizer.ggml.precompiled_charsmap", gguf_bytes.array(0, size, bytes(size)))
    (tmp_path / "model.gguf").write_bytes(file.content())
    start = time.process_time()
    assert load_model(tmp_path).config.vocab_size == 64
    assert time.process_time() - start < 5  # as objects they take more than a minute
    monkeypatch.setattr("chop.export.gguf.header.MOST_TEXTS", 63)
    with pytest.raises(CheckpointError, match="its arrays have more than 63 texts"):
        load_model(tmp_path)


def test_other_heads_and_other_numbers_of_labels(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes.llama().content())
    model = load_model(path, num_labels=3)
    assert type(model).__name__ == "LlamaForSequenceClassification"
    assert len(packed_layers(model)) == 8 and model.score.out_features == 3
    assert read_config(str(path)).architectures == ["LlamaForCausalLM"]


@pytest.mark.parametrize("name", ["llama4", "deci", "bloom", "gemma4"])
def test_other_architectures_are_refused_without_a_guess(name, tmp_path):
    file = gguf_bytes.llama()
    file.set("general.architecture", gguf_bytes.value(gguf_bytes.TEXT, name))
    (tmp_path / "model.gguf").write_bytes(file.content())
    with pytest.raises(ConfigError, match=f"'{name}', which is not supported") as caught:
        load_model(tmp_path / "model.gguf")
    assert "did you mean" not in str(caught.value) and "llama, nemotron" in str(caught.value)


def test_a_reader_that_is_killed_leaves_no_copy_once_another_has_read(tmp_path, monkeypatch):
    path, temporary = tmp_path / "model.gguf", tmp_path / "temporary"
    TARGET.write(quantized(captured("llama")), path)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def killed():
        # When the copy is whole, and transformers is about to read it.
        loading.without_load_report = lambda: os.kill(os.getpid(), signal.SIGKILL)
        load_model(path)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [file.name for file in temporary.rglob("*.safetensors")] == ["model.safetensors"]
    load_model(path)
    assert not [*temporary.iterdir()]


def test_a_reader_without_room_for_its_copy_is_one_sentence(tmp_path, monkeypatch):
    path, temporary = tmp_path / "model.gguf", tmp_path / "temporary"
    TARGET.write(quantized(captured("llama")), path)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with files_up_to(20_000), pytest.raises(WriteError, match="temporary.*cannot be written"):
        load_model(path)
    assert not [*temporary.iterdir()]
