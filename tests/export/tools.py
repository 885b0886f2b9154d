"""Folders as other tools write them, each by its own definition, with the values they stand for."""

import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.export.decoders import decoder


def bits_in_words(codes, bits):
    """The reference, a row at a time: one integer of Python, cut into words of 32 bits."""
    rows = []
    for row in codes.tolist():
        whole = sum(int(code) << bits * at for at, code in enumerate(row))
        words = [whole >> 32 * at & 0xFFFFFFFF for at in range(-(-len(row) * bits // 32))]
        rows.append(words)
    return np.array(rows, dtype=np.uint32).view(np.int32)


def change_tensors(folder, change):
    """Changes a dictionary of the tensors of a folder, all of them in one file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder, **values):
    """Changes values of `config.json`."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def get_settings(folder):
    """What `config.json` says of quantization."""
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def linear_layers(model):
    return {
        path: layer
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and path != "lm_head"
    }


def write_folder(folder, settings, get_parts, kind="Llama", dtype=torch.float32):
    """A decoder whose linear layers are coded, and the layers' values by path.

    `get_parts` makes of a generator and a layer's sizes (inputs, outputs) its tensors and its
    values, (inputs, outputs), of numpy or of torch.
    """
    model = decoder(kind, dtype=dtype)
    model.save_pretrained(folder)
    tensors, values, draw = load_file(folder / "model.safetensors"), {}, np.random.default_rng(0)
    for path, layer in linear_layers(model).items():
        parts, dense = get_parts(draw, layer.in_features, layer.out_features)
        del tensors[f"{path}.weight"]
        tensors |= {f"{path}.{end}": torch.as_tensor(x).contiguous() for end, x in parts.items()}
        values[path] = torch.as_tensor(dense).T.float().contiguous()
    change_config(folder, quantization_config=settings)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return values


def dense_logits(values, ids, kind="Llama"):
    """Of a float decoder with these weights."""
    model = decoder(kind)
    for path, value in values.items():
        # In torch's own memory: sums depend on how a tensor is aligned.
        model.get_submodule(path).weight.data = value.clone()
    with torch.no_grad():
        return model(input_ids=ids).logits


def gptq_parts(bits, group, symmetric=True, added=1, in_bfloat16=False):
    """Of GPTQModel: codes packed along inputs, zero points along outputs and less `added`."""

    def get_parts(draw, inputs, outputs):
        size = inputs if group == -1 else group
        groups = -(-inputs // size)
        codes = draw.integers(0, 2**bits, (inputs, outputs))
        scales = (draw.random((groups, outputs)) * 0.01 + 1e-3).astype(np.float16)
        if in_bfloat16:  # numbers that it has, too
            scales = torch.from_numpy(scales).bfloat16().half().numpy()
        zeros = np.full((groups, outputs), 2 ** (bits - 1))
        if not symmetric:
            zeros = draw.integers(1, 2**bits, (groups, outputs))
        order = np.arange(inputs) // size
        dense = scales[order].astype(np.float64) * (codes - zeros[order])
        return {
            "qweight": np.ascontiguousarray(bits_in_words(codes.T, bits).T),
            "qzeros": bits_in_words(zeros - added, bits),
            "scales": scales,
            "g_idx": order.astype(np.int32),
        }, dense

    return get_parts


def gptq_settings(bits, group, **changes):
    settings = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": False,
        "sym": True,
        "checkpoint_format": "gptq",
    }
    return settings | changes


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq_words(codes):
    """Of AutoAWQ: eight outputs in a word, in an order of their own."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), dtype=np.uint32)
    for place, output in enumerate(AWQ_ORDER):
        words |= codes[:, output::8].astype(np.uint32) << np.uint32(4 * place)
    return words.view(np.int32)


def awq_parts(group, symmetric=False, scale_dtype=np.float16, coarse=False):
    def get_parts(draw, inputs, outputs):
        groups = -(-inputs // group)
        codes = draw.integers(0, 16, (inputs, outputs))
        scales = (draw.random((groups, outputs)) * 0.01 + 1e-3).astype(scale_dtype)
        if coarse:
            scales = (2.0 ** draw.integers(-9, -5, (groups, outputs))).astype(scale_dtype)
        zeros = draw.integers(0, 16, (groups, outputs)) * (not symmetric) + 8 * symmetric
        order = np.arange(inputs) // group
        dense = scales[order].astype(np.float64) * (codes - zeros[order])
        parts = {"qweight": awq_words(codes), "qzeros": awq_words(zeros), "scales": scales}
        return parts, dense

    return get_parts


def awq_settings(group, **changes):
    settings = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
    }
    return settings | changes


def integers(bits=4, group=16, scale_dtype=torch.bfloat16, symmetric=True, words_of=bits_in_words):
    """Codes in words and a scale for a group, as llm-compressor writes them."""

    def get_parts(draw, inputs, outputs):
        codes = torch.from_numpy(draw.integers(0, 2**bits, (outputs, inputs)))
        scale = torch.from_numpy(draw.random((outputs, inputs // group)) * 0.1 + 0.01)
        scale = scale.to(scale_dtype)
        zeros = torch.full(scale.shape, 2 ** (bits - 1))
        parts = {"weight_packed": torch.from_numpy(words_of(codes, bits))}
        if not symmetric:
            zeros = torch.from_numpy(draw.integers(0, 2**bits, tuple(scale.shape)))
            words = words_of(zeros.T, bits).T
            parts["weight_zero_point"] = torch.from_numpy(np.ascontiguousarray(words))
        parts |= {"weight_scale": scale, "weight_shape": torch.tensor([outputs, inputs])}
        order = torch.arange(inputs) // group
        return parts, ((codes - zeros[:, order]) * scale.double()[:, order]).T

    return get_parts


def floats(strategy="channel", side=16, inputs_scale=None):
    """Codes of e4m3, with the scales of a strategy."""

    def get_parts(draw, inputs, outputs):
        codes = torch.from_numpy(draw.normal(size=(outputs, inputs)) * 100).to(torch.float8_e4m3fn)
        sizes = {
            "channel": (outputs, 1),
            "tensor": (1,),
            "block": (outputs // side, inputs // side),
        }
        scale = torch.from_numpy(draw.random(sizes[strategy]) * 0.01 + 1e-3).float()
        parts = {"weight": codes, "weight_scale": scale}
        if inputs_scale is not None:
            parts["input_scale"] = torch.tensor([inputs_scale()])
        whole = scale.double()
        if strategy == "block":
            whole = whole.repeat_interleave(side, 0).repeat_interleave(side, 1)
        return parts, (codes.double() * whole).T

    return get_parts


def groups(stored, weights, inputs=None, target="Linear"):
    """Settings of compressed-tensors with one group."""
    group = {"targets": [target], "weights": weights, "input_activations": inputs, "format": stored}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def packed(bits=4, group=16, **changes):
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group}
    return groups("pack-quantized", {**weights, **changes})
