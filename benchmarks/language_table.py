"""Decoders in few bits, all methods on the same rows: divergence, perplexity and processor time.

    python benchmarks/language_table.py --model FOLDER --data FOLDER
    python benchmarks/language_table.py --model FOLDER --data FOLDER --blocks 6 --rows 32 --steps 30
    python benchmarks/language_table.py --model FOLDER --data FOLDER --only "3.5 learned"

Linear layers of the first `--blocks` blocks of a decoder are rounded, of all by default; all else
stays float. Calibration sees windows of training text. Perplexity and the KL divergence from the
float model are of the first `--judge` test texts, each cut to `--tokens`; intervals are those of
the bootstrap over texts, at 95 %. Times are user seconds of the processor for rounding alone, as
shares of those of auto-round with the same bits. Several processes may work at once, each on what
`--only` gives it. Results are kept in `--out` as they come; the same command goes on where it was
stopped.
"""

from __future__ import annotations

import argparse
import copy
import gc
import re
import resource
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rounding_peers import ROUNDING_PEERS, Integers, Learning, Weights
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.data import get_tokenized_dataset, load_dataset
from chop.formats import QuantSpec, parse_format_string
from chop.quantization.walk.parts import block_paths
from chop.runs.journal import Journal
from chop.statistics.intervals import bootstrap
from chop.train.evaluator import divergences

NEAREST, GPTQ, LEARNED, BOTH = "nearest", "GPTQ", "learned", "GPTQ+learned"
YARDSTICK = "auto-round"
"""The method whose processor time others are shares of."""
AFFINE, INTEGER = "group_affine:width={}:group_size={}", "group_integer:width={}:group_size={}"
METHODS = (GPTQ, LEARNED, *ROUNDING_PEERS, BOTH, NEAREST)
AT_ONCE = 128
"""Tokens whose probabilities are taken at a time: all of a vocabulary stay in the cache."""


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        method: how weights are rounded.
        grid: a format, or what a peer is told.
    """

    method: str
    grid: str | Integers

    @property
    def bits(self) -> float:
        """Stored, of a weight of rows that whole groups fill."""
        if isinstance(self.grid, Integers):
            return self.grid.bits
        return parse_format_string(self.grid).bits((1, 192))

    def __str__(self) -> str:
        return f"{self.bits:g} {self.method} {self.grid}"


def cases() -> list[Case]:
    """All lines, those that tell most first."""
    formats = {
        4.5: (AFFINE.format(4, 48), INTEGER.format(4, 32)),
        4.25: (AFFINE.format(4, 96), "mxint:width=4", INTEGER.format(4, 64)),
        3.5: (INTEGER.format(3, 32), AFFINE.format(3, 48)),
    }
    grids = {4.5: Integers(4, 32), 4.25: Integers(4, 64), 3.5: Integers(3, 32)}
    found = []
    for method in METHODS:
        if method in ROUNDING_PEERS:
            found += [Case(method, grids[bits]) for bits in (3.5, 4.5, 4.25)]
        else:
            found += [Case(method, text) for bits in (3.5, 4.5, 4.25) for text in formats[bits]]
    return found


class Subject:
    """A decoder and its texts."""

    def __init__(self, args: argparse.Namespace) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.args = args
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        # Several texts make one window.
        splits = load_dataset(args.data, limit=max(args.judge, 4 * args.rows), labeled=False)
        cut = {"max_length": args.tokens, "labeled": False}
        texts = get_tokenized_dataset(splits, self.tokenizer, **cut)["test"]
        self.test = [torch.tensor([texts[i]["input_ids"]]) for i in range(args.judge)]
        cut |= {"max_length": args.row_tokens, "stride": args.row_tokens, "limit": args.rows}
        windows = get_tokenized_dataset(splits, self.tokenizer, **cut)["train"]
        found = [torch.tensor(windows[i]["input_ids"]) for i in range(len(windows))]
        self.rows = torch.stack([x for x in found if len(x) == args.row_tokens])
        self.blocks = block_paths(self.model)[: args.blocks]

    @cached_property
    def layers(self) -> list[str]:
        """The paths of the linear layers that are rounded."""
        found = []
        for block in self.blocks:
            parts = self.model.get_submodule(block).named_modules(prefix=block)
            found += [path for path, part in parts if isinstance(part, nn.Linear)]
        return found

    @cached_property
    def mg(self) -> MaseGraph:
        """The graph of the decoder."""
        mg = MaseGraph(self.model, hf_input_names=["input_ids"])
        mg, _ = passes.init_metadata_analysis_pass(mg)
        mg, _ = passes.add_common_metadata_analysis_pass(mg)
        return mg

    @cached_property
    def exact(self) -> list[Tensor]:
        """What the output layer reads in the float model, of each test text."""
        return [self._hidden(self.model, text) for text in self.test]

    @torch.no_grad()
    def _hidden(self, model: Any, text: Tensor) -> Tensor:
        found: Tensor = model.base_model(input_ids=text, use_cache=False)[0][0, :-1]
        return found

    @torch.no_grad()
    def judge(self, model: Any) -> dict[str, list[float]]:
        """Of each test text its tokens, and sums of their losses and divergences from float."""
        head = self.model.get_output_embeddings()
        told: dict[str, list[float]] = {"tokens": [], "loss": [], "divergence": []}
        for text, float_hidden in zip(self.test, self.exact, strict=True):
            is_float = model is self.model
            hidden = float_hidden if is_float else self._hidden(model, text)
            loss = divergence = 0.0
            parts = (x.split(AT_ONCE) for x in (float_hidden, hidden, text[0, 1:]))
            for of_float, rows, wanted in zip(*parts, strict=True):
                p, q = (head(x) for x in (of_float, rows))
                loss += F.cross_entropy(q, wanted, reduction="none").double().sum().item()
                divergence += divergences(p, q).sum().item()
            for name, value in zip(told, (len(hidden), loss, divergence), strict=True):
                told[name].append(value)
        return told

    def rounded(self, case: Case) -> tuple[Any, float]:
        """The float model with rounded weights; the processor's seconds for rounding."""
        model = copy.deepcopy(self.model)
        if isinstance(case.grid, Integers):
            found, seconds = self._by_peer(case.method, case.grid)
            weights = {path: found[path] for path in self.layers}
        else:
            mg, seconds = self._by_chop(case.method, case.grid)
            parts = {path: mg.model.get_submodule(path) for path in self.layers}
            weights = {x: p.quantize("weight", p.weight.detach()) for x, p in parts.items()}
        for path, weight in weights.items():
            kept = model.get_submodule(path).weight.data
            if torch.equal(kept, weight.data.float()):
                raise SystemExit(f"{case.method} left {path} as it was.")
            kept.copy_(weight.data)
        return model, seconds

    def _by_peer(self, method: str, grid: Integers) -> tuple[Weights, float]:
        model = copy.deepcopy(self.model)
        name, _, _ = self.blocks[0].rpartition(".")
        owner, _, last = name.rpartition(".")
        parts = model.get_submodule(name)[: len(self.blocks)]
        setattr(model.get_submodule(owner), last, parts)
        model.config.num_hidden_layers = len(self.blocks)
        learning = Learning(self.rows, self.args.steps, self.args.batch_size)
        began = seconds_of_user()
        found = ROUNDING_PEERS[method].round(model, self.tokenizer, grid, learning)
        return found, seconds_of_user() - began

    def _by_chop(self, method: str, text: str) -> tuple[MaseGraph, float]:
        batches = [{"input_ids": x} for x in self.rows.split(self.args.batch_size)]
        rule = {"config": QuantSpec(weight=parse_format_string(text))}
        rules = {"by": "name", **dict.fromkeys(self.layers, rule)}
        graph = self.mg
        began = seconds_of_user()
        mg, _ = passes.quantize_transform_pass(graph, rules)
        if method == GPTQ:
            mg, _ = passes.gptq_transform_pass(mg, {"batches": batches})
        elif method != NEAREST:
            settings = {"steps": self.args.steps, "batch_size": self.args.batch_size}
            settings |= {"start": "gptq" if method == BOTH else "nearest"}
            mg, _ = passes.learned_rounding_transform_pass(mg, {"batches": batches, **settings})
        return mg, seconds_of_user() - began


def seconds_of_user() -> float:
    """Of this process, without those of the system."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def get_line(case: Case | None, told: dict[str, Any], yardstick: float | None) -> dict[str, str]:
    """A line of the table; None: the float model's."""
    tokens, loss, divergence = (
        torch.tensor(told[name], dtype=torch.float64) for name in ("tokens", "loss", "divergence")
    )

    def mean(sums: Tensor) -> Any:
        return lambda drawn: (sums[drawn].sum() / tokens[drawn].sum()).item()

    every = torch.arange(len(tokens))
    perplexity = torch.tensor(mean(loss)(every)).exp().item()
    line = {
        "bits": "32" if case is None else f"{case.bits:.2f}",
        "method": "float" if case is None else case.method,
        "grid": "" if case is None else str(case.grid),
        "perplexity": f"{perplexity:.5g}",
        "KL to float": "",
        "time": "",
    }
    if case is None:
        return line
    low, high = bootstrap(mean(divergence), len(tokens))
    line["KL to float"] = f"{mean(divergence)(every):.4f} ({low:.4f} to {high:.4f})"
    line["time"] = f"{told['seconds'] / yardstick:.2f}" if yardstick else ""
    return line


def table(args: argparse.Namespace, journal: Journal, exact: dict[str, Any]) -> str:
    """What is known of all cases, by bits and by divergence."""
    known = {case: journal.find(get_settings(args, case)) for case in cases()}
    found = {case: told for case, told in known.items() if told is not None}
    times = {case.bits: told["seconds"] for case, told in found.items() if case.method == YARDSTICK}
    order = sorted(found, key=lambda x: (-x.bits, sum(found[x]["divergence"])))
    lines = [get_line(case, found[case], times.get(case.bits)) for case in order]
    return markdown_table([get_line(None, exact, None), *lines])


def get_settings(args: argparse.Namespace, case: Case | None) -> dict[str, Any]:
    """All that a line depends on."""
    names = ("model", "data", "blocks", "tokens", "judge")
    if case is not None:
        names += ("rows", "row_tokens", "steps", "batch_size")  # type: ignore[assignment]
    own = {"method": case.method, "grid": str(case.grid)} if case else {"method": "float"}
    return {name: vars(args)[name] for name in names} | own


def main() -> None:
    """Measures what is not known, and writes the table after each line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a decoder")
    parser.add_argument("--data", type=Path, required=True, help="folder with train and test texts")
    parser.add_argument("--blocks", type=int, help="that are rounded, the first ones; default, all")
    parser.add_argument("--rows", type=int, default=128, help="windows of training text")
    parser.add_argument("--row-tokens", type=int, default=512, help="of a window")
    parser.add_argument("--tokens", type=int, default=512, help="of a test text at most")
    parser.add_argument("--steps", type=int, default=200, help="of learning, for each block")
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a step")
    parser.add_argument("--judge", type=int, default=200, help="test texts")
    parser.add_argument("--only", default="", help="lines with this expression: bits method grid")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/language-table"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    journal, subject = Journal(args.out / "journal.jsonl"), Subject(args)
    exact = journal.find(get_settings(args, None))
    if exact is None:
        exact = journal.add(get_settings(args, None), subject.judge(subject.model))
    for case in cases():
        key, peer = get_settings(args, case), ROUNDING_PEERS.get(case.method)
        if re.search(args.only, str(case)) is None:
            continue
        if peer is not None and peer.missing:
            print(f"{case.method}: not installed: {', '.join(peer.missing)}", flush=True)
        elif journal.find(key) is None:
            model, seconds = subject.rounded(case)
            gc.collect()
            told = journal.add(key, {"seconds": seconds, **subject.judge(model)})
            print(get_line(case, told, None), f"{seconds:.0f} s", flush=True)
            write_text(args.out / "table.md", table(args, journal, exact))
    print(table(args, journal, exact))


if __name__ == "__main__":
    main()
