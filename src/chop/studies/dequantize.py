"""Study of packed weights: decoding speed, product speed, and memory savings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from chop.base.displayed import Displayed
from chop.bench.record import Comparison
from chop.kernels.cuda.dequantize import why_unavailable
from chop.models import load_model
from chop.studies.attention_implementations import DTYPES
from chop.studies.decoding import COPY, FORMATS, DecodeRow, compare_decoding
from chop.studies.packed_product import ProductRow, compare_products
from chop.studies.settings import BenchDequantizeConfig
from chop.studies.weight_memory import (
    DEMO,
    SMALL,
    KindRow,
    MemoryRow,
    demo_model,
    format_memory,
    get_total,
    measure_memory,
)


@dataclass(frozen=True, repr=False)
class _DequantizeComparison(Displayed):
    """Results of the dequantization study.

    Attributes:
        decoding: results by format and decoder.
        products: results by number of rows, format and implementation.
        memory: memory by code width, the float model first.
        kinds: savings of the first format by kind of parameters.
        comparisons: case name -> comparison with all times.
        why_no_cuda: reason why the CUDA C++ kernel is not measured. None if it is.
    """

    decoding: tuple[DecodeRow, ...]
    products: tuple[ProductRow, ...]
    memory: tuple[MemoryRow, ...]
    kinds: tuple[KindRow, ...]
    comparisons: Mapping[str, Comparison]
    why_no_cuda: str | None

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Returns formatted rows by table title."""
        how = next(iter(self.comparisons.values())).how
        note = "" if self.why_no_cuda is None else f" {self.why_no_cuda}"
        memory = (
            "Memory of a model with packed linear weights; in theory, codes of w bits with a "
            "shared 8-bit scale save 1 - (w + 8/block)/32 of float32"
        )
        return {
            f"Decoding a weight ({how}).{note}": [row.formatted() for row in self.decoding],
            f"Products with packed weights ({how})": [row.formatted() for row in self.products],
            memory: format_memory(self.memory),
            f"Savings of {self.memory[1].format} by kind of parameters": [
                row.formatted() for row in (*self.kinds, get_total(self.kinds))
            ],
        }


def bench_dequantize(config: BenchDequantizeConfig) -> _DequantizeComparison:
    """Measures decoding, products and memory.

    Raises:
        ConfigError: if the model is unknown or has no linear layers.
    """
    shape = (config.outputs, config.inputs)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(config.seed)) * 0.02
    weight = weight.to(config.device, DTYPES[config.dtype])
    comparisons: dict[str, Comparison] = {}
    decoding: list[DecodeRow] = []
    for name in config.formats:
        comparisons[f"decode-{name}"], rows = compare_decoding(weight, name, **config.how)
        decoding += [row for row in rows if row.format or not decoding]  # copies are listed once
    first = comparisons[f"decode-{config.formats[0]}"]
    copied_per_second = 2 * weight.nbytes / first.decisive_seconds(COPY)
    products: list[ProductRow] = []
    for count in config.rows:
        comparison, own = compare_products(
            weight, config.formats, count, copied_per_second, **config.how
        )
        comparisons[f"product-{count}-rows"] = comparison
        products += own
    memory, kinds = _memory(config)
    return _DequantizeComparison(
        tuple(decoding),
        tuple(products),
        tuple(memory),
        tuple(kinds),
        comparisons,
        why_unavailable(),
    )


def _memory(config: BenchDequantizeConfig) -> tuple[list[MemoryRow], list[KindRow]]:
    """Measures the memory of one format per width; other formats of that width are equal."""
    by_bits = {FORMATS[name].bits(): name for name in reversed(config.formats)}
    names = [name for name in config.formats if name in by_bits.values()]
    demo = SMALL if config.quick else DEMO
    model = demo_model(demo) if config.model is None else load_model(config.model)
    return measure_memory(model, names[:1] if config.quick else names, config.device)
