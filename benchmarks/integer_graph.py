"""Integer graphs of the built-in models beside the quantized models that they come from.

Every operator is compared with the quantized one on the same inputs, on the whole test split;
texts in one batch for each length (`--padded`: one batch, padded to the longest).

python benchmarks/integer_graph.py [--models mlp cnn vit bert-tiny] [--formats 8.auto ...]
    [--internal-bits small] [--padded] [--out runs/integer-graph]

Writes `OUT.md`, the table.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop import MaseGraph, passes
from chop.actions.compress.ptq import quantize_after_training
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.formats import parse_format_string
from chop.ir.ops import quantizable_operators
from chop.train import Rows, default_dataset, load_trained, read_rows
from chop.train.calibration import calibration_batches
from chop.workloads.workload import Workload

CALIBRATION_ROWS = 256
APPROXIMATE = ("softmax", "layer_norm")


def main() -> None:
    """Measures every model in every format and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn", "vit", "bert-tiny"])
    parser.add_argument("--formats", nargs="+", default=["8.auto"])
    parser.add_argument("--internal-bits", choices=("small", "exact"), default="small")
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/integer-graph"))
    given = parser.parse_args()
    rows = []
    for model in given.models:
        workload = workload_of(model)
        for text in given.formats:
            found = measure(workload, quantized(workload, text), given.internal_bits, given.padded)
            rows.append({"model": model, "format": text, **found})
            print(rows[-1], flush=True)
    write_text(given.out.with_suffix(".md"), markdown_table(rows) + "\n")


def workload_of(model: str) -> Workload:
    """A trained built-in model and its rows."""
    splits = default_dataset(model)
    train, test = read_rows(splits["train"]), read_rows(splits["test"])
    return Workload.of(load_trained(model), train, test, device="cpu")


def quantized(workload: Workload, text: str) -> MaseGraph:
    """All operators in one format, batch norms folded, activations calibrated."""
    example = workload.example()
    mg = MaseGraph(workload.model, dummy_in=example)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": example})
    mg, _ = passes.conv_bn_fusion_transform_pass(mg)
    number_format, operators = parse_format_string(text), quantizable_operators()
    mg = quantize_after_training(mg, number_format, operators, workload, CALIBRATION_ROWS)
    batches = calibration_batches(workload.model, workload.train, rows=CALIBRATION_ROWS)
    settings = {"batches": list(batches), "static_scales": True}
    return passes.calibrate_transform_pass(mg, settings)[0]


def batches_of(test: Rows, padded: bool) -> Iterator[dict[str, Tensor]]:
    """The test rows: of one length each, or all in one batch."""
    mask = test.columns.get("attention_mask")
    if padded or mask is None:
        yield from test.batches(len(test))
        return
    lengths = torch.tensor([len(row) for row in mask])
    for length in lengths.unique():
        rows = test.take((lengths == length).nonzero().flatten())
        yield from rows.batches(len(rows))


def measure(
    workload: Workload, mg: MaseGraph, internal_bits: str, padded: bool
) -> dict[str, str | int]:
    """A row: codes that differ, of operators that should be exact and of the others; accuracies."""
    counts: Counter[str] = Counter()
    largest = 0.0
    for batch in batches_of(workload.test, padded):
        settings = {"batches": [batch], "internal_bits": internal_bits}
        integer, info = passes.lower_to_integer_transform_pass(mg, settings)
        for row in info["operators"]:
            kind = row["kind"] if row["kind"] in APPROXIMATE else "other"
            counts[f"{kind} codes"] += row["codes"]
            counts[f"{kind} differ"] += row["different"]
            largest = max(largest, row["largest"])
        counts.update(compared(integer, mg, workload.model, batch))
    shares = {
        kind: f"{counts[f'{kind} differ']} of {counts[f'{kind} codes']}"
        for kind in ("other", *APPROXIMATE)
    }
    rows = counts["rows"]
    return {
        **{f"{kind}: codes that differ": text for kind, text in shares.items()},
        "largest difference (steps)": f"{largest:g}",
        "logits equal": f"{counts['equal'] / counts['logits']:.2%}",
        "same class": f"{counts['same']} of {rows}",
        **{
            f"{name} accuracy": f"{counts[name] / rows:.2%}"
            for name in ("float", "quantized", "integer")
        },
    }


def compared(
    integer: MaseGraph, quantized: MaseGraph, model: Any, batch: Mapping[str, Tensor]
) -> dict[str, int]:
    """Counts of rows, logits, equal logits, same classes, and rows that each model has right."""
    names = {str(node.target) for node in integer.nodes if node.op == "placeholder"}
    inputs = {name: x for name, x in batch.items() if name in names}
    models = {"float": model, "quantized": quantized.model, "integer": integer.model}
    with torch.no_grad():
        logits = {name: each(**inputs).logits for name, each in models.items()}
    found, expected = logits["integer"], logits["quantized"]
    right = {name: int((x.argmax(-1) == batch["labels"]).sum()) for name, x in logits.items()}
    return {
        "rows": len(found),
        "logits": found.numel(),
        "equal": int((found == expected).sum()),
        "same": int((found.argmax(-1) == expected.argmax(-1)).sum()),
        **right,
    }


if __name__ == "__main__":
    main()
