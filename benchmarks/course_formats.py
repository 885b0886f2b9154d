"""Training with rounding (QAT) against rounding after training (PTQ), in every course format.

    OMP_NUM_THREADS=1 python benchmarks/course_formats.py [--seeds 3] [--only 'log|binary']

The built-in text model on its own data. Inputs, weights and biases of linear layers are in one
format, narrow enough that rounding costs something. All formats are trained from the same weights
with the same settings; the float model, trained as long, is the control. Accuracies are of 1,000
test rows: a standard error is 0.6 points at 96 %.

The gradient is the norm of the loss gradient of the first layer's weight before training, relative
to that of the last layer. Signs without a scale are 20 times larger than the weights that they
stand for: from layer to layer values and gradients grow, softmax and logits saturate, and nothing
is learned. With the layers before the softmax and the head left float, signs alone are trained too.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop import MaseGraph, passes
from chop.base.tables import markdown_table
from chop.formats import (
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Float,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    NumberFormat,
    QuantSpec,
    Ternary,
)
from chop.nn.quantized import QuantLinear
from chop.train import (
    calibration_batches,
    default_dataset,
    evaluate,
    fit,
    load_trained,
    read_rows,
)

MODEL = "bert-tiny"
ALL = r"bert\..*(query|key|value|dense)|classifier"
NOT_SATURATING = r"bert\.encoder\..*(value|dense)"
FIRST, LAST = "bert.encoder.layer.0.attention.self.query.weight", "classifier.weight"
FORMATS: list[NumberFormat] = [
    Integer(6, 3),
    Integer(2, "auto"),
    MinifloatDenorm(4, 2, 3),
    MinifloatIEEE(4, 2, 3),
    Log(4),
    BlockFP(2),
    BlockMinifloat(4, 2, 3),
    BlockMinifloat(3, 1, 3),
    BlockLog(2),
    Binary(),
    Binary(scaling_factor=True),
    BinaryResidual(),
    BinaryResidual(levels=3),
    Ternary(scaling_factor=True),
]
ROWS = [(Float(), ALL), *((fmt, ALL) for fmt in FORMATS), (Binary(), NOT_SATURATING)]


class Workload:
    """The trained model as a graph, its rows, and how it is trained further."""

    def __init__(self, args: argparse.Namespace) -> None:
        dataset = default_dataset(MODEL)
        self.train, self.test = (read_rows(dataset[split]) for split in ("train", "test"))
        mg, _ = passes.init_metadata_analysis_pass(MaseGraph(load_trained(MODEL)))
        self.mg, _ = passes.add_common_metadata_analysis_pass(mg)
        self.training = {"epochs": args.epochs, "lr": args.lr, "batch_size": args.batch_size}

    def rounded(self, number_format: NumberFormat, layers: str) -> MaseGraph:
        """The graph with inputs, weights and biases of those layers in a format."""
        config = {"by": "regex_name", layers: {"config": QuantSpec.uniform(number_format)}}
        quantized, _ = passes.quantize_transform_pass(self.mg, config)
        if number_format.is_fitted:
            return quantized
        batches = calibration_batches(self.mg.model, self.train)
        return passes.calibrate_transform_pass(quantized, {"batches": batches})[0]

    def accuracy(self, mg: MaseGraph) -> float:
        """Of the test rows, in percent."""
        return 100 * evaluate(mg.model, self.test)

    def trained(self, mg: MaseGraph, seed: int) -> float:
        """The accuracy of a copy that was trained further."""
        copy = mg.copy()
        fit(copy.model, self.train, **self.training, seed=seed)
        return self.accuracy(copy)

    def gradient(self, mg: MaseGraph) -> float:
        """Norm of the loss gradient of the first layer's weight, over that of the last, not 0."""
        model = mg.copy().model
        batch = next(calibration_batches(model, self.train, batch_size=64, with_labels=True))
        labels = batch.pop("labels")
        F.cross_entropy(model(**batch)["logits"], labels).backward()
        first, last = (_norm(model.get_parameter(name).grad) for name in (FIRST, LAST))
        return first / last


def _norm(x: Tensor | None) -> float:
    return 0.0 if x is None else x.norm().item()


def weight_sqnr_db(mg: MaseGraph) -> float:
    """Signal to quantization noise of all weights that have a format, in dB."""
    signal = noise = 0.0
    for layer in mg.model.modules():
        if isinstance(layer, QuantLinear):
            weight = layer.weight.detach()
            signal += weight.square().sum().item()
            noise += (layer.spec.weight.round(weight) - weight).square().sum().item()
    return 10 * math.log10(signal / noise) if noise else math.inf


def get_row(
    workload: Workload, number_format: NumberFormat, layers: str, seeds: int
) -> dict[str, Any]:
    """One line of the table."""
    mg = workload.rounded(number_format, layers)
    before = workload.accuracy(mg)
    after = [workload.trained(mg, seed) for seed in range(seeds)]
    mean = statistics.mean(after)
    return {
        "format": number_format.label,
        "layers": "all 14" if layers == ALL else "8, none before softmax or logits",
        "bits": f"{number_format.bits():g}",
        "SQNR of weights (dB)": f"{weight_sqnr_db(mg):.1f}",
        "gradient, first / last": f"{workload.gradient(mg):.1g}",
        "PTQ (%)": f"{before:.1f}",
        "QAT (%)": f"{mean:.1f} ({min(after):.1f} to {max(after):.1f})",
        "gain": f"{mean - before:+.1f}",
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="formats whose text this expression matches")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    workload = Workload(args)
    rows = []
    chosen = [(fmt, layers) for fmt, layers in ROWS if re.match(args.only, fmt.label)]
    for number_format, layers in chosen:
        rows.append(get_row(workload, number_format, layers, args.seeds))
        print(rows[-1], flush=True)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
