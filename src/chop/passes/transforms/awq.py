"""AWQ: scaling of weights with large inputs before quantization."""

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
        weight: future format of the weights, by name (`mxint:width=4`) or as a mapping.
        grid: number of tried exponents above 0, up to 1.
        row_weights: weight of each token in a layer's error: `gradient`, its squared gradient of
            the log likelihood from one backward of the float model, averaged with 1; or `uniform`.
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
    """Multiplies weights of Linear layers by s per input channel and divides the inputs by s.

    The scale is s_j = f mean|x_j|^a. The exponent a in [0, 1] minimizes the output error of all
    layers that read x, for the given format. The factor f is 1 for formats with float scales. For
    other formats, whose error depends on the position of weights between two powers of two, f is
    one of 1, 2^(1/4), 2^(1/2) and 2^(3/4), if x comes from a norm. The division is folded into the
    source of x (a norm, its gain, or a Linear) through ReLU, dropout and products with another
    value, so the float model does not change. Each fold is checked by running the readers of x on
    the batches; a fold that changes their results is undone, with a warning. Tokens masked by an
    `attention_mask` or torch's `key_padding_mask` do not count. Layers with forward hooks or a
    parametrized weight are skipped. Run it before `quantize_transform_pass`; `gptq_transform_pass`
    may follow. Masks stay. Experts of a mixture have their own scales between their two layers,
    from the tokens routed to them, if they got at least as many tokens as they have inputs.

    Returns:
        scaled: by source path, `readers`, `exponent` a, `factor` f, and the relative squared output
            error `before` and `after`; experts have the path of their layer with their number.
        skipped: reasons by node for other Linear layers, and for experts by number.

    Raises:
        ConfigError: if a row of a batch causes NaN or infinite inputs of a layer.

    Source: Lin et al. 2023, arXiv:2306.00978, section 3.2, eq. 4 and 5.

    Example config::

        {"batches": batches, "weight": {"name": "group_integer", "width": 4}}
    """
    batches = select_inputs(mg, config.batches, "awq_transform_pass.batches")
    weighs_rows = config.row_weights == "gradient"
    scaled, skipped = awq(Walk(mg, list(batches)), config.weight, weighs_rows, config.grid)
    return {"scaled": scaled, "skipped": skipped}
