"""Steps of decoders on integers, against the quantized model on whole prefixes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.nn.integer import IntegerCachedMatmul

WORDS, LENGTH, ROWS = 11, 6, 3
INTEGER = {"name": "integer", "width": 8, "frac_width": 5}


class Learned(nn.Module):
    """Decoder with learned positions, or a mistake that makes it none."""

    def __init__(self, mistake=""):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
        self.read, self.write = nn.Linear(8, 24), nn.Linear(8, WORDS)
        self.mistake = mistake

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.size(1)))
        if self.mistake == "mixing":
            x = F.relu(x + x.mean(1, keepdim=True))
        parts = self.read(x).chunk(3, -1)
        heads = [y.view(ids.size(0), ids.size(1), 2, 4).transpose(1, 2) for y in parts]
        is_causal = self.mistake != "bidirectional"
        y = F.scaled_dot_product_attention(*heads, is_causal=is_causal)
        return self.write(y.transpose(1, 2).reshape(ids.size(0), ids.size(1), 8))


def ids():
    return torch.randint(1, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def quantized(model, batch, number_format=INTEGER):
    mg = MaseGraph(model.eval(), dummy_in=batch)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    mg, _ = passes.fuse_rms_norm_transform_pass(mg)
    rules = {"by": "type", "default": {"config": number_format}}
    return passes.quantize_transform_pass(mg, rules)[0]


def learned(mistake="", number_format=INTEGER):
    torch.manual_seed(0)
    batch = {"ids": ids()}
    return quantized(Learned(mistake), batch, number_format), batch


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=6,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
        use_cache=False,
    )
    batch = {"input_ids": ids(), "attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.int64)}
    return quantized(LlamaForCausalLM(config), batch), batch


def lowered(mg, batch, **settings):
    settings = {"batches": [batch], "decode": True, "internal_bits": "exact", **settings}
    return passes.lower_to_integer_transform_pass(mg, settings)


def tokens(batch):
    """Inputs of a step, with a sequence after the other."""
    start = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    start[:, 0] = 1
    return {next(iter(batch)): ids().view(-1, 1), "start": start.view(-1, 1)}


def logits(result):
    return getattr(result, "logits", result)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("made", [learned, llama])
def test_a_token_has_the_result_of_its_prefix(made):
    mg, batch = made()
    step, info = lowered(mg, batch)
    found = logits(step.model(**tokens(batch))).view(ROWS, LENGTH, -1)
    for end in range(1, LENGTH + 1):
        prefix = {name: x[:, :end] for name, x in batch.items()}
        assert torch.equal(found[:, end - 1], logits(mg.model(**prefix))[:, -1])
    assert sum(row["different"] for row in info["operators"]) == 0
    # With grouped queries, caches have the two key-value heads, which four queries share.
    rows = [
        node.args[1].meta["mase"].common.results["data_out_0"].shape
        for node in step.nodes
        if isinstance(step.get_module(node), IntegerCachedMatmul)
    ]
    assert rows == [(ROWS * LENGTH, 2, 1, 4)] * 2
    assert {str(node.target) for node in step.nodes if node.op == "placeholder"} == {*tokens(batch)}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: learned("bidirectional"), "expected a causal attention"),
        (lambda: learned("mixing"), "expected tokens that read earlier ones by causal attention"),
        (
            lambda: learned(number_format={"name": "mxint", "width": 8, "block_size": 4}),
            "expected formats with one fixed scale per tensor",
        ),
    ],
    ids=["bidirectional", "mixing", "blocks"],
)
def test_other_models_and_formats_are_refused(made, message):
    with pytest.raises(ConfigError, match=message):
        lowered(*made())


def test_inputs_other_than_tokens_are_refused():
    x = torch.randn(4, 3)
    mg = quantized(nn.Sequential(nn.Linear(3, 2)), {"input": x})
    with pytest.raises(ConfigError, match=r"decode: expected token ids \(sequences, tokens\)"):
        lowered(mg, {"input": x})
