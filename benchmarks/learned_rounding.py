"""Rounding that is learned by the error of blocks: perplexity and divergence beside GPTQ.

    python benchmarks/learned_rounding.py --model FOLDER --data FOLDER
    python benchmarks/learned_rounding.py --model FOLDER --data FOLDER --formats mxint4 --steps 200

The linear layers of the first `--blocks` blocks of a decoder are rounded; all else stays float, so
that the blocks that follow show what the error does. Calibration sees windows of training text;
perplexity and the KL divergence from the float model are of test texts, each cut to `--tokens`.
Intervals are those of the bootstrap over texts, at 95 %; a change is from the first row, on the
same texts. Seconds are those of the processor, for rounding alone.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from distill_decoder import change, describe
from torch import Tensor

from chop import MaseGraph, passes
from chop.base.tables import markdown_table
from chop.data import get_tokenized_dataset, load_dataset
from chop.formats import QuantSpec, parse_format_string
from chop.quantization.walk.parts import block_paths
from chop.train.evaluator import divergences

METHODS = ("nearest", "GPTQ", "learned", "GPTQ+learned")
JOINED = "joined"
"""Rounding to nearest with one tensor scale for layers that engines join."""
FORMATS = "group_affine:width=4:group_size=48,mxint4,group_integer3"


class Subject:
    """A decoder and its texts."""

    def __init__(self, args: argparse.Namespace) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.args = args
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        splits = load_dataset(args.data, limit=8 * max(args.rows, args.reviews), labeled=False)
        cut = {"max_length": args.tokens, "labeled": False}
        texts = get_tokenized_dataset(splits, tokenizer, **cut)["test"]
        self.test = [torch.tensor([texts[i]["input_ids"]]) for i in range(args.reviews)]
        windows = get_tokenized_dataset(
            splits, tokenizer, **cut, stride=args.tokens, limit=args.rows
        )["train"]
        rows = [torch.tensor(windows[i]["input_ids"]) for i in range(args.rows)]
        whole = torch.stack([x for x in rows if len(x) == args.tokens])
        self.batches = [{"input_ids": x} for x in whole.split(args.batch_size)]
        self.mg, _ = passes.init_metadata_analysis_pass(
            MaseGraph(self.model, hf_input_names=["input_ids"])
        )
        self.mg, _ = passes.add_common_metadata_analysis_pass(self.mg)
        blocks = tuple(f"{path}." for path in block_paths(self.model)[: args.blocks])
        nodes = [node for node in self.mg.nodes if self.mg.operator(node).name == "linear"]
        self.layers = [str(n.target) for n in nodes if str(n.target).startswith(blocks)]
        self.exact = [self._logs(self.model, x) for x in self.test]

    def _logs(self, model: Any, text: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(input_ids=text).logits[0].log_softmax(-1)
            return found

    def judge(self, model: Any) -> tuple[float, Tensor]:
        """Perplexity on the test texts, and of each its KL divergence from float and its tokens."""
        losses, found = [], []
        for text, p in zip(self.test, self.exact, strict=True):
            q = p if model is self.model else self._logs(model, text)
            losses.append(F.nll_loss(q[:-1], text[0, 1:], reduction="none"))
            found.append(divergences(p[:-1], q[:-1]))
        sums = [[each.double().sum().item(), len(each)] for each in found]
        return torch.cat(losses).mean().exp().item(), torch.tensor(sums, dtype=torch.float64)

    def plain(self, mg: MaseGraph) -> Any:
        """The float model with the rounded weights of a graph."""
        model = copy.deepcopy(self.model)
        for path in self.layers:
            layer: Any = mg.model.get_submodule(path)
            rounded = layer.quantize("weight", layer.weight.detach())
            model.get_submodule(path).weight.data.copy_(rounded)
        return model

    def rounded(self, text: str, method: str) -> MaseGraph:
        """The graph with the layers in a format."""
        rule = {"config": QuantSpec(weight=parse_format_string(text))}
        mg, _ = passes.quantize_transform_pass(
            self.mg, {"by": "name", **dict.fromkeys(self.layers, rule)}
        )
        settings = {"batches": self.batches, "row_weights": self.args.row_weights}
        if method == "GPTQ":
            mg, _ = passes.gptq_transform_pass(mg, settings)
        elif method == JOINED:
            mg, _ = passes.share_scales_transform_pass(mg)
        elif method != "nearest":
            settings |= {"steps": self.args.steps, "batch_size": self.args.batch_size}
            settings |= {"start": "gptq" if method.startswith("GPTQ") else "nearest"}
            mg, told = passes.learned_rounding_transform_pass(mg, settings)
            if self.args.verbose:
                print(
                    {
                        k[-2:]: (f"{v['before']:.2e}", f"{v['after']:.2e}")
                        for k, v in told["blocks"].items()
                    },
                    flush=True,
                )
        return mg


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a decoder")
    parser.add_argument("--data", type=Path, required=True, help="folder with train and test texts")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--blocks", type=int, default=6, help="that are rounded, the first ones")
    parser.add_argument("--reviews", type=int, default=30, help="test texts")
    parser.add_argument("--tokens", type=int, default=128, help="of a text at most")
    parser.add_argument("--rows", type=int, default=64, help="windows of training text")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--row-weights", default="uniform", choices=("gradient", "uniform"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="errors of each block too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    subject, rows = Subject(args), []
    first = None
    print(f"float: perplexity {subject.judge(subject.model)[0]:.5g}", flush=True)
    for text in args.formats.split(","):
        for method in args.methods.split(","):
            began = time.process_time()
            mg = subject.rounded(text, method)
            seconds = time.process_time() - began
            perplexity, sums = subject.judge(subject.plain(mg))
            first = sums if first is None else first
            weight = subject.model.get_submodule(subject.layers[0]).weight
            rows.append(
                {
                    "format": text,
                    "bits": f"{parse_format_string(text).bits(weight.shape):.2f}",
                    "method": method,
                    "perplexity": f"{perplexity:.5g}",
                    "KL to float": describe(sums),
                    "change": describe(change(first, sums)) if rows else "",
                    "seconds": f"{seconds:.0f}",
                }
            )
            print(rows[-1], flush=True)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
