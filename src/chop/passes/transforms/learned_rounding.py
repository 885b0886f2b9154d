"""Learned rounding: optimization of rounding and scales by each block's output error."""

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
        steps: steps of signed gradient descent per block.
        batch_size: minimum number of rows per step; batches are not split.
        start: starting point: `nearest`, or `gptq`, which this pass applies to the block's layers
            itself.
        row_weights: weight of each token (or pixel) in a block's error: `uniform`; or `gradient`,
            its squared gradient of the log likelihood, averaged with 1. Tokens masked by an
            `attention_mask` or a `key_padding_mask` do not count.
        seed: seed of the order of the batches.
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
        """Settings of the rounding engine."""
        solver = Solver(actorder=True) if self.start == "gptq" else None
        weighs_rows = self.row_weights == "gradient"
        return Learning(self.steps, self.batch_size, self.seed, solver, weighs_rows)


@graph_pass(config=LearnedRoundingConfig, requires=("quantize_transform_pass",))
def learned_rounding_transform_pass(mg: MaseGraph, config: LearnedRoundingConfig) -> dict[str, Any]:
    """Learns rounding and scales of Linear and Conv2d weights that minimize block output errors.

    Each weight has a rounding offset of at most half a step, and each group a factor of its scale
    if the format stores float scales. Scales start with the least error among a few candidates,
    weighted by input energy, unless GPTQ has chosen them. Offsets and factors follow the signs of
    the gradient of the block's squared output error. Blocks are those of a decoder's list of
    blocks. Layers are learned separately in a model without such a list, or if its graph cannot be
    cut between blocks, for example because an attention writes in place. Blocks are learned in
    execution order, each on the results of the rounded blocks before it. A block that would not
    improve on `batches` keeps its starting point, and so does an expert with fewer rows than
    inputs. Masked weights stay masked.

    Returns:
        blocks: squared output error on `batches` relative to the float output, by path of block or
            layer, `{"before": float, "after": float}`; parts outside the list of blocks are `first`
            and `last`.
        skipped: reasons by name for other nodes and skipped experts.

    Raises:
        ConfigError: if the weights are already rounded by `gptq_transform_pass`, or a row of a
            batch causes NaN or infinite values.

    Source: Cheng et al. 2023 (SignRound), arXiv:2309.05516, section 3 and algorithm 1.

    Example config::

        {"batches": batches, "steps": 200, "start": "gptq"}
    """
    if any(step.name == "gptq_transform_pass" for step in mg.provenance):
        raise ConfigError(
            f"{PASS}: gptq_transform_pass has already rounded the weights; remove it and use "
            "start = 'gptq', which applies it to the float weights."
        )
    batches = list(select_inputs(mg, config.batches, WHERE))
    blocks, skipped = learn_rounding(mg, batches, config.learning)
    return {"blocks": blocks, "skipped": skipped}
