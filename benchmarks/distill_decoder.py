"""Decoder in few bits, trained by labels and against its float model with the same steps.

    python benchmarks/distill_decoder.py --model FOLDER --data FOLDER

The linear layers of all blocks are rounded and then trained with the same rows and steps, once by
the next tokens and once by distillation. The KL divergence from the float model is that of the
first `--judge` test texts, each cut to `--tokens`. Intervals are those of the bootstrap over texts,
at 95 %.
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import torch
from language_table import GPTQ, LEARNED, NEAREST, Subject
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.base.tables import markdown_table
from chop.formats import QuantSpec, parse_format_string
from chop.nn import cached_weights
from chop.statistics.intervals import bootstrap
from chop.train import fit
from chop.train.evaluator import divergences

LOSSES: dict[str, dict[str, Any]] = {"labels": {}, "distillation": {"temperature": 1}}
"""Name of a training loss -> its settings of distillation, without a teacher."""


def run(model: nn.Module, texts: list[Tensor]) -> list[Tensor]:
    """Returns the logits of all tokens but the last of each text, (tokens, vocabulary)."""
    with torch.inference_mode(), cached_weights(model):
        return [model(input_ids=text).logits[0, :-1] for text in texts]


def compare(exact: list[Tensor], found: list[Tensor]) -> Tensor:
    """Returns the sum of the divergences of each text and its tokens, float64 (texts, 2)."""
    pairs = zip(exact, found, strict=True)
    return torch.tensor([[divergences(*x).sum().item(), len(x[0])] for x in pairs]).double()


def mean(sums: Tensor, drawn: Tensor) -> float:
    """Returns the mean divergence of a token of the drawn texts."""
    divergence, tokens = sums[drawn].sum(0).tolist()
    return divergence / tokens


def describe(sums: Tensor) -> str:
    """Formats the mean divergence with its interval over texts."""
    low, high = bootstrap(functools.partial(mean, sums), len(sums))
    return f"{mean(sums, torch.arange(len(sums))):.4f} ({low:.4f} to {high:.4f})"


def change(before: Tensor, after: Tensor) -> Tensor:
    """Returns the change of the divergence of each text and its tokens, float64 (texts, 2)."""
    return torch.stack([after[:, 0] - before[:, 0], before[:, 1]], 1)


def rounded(subject: Subject, args: argparse.Namespace) -> MaseGraph:
    """Returns the graph with the linear layers of its blocks in the format."""
    rule = {"config": QuantSpec(weight=parse_format_string(args.format))}
    rules = {"by": "name", **dict.fromkeys(subject.layers, rule)}
    mg, _ = passes.quantize_transform_pass(subject.mg, rules)
    batches = [{"input_ids": x} for x in subject.rows.split(args.batch_size)]
    if args.method == GPTQ:
        mg, _ = passes.gptq_transform_pass(mg, {"batches": batches})
    elif args.method == LEARNED:
        settings = {"batches": batches, "steps": args.steps, "batch_size": args.batch_size}
        mg, _ = passes.learned_rounding_transform_pass(mg, settings)
    return mg


def main() -> None:
    """Prints a line for each loss, and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a decoder")
    parser.add_argument("--data", type=Path, required=True, help="folder with train and test texts")
    parser.add_argument("--format", default="group_integer:width=3:group_size=32")
    parser.add_argument("--method", choices=(NEAREST, GPTQ, LEARNED), default=LEARNED)
    parser.add_argument("--steps", type=int, default=200, help="of learned rounding of a block")
    parser.add_argument("--rows", type=int, default=128, help="windows of training text")
    parser.add_argument("--row-tokens", type=int, default=128, help="of a window")
    parser.add_argument("--batch-size", type=int, default=2, help="rows of a step")
    parser.add_argument("--epochs", type=int, default=1, help="of training")
    parser.add_argument("--lr", type=float, default=1e-4, help="largest rate of training")
    parser.add_argument("--judge", type=int, default=50, help="test texts")
    parser.add_argument("--tokens", type=int, default=128, help="of a test text at most")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.blocks = None
    subject = Subject(args)
    start = rounded(subject, args)
    exact = run(subject.model, subject.test)
    before = compare(exact, run(start.model, subject.test))
    lines = [{"trained by": "not trained", "KL to float": describe(before), "change": ""}]
    print(lines[-1], flush=True)
    for name, settings in LOSSES.items():
        mg, began = start.copy(), time.process_time()
        own = {"distill": {"teacher": subject.model, **settings}} if settings else {}
        rows, training = {"input_ids": subject.rows}, {"lr": args.lr, "epochs": args.epochs, **own}
        fit(mg.model, rows, batch_size=args.batch_size, task="causal-lm", progress=name, **training)
        seconds = time.process_time() - began
        after = compare(exact, run(mg.model, subject.test))
        changed = describe(change(before, after))
        lines.append({"trained by": name, "KL to float": describe(after), "change": changed})
        print(lines[-1], f"{seconds:.0f} s", flush=True)
    print(markdown_table(lines))


if __name__ == "__main__":
    main()
