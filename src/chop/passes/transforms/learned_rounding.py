"""Learns the rounding of quantized weights, so that each block's output is nearest to float."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from chop.config import Range, check_fields
from chop.errors import ConfigError
from chop.ir.batches import Batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.learned import PASS, WHERE, Learning, learn_rounding


@dataclass(frozen=True)
class LearnedRoundingConfig:
    """Settings of `learned_rounding_transform_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; a few hundred training rows.
        steps: of signed gradient descent for each block.
        batch_size: rows of a step at least; it takes whole batches.
        start: what is learned from: `nearest`, or `gptq`, the block's layers after GPTQ, which this
            pass applies itself.
        row_weights: what each token (or pixel) counts in a block's error: `uniform`, all alike; or
            `gradient`, its squared gradient of the log likelihood, averaged with 1 for all. Tokens
            that an `attention_mask` or a `key_padding_mask` hides count nothing.
        seed: of the order of the batches.
    """

    batches: Batches
    steps: Annotated[int, Range(1)] = 200
    batch_size: Annotated[int, Range(1)] = 8
    start: Literal["nearest", "gptq"] = "nearest"
    row_weights: Literal["uniform", "gradient"] = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, PASS)

    @property
    def learning(self) -> Learning:
        """How roundings are learned."""
        solver = Solver(actorder=True) if self.start == "gptq" else None
        weighs_rows = self.row_weights == "gradient"
        return Learning(self.steps, self.batch_size, self.seed, solver, weighs_rows)


@graph_pass(config=LearnedRoundingConfig, requires=("quantize_transform_pass",))
def learned_rounding_transform_pass(mg: MaseGraph, config: LearnedRoundingConfig) -> dict[str, Any]:
    """Learns roundings and scales of Linear and Conv2d weights by the error of a block's output.

    Each weight has an offset of at most half a step before it is rounded, and each group a factor
    of its scale, where the format stores scales as floats; scales start as those of least error
    among a few, each error times the energy of its input, unless GPTQ has chosen them. Both follow
    the signs of gradients of the squared error of the output of the block that has them: of a
    decoder's list of blocks; each layer by itself in a model without such a list, or whose graph
    cannot be cut between blocks, as where an attention writes in place. An expert that saw fewer
    rows than it has inputs stays as it started: nearest, or as GPTQ leaves it. Blocks are learned
    in the order in which they run, each on what those before it, rounded already, give it. A block
    that would not get better on `batches` stays as it started.
    Weights that are masked stay as they are.

    Returns:
        blocks: by the path of each block or layer its squared output error on `batches` relative
            to the float output, `{"before": float, "after": float}`; parts outside the list of
            blocks are `first` and `last`.
        skipped: reason by the name of each other node, and of each expert that is left alone.

    Raises:
        ConfigError: the weights have been rounded by `gptq_transform_pass` already, or a row of a
            batch brings NaN or infinite values to a block.

    Source: Cheng et al. 2023 (SignRound), arXiv:2309.05516, section 3 and algorithm 1.
    """
    if any(step.name == "gptq_transform_pass" for step in mg.provenance):
        raise ConfigError(
            f"{PASS}: gptq_transform_pass has rounded the weights, and learning needs the float "
            "ones; leave it out: start 'gptq' applies it."
        )
    batches = list(select_inputs(mg, config.batches, WHERE))
    blocks, skipped = learn_rounding(mg, batches, config.learning)
    return {"blocks": blocks, "skipped": skipped}
