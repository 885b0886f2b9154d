"""Small decoders for tests of export, quantized by operator or by module."""

import functools

import torch

from chop import MaseGraph, passes
from chop.formats import parse_format_string

SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def decoder(kind, tied=False, dtype=torch.float32):
    """A decoder of that kind of transformers, "Llama" or "Qwen2", with random weights."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **HEADS, tie_word_embeddings=tied)
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()


@functools.cache
def captured(kind, tied=False):
    """The graph of a decoder, which no test changes: capturing is what costs most."""
    return MaseGraph(decoder(kind, tied))


def quantized(model, formats, by="type"):
    """A graph with weights in formats, by operator or path, of a model or its graph."""
    rules = {
        name: {"config": {"weight": parse_format_string(text)}} for name, text in formats.items()
    }
    mg = model if isinstance(model, MaseGraph) else MaseGraph(model)
    return passes.quantize_transform_pass(mg, {"by": by, **rules})[0]


def rounded(mg):
    """The model of its own class with the values that codes stand for, and their names."""
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    exact, _ = passes.pack_transform_pass(packed, {"unpack": True, "silent": True})
    return exact.to_module().eval()


def tokens():
    """Two rows of nine tokens."""
    return torch.randint(0, SIZES["vocab_size"], (2, 9), generator=torch.Generator().manual_seed(1))


def logits(model, ids):
    """Of a model on tokens."""
    with torch.no_grad():
        return model(input_ids=ids).logits
