"""What formats cost in training that are calibrated, and that follow the training data.

Forward and backward of BERT-tiny in training mode, relative to the float model, in turns.

python benchmarks/running_formats.py [--threads 1] [--seconds 5]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from activation_pruning import BERT_TINY, prepared, tokens
from transformers import BertForSequenceClassification

from chop import MaseGraph, passes
from chop.base.tables import print_table
from chop.bench import Variant, compare

INTEGER = {"name": "integer", "width": 8, "frac_width": "auto"}
LINEAR = {"by": "type", "linear": {"config": INTEGER}}


def step(mg: MaseGraph, batch: int) -> Callable[[], object]:
    """A forward and a backward in training mode."""
    model, inputs = mg.model.train(), tokens(batch)

    def run() -> None:
        model.zero_grad()
        with torch.inference_mode(False), torch.enable_grad():
            model(**inputs)["logits"].square().mean().backward()

    return run


def main() -> None:
    """The command line."""
    options = prepared(__doc__)
    mg = MaseGraph(BertForSequenceClassification(BERT_TINY), dummy_in=tokens(2))
    waiting, _ = passes.quantize_transform_pass(mg, LINEAR)
    fixed, _ = passes.calibrate_transform_pass(waiting, {"batches": [tokens(2)]})
    rows = []
    for batch in (2, 8, 32):
        graphs = {"float": mg, "control": mg, "calibrated": fixed, "not calibrated": waiting}
        variants = [Variant(name, step(graph, batch)) for name, graph in graphs.items()]
        found = compare(variants, "float", seconds=options.seconds, outputs=False, memory=False)
        ratios = {name: f"{1 / found[name].ratio.median:.2f}" for name in list(graphs)[1:]}
        rows.append({"batch": batch, **ratios})
    print_table(f"Time of a training step / float, {options.threads} threads", rows)


if __name__ == "__main__":
    main()
