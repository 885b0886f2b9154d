"""The cost of capturing models of transformers, in train and eval mode.

python benchmarks/raise_cost.py [--model bert-base|swin-tiny|llama-16] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    SwinConfig,
    SwinForImageClassification,
)

from chop.capture.tracer import capture

LLAMA = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=16,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1000,
)
MODELS = {
    "bert-base": lambda: BertForSequenceClassification(BertConfig()),
    "swin-tiny": lambda: SwinForImageClassification(SwinConfig()),
    "llama-16": lambda: LlamaForCausalLM(LLAMA),
}


def example(model: nn.Module) -> dict[str, torch.Tensor]:
    """Three sentences of 14 tokens, or two pictures, with labels."""
    if isinstance(model, SwinForImageClassification):
        return {"pixel_values": torch.randn(2, 3, 224, 224), "labels": torch.tensor([0, 1])}
    ids = torch.randint(100, 1000, (3, 14))
    labels = ids if isinstance(model, LlamaForCausalLM) else torch.tensor([0, 1, 0])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="bert-base")
    parser.add_argument("--profile", action="store_true", help="print where the seconds go")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = MODELS[options.model]()
    for attempt in range(options.repeat):
        start = time.process_time()
        captured = capture(model, example(model))
        seconds = time.process_time() - start
        print(f"capture {attempt + 1}: {seconds:.2f} CPU s, {len(captured.graph.nodes)} nodes")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(capture, model, example(model))
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
