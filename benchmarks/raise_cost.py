"""The cost of capturing BERT-base with its head and labels, in train and eval mode.

python benchmarks/raise_cost.py [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

import torch
from transformers import BertConfig, BertForSequenceClassification

from chop.ir.capture.tracer import capture


def example() -> dict[str, torch.Tensor]:
    """A batch of 3 sentences of 14 tokens with labels."""
    return {
        "input_ids": torch.randint(1000, 20000, (3, 14)),
        "attention_mask": torch.ones(3, 14, dtype=torch.long),
        "labels": torch.tensor([0, 1, 0]),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="print where the seconds go")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = BertForSequenceClassification(BertConfig())
    for attempt in range(options.repeat):
        start = time.process_time()
        captured = capture(model, example())
        seconds = time.process_time() - start
        print(f"capture {attempt + 1}: {seconds:.2f} CPU s, {len(captured.graph.nodes)} nodes")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(capture, model, example())
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
