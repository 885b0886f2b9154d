"""What evaluating a fake-quantised model costs, as a ratio to its float forward.

A model of BERT-base's shape, all linear layers with quantised inputs and weights, in three ways:
every forward rounds weights and inputs by the readable reference in PyTorch, as toolchains do that
have nothing else; the same by the kernels; by the kernels, and weights rounded once
(`chop.nn.cached_weights`). All take turns with the float model, so that a busy machine slows all
of them; a ratio is the median over the turns.

python benchmarks/evaluation.py [--tokens 128] [--batch 1] [--layers 12] [--repeat 7]
    [--threads 2] [--only mxint] [--no-reference] [--profile] [--processor-time]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

from chop import MaseGraph, passes
from chop.formats import Integer, MinifloatIEEE, MXInt, NumberFormat, QuantSpec
from chop.kernels.cpu.build import library
from chop.nn import cached_weights
from chop.nn.quantized import QuantizedOperator
from chop.tables import markdown_table

FORMATS: list[NumberFormat] = [MXInt(8), Integer(8, 4), MinifloatIEEE(8, 4)]
Inputs = dict[str, Tensor]


def float_graph(layers: int, inputs: Inputs) -> MaseGraph:
    """BERT-base with fresh weights and so many layers, in evaluation mode."""
    logging.set_verbosity_error()
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=layers)).eval()
    mg = MaseGraph(model, hf_input_names=list(inputs))
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": inputs})
    return mg


def quantized(mg: MaseGraph, number_format: NumberFormat) -> nn.Module:
    """Inputs and weights of all linear layers in one format; the float graph stays."""
    spec = QuantSpec(data_in=number_format, weight=number_format)
    rules = {"by": "type", "linear": {"config": spec}}
    return passes.quantize_transform_pass(mg, rules)[0].model


@contextmanager
def by_reference() -> Iterator[None]:
    """Operators round without kernels."""

    def round_plainly(
        self: QuantizedOperator, operand: str, x: Tensor, mask: Tensor | None
    ) -> Tensor:
        return getattr(self.spec, operand).round(x)

    with mock.patch.object(QuantizedOperator, "_round", round_plainly):
        yield


clock = time.perf_counter


def seconds_of(model: nn.Module, inputs: Inputs) -> float:
    """Time of one forward."""
    start = clock()
    model(**inputs)
    return clock() - start


def ratios(
    float_model: nn.Module, model: nn.Module, inputs: Inputs, repeat: int, reference: bool
) -> dict[str, tuple[float, float]]:
    """Per way: milliseconds, and the ratio to the float forward beside it, medians."""
    found: dict[str, list[tuple[float, float]]] = {}

    def measure(way: str, run: Callable[[], float]) -> None:
        seconds = run()
        beside = seconds_of(float_model, inputs)
        found.setdefault(way, []).append((1e3 * seconds, seconds / beside))

    for _ in range(repeat):
        if reference:
            with by_reference():
                measure("reference, every forward", lambda: seconds_of(model, inputs))
        measure("kernels, every forward", lambda: seconds_of(model, inputs))
        with cached_weights(model):
            model(**inputs)
            measure("kernels, cached weights", lambda: seconds_of(model, inputs))
    return {
        way: (statistics.median(ms for ms, _ in runs), statistics.median(r for _, r in runs))
        for way, runs in found.items()
    }


def rounding_share(model: nn.Module, inputs: Inputs) -> float:
    """The share of a cached forward that rounding the inputs takes."""
    spent = 0.0
    whole = QuantizedOperator._round

    def timed(self: QuantizedOperator, operand: str, x: Tensor, mask: Tensor | None) -> Tensor:
        nonlocal spent
        start = clock()
        y = whole(self, operand, x, mask)
        spent += clock() - start
        return y

    with ExitStack() as stack:
        stack.enter_context(cached_weights(model))
        model(**inputs)
        stack.enter_context(mock.patch.object(QuantizedOperator, "_round", timed))
        seconds = seconds_of(model, inputs)
    return spent / seconds


@torch.no_grad()
def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="formats whose text contains this")
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--profile", action="store_true", help="adds the share of rounding inputs")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="of all threads, instead of the wall's: for a machine that others use too",
    )
    options = parser.parse_args()
    if options.processor_time:
        global clock
        clock = time.process_time
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = (options.batch, options.tokens)
    ids = torch.randint(1000, 30000, shape)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    mg = float_graph(options.layers, inputs)
    print(f"{options.batch} x {options.tokens} tokens, {options.threads} threads, {clock.__name__}")
    print(f"C++ kernels: {library().detail}\n")
    rows = []
    for number_format in FORMATS:
        if options.only not in number_format.label:
            continue
        model = quantized(mg, number_format)
        for _ in range(2):
            mg.model(**inputs), model(**inputs)
        found = ratios(mg.model, model, inputs, options.repeat, not options.no_reference)
        row = {"inputs and weights": number_format.label}
        row |= {way: f"{ms:.0f} ms, {ratio:.2f}x" for way, (ms, ratio) in found.items()}
        if options.profile:
            row["of it rounding inputs"] = f"{rounding_share(model, inputs):.0%}"
        rows.append(row)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
