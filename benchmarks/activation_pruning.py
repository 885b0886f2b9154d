"""What activation pruning costs: the pruned forward relative to the plain one, in turns.

python benchmarks/activation_pruning.py [--threads 1] [--seconds 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

from chop import MaseGraph, passes
from chop.base.tables import print_table
from chop.bench import Variant, compare

HALF = {"sparsity": 0.5}
SETTINGS = {
    "l1-norm, local": HALF,
    "l1-norm, global": {**HALF, "scope": "global"},
    "random": {**HALF, "method": "random"},
}
BERT_TINY = BertConfig(
    hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
)
SEQUENCE = 128
VIT_TINY = ViTConfig(
    hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768
)


def tokens(batch: int) -> dict[str, Any]:
    """Inputs of BERT-tiny."""
    ids = torch.randint(0, BERT_TINY.vocab_size, (batch, SEQUENCE))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def pictures(batch: int) -> dict[str, Any]:
    """Inputs of ViT-tiny: 197 tokens."""
    return {"pixel_values": torch.randn(batch, 3, 224, 224)}


def call(mg: MaseGraph, inputs: Mapping[str, Any]) -> Callable[[], object]:
    """A forward in evaluation."""
    model = mg.model.eval()
    return torch.inference_mode()(lambda: model(**inputs))


def get_row(mg: MaseGraph, name: str, inputs: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The ratio of each setting, and of the plain forward to itself."""
    variants = [Variant("plain", call(mg, inputs)), Variant("control", call(mg, inputs))]
    for setting, activation in SETTINGS.items():
        pruned, _ = passes.prune_transform_pass(mg, {"activation": activation, "batches": [inputs]})
        variants.append(Variant(setting, call(pruned, inputs)))
    found = compare(variants, "plain", seconds=seconds, outputs=False, memory=False)
    ratios = {name: 1 / found[name].ratio.median for name in ("control", *SETTINGS)}
    return {"model": name, **{name: f"{ratio:.2f}" for name, ratio in ratios.items()}}


def prepared(text: str) -> argparse.Namespace:
    """Settings from the command line, whose number of threads holds from now on."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, per variant")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


def main() -> None:
    """The command line."""
    options = prepared(__doc__)
    bert = MaseGraph(BertForSequenceClassification(BERT_TINY).eval(), dummy_in=tokens(2))
    vit = MaseGraph(ViTForImageClassification(VIT_TINY).eval(), dummy_in=pictures(2))
    rows = [
        get_row(mg, f"{name}, batch {batch}", make(batch), options.seconds)
        for mg, name, make, batches in (
            (bert, f"BERT-tiny, {SEQUENCE} tokens", tokens, (1, 8, 32)),
            (vit, "ViT-tiny, 197 tokens", pictures, (1, 8)),
        )
        for batch in batches
    ]
    print_table(f"Forward with inputs half pruned / plain, {options.threads} threads", rows)


if __name__ == "__main__":
    main()
