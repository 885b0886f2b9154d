"""What each fusion gains: one operator, and whole models; and what fusing a residual could gain.

    python benchmarks/fusion.py [--seconds 1.0]

float32, no gradients. A pass is compared with the graph it was given. The last table has no pass:
it compares models with the same models without their residual sums, the most that computing a sum
within the layer norm that follows could save.
"""

import argparse
import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.bench.record import format_ratio, format_seconds
from chop.models import get_model

FUSIONS = {
    "attention": passes.fuse_attention_transform_pass,
    "linear + activation": passes.fuse_linear_activation_transform_pass,
}


class Attention(nn.Module):
    """Written out by hand; 8 heads of 64."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal

    def forward(self, q, k, v):  # noqa: D102
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if self.causal:
            n = q.size(-2)
            scores = scores.masked_fill(torch.ones(n, n).triu(1) != 0, -math.inf)
        return F.softmax(scores, -1) @ v


class Layer(nn.Module):
    """A linear layer and GELU."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):  # noqa: D102
        return F.gelu(self.linear(x))


def _graph(model, names=None, **inputs):
    mg = MaseGraph(model.eval(), hf_input_names=names, dummy_in=inputs or None)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    return passes.add_common_metadata_analysis_pass(mg)[0]


def _text_model(hidden, layers, heads):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=1000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=1024,
    )
    config._attn_implementation = "eager"
    return BertForSequenceClassification(config)


def _vit():
    config = get_model("vit").config
    config._attn_implementation = "eager"
    return type(get_model("vit"))(config)


def _texts(batch, length):
    ids = torch.randint(0, 1000, (batch, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _images(batch):
    return {"pixel_values": torch.randn(batch, 1, 8, 8)}


def _operators():
    for causal in (False, True):
        for length in (17, 128, 1024):
            qkv = {name: torch.randn(1, 8, length, 64) for name in "qkv"}
            name = f"{'causal ' if causal else ''}attention, {length} tokens"
            yield name, _graph(Attention(causal), **qkv), qkv, ["attention"]
    for rows, width in ((16, 48), (1024, 48), (128, 128), (2048, 128), (1, 768), (128, 768)):
        x = {"x": torch.randn(rows, width)}
        name = f"linear {width} to {4 * width} and GELU, {rows} rows"
        yield name, _graph(Layer(width, 4 * width), x=torch.randn(3, width)), x, list(FUSIONS)[1:]


def _models():
    names = ["input_ids", "attention_mask"]
    tiny, small = _graph(_text_model(128, 2, 2), names), _graph(_text_model(256, 4, 4), names)
    pictures = _graph(_vit(), ["pixel_values"])
    for batch in (1, 64):
        yield f"vit, batch {batch}", pictures, _images(batch), list(FUSIONS)
    for batch, length in ((1, 128), (16, 128), (1, 512)):
        yield f"BERT-tiny, {batch} x {length} tokens", tiny, _texts(batch, length), list(FUSIONS)
    yield "BERT 4 x 256, 4 x 128 tokens", small, _texts(4, 128), list(FUSIONS)


def _without_residuals(mg):
    bare = mg.copy()
    for node in bare.nodes:
        readers = [bare.operator(user).name for user in node.users]
        if node.target is operator.add and "layer_norm" in readers:
            node.replace_all_uses_with(node.args[0])
    return bare


def _call(mg, inputs):
    model = mg.model
    return lambda: model(**inputs)


def _row(name, what, before, after, seconds, outputs=True):
    variants = [Variant("before", before), Variant("after", after)]
    found = compare(variants, "before", seconds=seconds, outputs=outputs, memory=False)
    return {
        "case": name,
        "fused": what,
        "before": format_seconds(found["before"].seconds),
        "after": format_seconds(found["after"].seconds),
        "times as fast": format_ratio(found["after"].ratio),
        "largest difference": found["after"].largest_difference,
    }


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5)
    seconds = parser.parse_args().seconds
    torch.manual_seed(0)
    rows = []
    for name, mg, inputs, chosen in [*_operators(), *_models()]:
        for fusions in dict.fromkeys([*((fusion,) for fusion in chosen), tuple(chosen)]):
            done = mg
            for fusion in fusions:
                done, _ = FUSIONS[fusion](done, {})
            what = " and ".join(fusions)
            rows.append(_row(name, what, _call(mg, inputs), _call(done, inputs), seconds))
    for name, mg, inputs, _ in _models():
        bare = _without_residuals(mg)
        title = "bound: no residual sums"
        rows.append(_row(name, title, _call(mg, inputs), _call(bare, inputs), seconds, False))
    print_table("Fusion", rows)


if __name__ == "__main__":
    main()
