"""What structured pruning really saves: parameters and CPU time, original and narrow interleaved.

python benchmarks/structured_pruning.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertForSequenceClassification

from chop import MaseGraph, passes
from chop.base.tables import print_table

ROUNDS = 60


def pruned(mg: MaseGraph, *granularities: str) -> MaseGraph:
    """The graph without the lowest half of each."""
    for granularity in granularities:
        weight = {"sparsity": 0.5, "method": "l2-norm", "granularity": granularity}
        mg, _ = passes.prune_transform_pass(mg, {"weight": weight})
    return mg


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of one call, of all threads."""
    start = time.process_time()
    call()
    return time.process_time() - start


def ratio(first: Callable[[], object], second: Callable[[], object]) -> float:
    """Median of first / second, measured in turns."""
    first(), second()
    pairs = []
    for i in range(ROUNDS):
        order = (first, second) if i % 2 else (second, first)
        times = {call: cpu_seconds(call) for call in order}
        pairs.append(times[first] / times[second])
    return statistics.median(pairs)


def main() -> None:
    """Measures a BERT of four layers of 256 on 8 sequences of 128 tokens."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=1024,
        vocab_size=2000,
    )
    mg = MaseGraph(BertForSequenceClassification(config).eval())
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    inputs = {
        "input_ids": torch.randint(0, 2000, (8, 128)),
        "attention_mask": torch.ones(8, 128, dtype=torch.long),
    }

    def layers(graph: MaseGraph) -> int:
        named = graph.model.named_parameters()
        return sum(p.numel() for name, p in named if "embeddings" not in name)

    def call(graph: MaseGraph) -> Callable[[], object]:
        model = graph.model.eval()
        return torch.inference_mode()(lambda: model(**inputs))

    variants = {
        "nothing": mg,
        "half the rows": pruned(mg, "row"),
        "half the heads": pruned(mg, "head"),
        "half the rows and heads": pruned(mg, "row", "head"),
        "half the weights, hidden by masks": pruned(mg, "elementwise"),
    }
    rows = [
        {
            "removed": name,
            "parameters of the layers": f"{layers(graph) / layers(mg):.1%}",
            "CPU time": f"{ratio(call(graph), call(mg)):.2f}",
        }
        for name, graph in variants.items()
    ]
    print_table("structured pruning", rows)


if __name__ == "__main__":
    main()
