"""Rounding to nearest, GPTQ and SmoothQuant on one model: accuracy and distance to float.

    python benchmarks/post_training.py                          # the built-in ViT on digits
    python benchmarks/post_training.py --model DIR --dataset DIR --max-length 256 --rows 400

Weights and inputs of all linear layers become integers, one power-of-two scale per tensor. All
methods see the same training rows; accuracy and KL divergence are of test rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from chop import MaseGraph, passes
from chop.base.tables import markdown_table
from chop.data import get_tokenized_dataset, load_dataset
from chop.formats import Integer, QuantSpec
from chop.models import BUILTIN_MODELS, load_model
from chop.train import calibration_batches, default_dataset, load_trained, read_rows
from chop.train.evaluator import divergences

BATCH_SIZE = 64
METHODS = ("nearest", "GPTQ", "SmoothQuant", "SmoothQuant + GPTQ")


def main() -> None:
    """Prints the table."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    mg, dataset = _subject(args)
    test = list(read_rows(dataset["test"]).batches(BATCH_SIZE))
    batches = list(calibration_batches(mg.model, dataset, rows=args.calibration_rows))
    labels = torch.cat([batch["labels"] for batch in test])
    exact = _logits(mg, test)
    rows = [_row("float", "32 / 32", exact, exact, labels)]
    for width in args.widths:
        for data_width in dict.fromkeys((8, width)):
            spec = QuantSpec(Integer(data_width, args.rule), Integer(width, args.rule))
            for method in METHODS:
                logits = _logits(_quantized(mg, spec, method, batches, args), test)
                rows.append(_row(method, f"{width} / {data_width}", logits, exact, labels))
    print(f"{args.model}, {len(labels)} test rows, {args.calibration_rows} calibration rows")
    print(markdown_table(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit", help="built-in name or folder")
    parser.add_argument("--dataset", help="name or folder; a built-in model has its own")
    parser.add_argument("--rows", type=int, help="keep so many rows of each split")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--calibration-rows", type=int, default=128)
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 3])
    parser.add_argument("--rule", default="minmax", help="how fractions are derived")
    parser.add_argument("--strength", type=float, default=0.5, help="of SmoothQuant")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _subject(args: argparse.Namespace) -> tuple[MaseGraph, Any]:
    if args.model in BUILTIN_MODELS:
        model, dataset = load_trained(args.model), default_dataset(args.model, limit=args.rows)
    else:
        model = load_model(args.model)
        splits = load_dataset(args.dataset, limit=args.rows)
        dataset = get_tokenized_dataset(splits, checkpoint=args.model, max_length=args.max_length)
    mg, _ = passes.init_metadata_analysis_pass(MaseGraph(model))
    return passes.add_common_metadata_analysis_pass(mg)[0], dataset


def _quantized(
    mg: MaseGraph, spec: QuantSpec, method: str, batches: list[Any], args: argparse.Namespace
) -> MaseGraph:
    if "SmoothQuant" in method:
        mg, _ = passes.smoothquant_transform_pass(
            mg,
            {
                "batches": batches,
                "migration_strength": args.strength,
                "rescale_other_readers": True,
            },
        )
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": spec}})
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": batches})
    if "GPTQ" in method:
        mg, _ = passes.gptq_transform_pass(mg, {"batches": batches})
    return mg


@torch.no_grad()
def _logits(mg: MaseGraph, test: list[dict[str, Tensor]]) -> Tensor:
    def run() -> Iterator[Tensor]:
        for batch in test:
            inputs = {
                name: batch[name] for name in mg.model.record.example_inputs if name != "labels"
            }
            yield mg.model(**inputs)["logits"]

    return torch.cat(list(run()))


def _row(
    method: str, bits: str, logits: Tensor, exact: Tensor, labels: Tensor
) -> dict[str, str | float]:
    divergence = divergences(exact, logits).mean()
    accuracy = (logits.argmax(-1) == labels).double().mean().item()
    return {
        "bits (weight / input)": bits,
        "method": method,
        "accuracy": f"{accuracy:.1%}",
        "KL to float": f"{divergence.item():.4f}",
    }


if __name__ == "__main__":
    main()
