"""What evaluating a fake-quantized model costs, as a ratio to its float forward.

A model of BERT-base's shape, all linear layers with quantized inputs and weights, in three ways:
every forward rounds weights and inputs by the readable reference in PyTorch, as toolchains do that
have nothing else; the same by the kernels; by the kernels, and weights rounded once
(`chop.nn.cached_weights`). All take turns with the float model, so that a busy machine slows all
of them; a ratio is the median over the turns (`chop.bench`).

python benchmarks/evaluation.py [--tokens 128] [--batch 1] [--layers 12] [--seconds 3]
    [--threads 2] [--only mxint] [--no-reference] [--profile] [--processor-time]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

from chop import MaseGraph, passes
from chop.base.tables import markdown_table
from chop.bench import Variant, compare
from chop.formats import Integer, MinifloatIEEE, MXInt, NumberFormat, QuantSpec
from chop.kernels.cpu.build import library
from chop.nn import cached_weights
from chop.nn.quantized import QuantizedOperator

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


def ways_of(
    mg: MaseGraph, number_format: NumberFormat, inputs: Inputs, stack: ExitStack, reference: bool
) -> Iterator[Variant]:
    """The ways to evaluate; `stack` holds the cache of weights of the last one."""
    model = quantized(mg, number_format)

    def plainly() -> Any:
        with by_reference():
            return model(**inputs)

    def with_cache() -> Callable[[], Any]:
        other = quantized(mg, number_format)
        stack.enter_context(cached_weights(other))
        return partial(other, **inputs)

    yield Variant("float", partial(mg.model, **inputs))
    if reference:
        yield Variant("reference, every forward", plainly)
    yield Variant("kernels, every forward", partial(model, **inputs))
    yield Variant("kernels, cached weights", prepare=with_cache)


def get_row(
    mg: MaseGraph, number_format: NumberFormat, inputs: Inputs, options: argparse.Namespace
) -> dict[str, str]:
    """Per way: milliseconds, and how many times the float forward beside it."""
    clock = "processor" if options.processor_time else "wall"
    with ExitStack() as stack:
        ways = ways_of(mg, number_format, inputs, stack, not options.no_reference)
        found = compare(
            list(ways),
            "float",
            seconds=options.seconds,
            clock=clock,
            outputs=False,
            memory=False,
            inference=False,
        )
    row = {"inputs and weights": number_format.label}
    for way in list(found)[1:]:
        seconds = way.processor_seconds if options.processor_time else way.seconds
        row[way.name] = f"{1e3 * seconds:.0f} ms, {1 / way.ratio.median:.2f}x"
    return row


def rounding_share(model: nn.Module, inputs: Inputs) -> float:
    """The share of a cached forward's processor time that rounding the inputs takes."""
    spent = 0.0
    whole = QuantizedOperator._round

    def timed(self: QuantizedOperator, operand: str, x: Tensor, mask: Tensor | None) -> Tensor:
        nonlocal spent
        start = time.process_time()
        y = whole(self, operand, x, mask)
        spent += time.process_time() - start
        return y

    with ExitStack() as stack:
        stack.enter_context(cached_weights(model))
        model(**inputs)
        stack.enter_context(mock.patch.object(QuantizedOperator, "_round", timed))
        start = time.process_time()
        model(**inputs)
        return spent / (time.process_time() - start)


@torch.no_grad()
def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3, help="of measuring, per way")
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
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = (options.batch, options.tokens)
    ids = torch.randint(1000, 30000, shape)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    mg = float_graph(options.layers, inputs)
    print(f"{options.batch} x {options.tokens} tokens, {options.threads} threads")
    print(f"C++ kernels: {library().detail}\n")
    rows = []
    for number_format in FORMATS:
        if options.only not in number_format.label:
            continue
        row = get_row(mg, number_format, inputs, options)
        if options.profile:
            share = rounding_share(quantized(mg, number_format), inputs)
            row["of it rounding inputs"] = f"{share:.0%}"
        rows.append(row)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
