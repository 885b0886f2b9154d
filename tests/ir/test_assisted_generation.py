"""Packed decoders generate the same greedy text with an assistant or with prompt lookup."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from chop import MaseGraph
from chop.formats import parse_format_string
from chop.models import load_model
from chop.pipelines.packed_weights import pack_weights

GREEDY = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}


def packed(model, text):
    return pack_weights(MaseGraph(model), parse_format_string(text))


def llama(layers):
    """A decoder whose layers are multiplied by their codes."""
    torch.manual_seed(layers)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 320}
    config = LlamaConfig(num_hidden_layers=layers, num_attention_heads=4, **sizes)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def decoders():
    """A packed target and a smaller assistant, by name."""
    tiny = load_model("gpt-tiny")
    return {
        "gpt-tiny": (packed(tiny, "mxint:width=8"), packed(tiny, "mxint:width=4")),
        "llama": (packed(llama(2), "mxint:width=4"), packed(llama(1), "mxint:width=4")),
    }


@pytest.fixture
def verified(monkeypatch):
    """Numbers of tokens by call of a model."""
    counts = []

    def note(module, args, kwargs):
        counts.append(kwargs["input_ids"].size(1))

    return counts, note


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt-tiny", "llama"])
@pytest.mark.parametrize("way", ["assistant", "prompt lookup"])
def test_the_greedy_text_is_the_same(name, way, decoders, verified):
    target, assistant = (mg.to_module().eval() for mg in decoders[name])
    counts, note = verified
    # A repetition, which prompt lookup finds.
    prompt = torch.tensor([[5, 9, 17, 30, 41, 5, 9, 17, 30, 41, 5, 9]])
    ways = {
        "assistant": {"assistant_model": assistant},
        "prompt lookup": {"prompt_lookup_num_tokens": 4},
    }
    expected = target.generate(prompt, **GREEDY)
    hook = target.register_forward_pre_hook(note, with_kwargs=True)
    found = target.generate(prompt, **GREEDY, **ways[way])
    hook.remove()
    assert torch.equal(found, expected)
    assert expected.size(1) > prompt.size(1) + 4
    assert max(counts[1:]) > 1  # drafted tokens are verified together
