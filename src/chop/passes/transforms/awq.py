"""Scales weights up where inputs are large, before quantizing, without changing the function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from chop.config import Range, check_fields
from chop.formats import parse_format, parse_format_string
from chop.ir.batches import Batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.folding.awq import GRID, awq
from chop.quantization.walk.walk import Walk


@dataclass(frozen=True)
class AwqConfig:
    """Settings of `awq_transform_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; a few hundred training rows.
        weight: the format that the weights are going to have, by name (`mxint:width=4`) or as a
            mapping.
        grid: exponents that are tried above 0, up to 1.
        row_weights: what each token counts in a layer's error: `gradient`, its squared gradient of
            the log likelihood, by one backward of the float model, averaged with 1 for all; or
            `uniform`, all alike.
    """

    batches: Batches
    weight: Any
    grid: Annotated[int, Range(1)] = GRID
    row_weights: Literal["gradient", "uniform"] = "gradient"

    def __post_init__(self) -> None:
        check_fields(self, "awq_transform_pass")
        chosen = self.weight
        parsed = (
            parse_format_string(chosen)
            if isinstance(chosen, str)
            else parse_format(chosen, "awq_transform_pass.weight")
        )
        object.__setattr__(self, "weight", parsed)


@graph_pass(config=AwqConfig, requires=("add_common_metadata_analysis_pass",))
def awq_transform_pass(mg: MaseGraph, config: AwqConfig) -> dict[str, Any]:
    """Multiplies the weights of Linear layers by s per input channel and divides the inputs by it.

    s_j = f mean|x_j|^a, a in [0, 1] such that the outputs of all layers that read x have the least
    error in the given format. f is 1 for formats with float scales; for others, whose error depends
    on where weights lie between two powers of two, one of 1, 2^(1/4), 2^(1/2) and 2^(3/4) where x
    comes from a norm. The division is folded into what x comes from: a norm, its gain, or a Linear,
    through ReLU, dropout and products with another value; the float model computes what it did:
    what reads x is run on the batches with each fold and without it, and a fold after which it
    computes something else is undone, with a warning. Tokens that an `attention_mask` or torch's
    `key_padding_mask` hides do not count. Layers with forward hooks or a parametrized weight are
    left alone. It runs before `quantize_transform_pass`, and `gptq_transform_pass` may follow;
    masks stay. Experts of a mixture have scales of their own between their two layers, from the
    tokens that they saw; one that saw fewer than it has inputs has none.

    Returns:
        scaled: by the path of each source its `readers`, the `exponent` a, the `factor` f, and the
            squared output error relative to the output `before` and `after`; experts have the path
            of their layer with their number.
        skipped: reason by the node of each other Linear, and of experts with their number.

    Raises:
        ConfigError: a row of a batch brings NaN or infinite values to a layer.

    Source: Lin et al. 2023, arXiv:2306.00978, section 3.2, eq. 4 and 5.
    """
    batches = select_inputs(mg, config.batches, "awq_transform_pass.batches")
    weighs_rows = config.row_weights == "gradient"
    scaled, skipped = awq(Walk(mg, list(batches)), config.weight, weighs_rows, config.grid)
    return {"scaled": scaled, "skipped": skipped}
