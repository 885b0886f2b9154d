"""Saliency scores of weights: one small function per score; the lowest are pruned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Need = Literal["gradients", "inputs", "units"]


@dataclass
class ScoreInputs:
    """Data of one weight tensor, and a random generator.

    Attributes:
        generator: source of `random`, on the CPU.
        saliency: sum over batches of weight * dLoss/dweight, shape of the weight.
        input_norms: Euclidean norm of the input that each weight multiplies, over all rows of all
            batches; broadcasts to the weight's shape.
        unit_norms: for each output, the norm of its unit (a channel, a head) where the next layers
            read it, summed over all rows of all batches and divided by the output's number of
            weights; broadcasts to the weight's shape.
    """

    generator: torch.Generator
    saliency: Tensor | None = None
    input_norms: Tensor | None = None
    unit_norms: Tensor | None = None


@dataclass(frozen=True)
class Score:
    """Ranking of weights.

    Attributes:
        of: maps weight and score inputs to a score per weight, of its shape; the lowest are pruned.
        needs: required data, or None.
        power: a group of weights (a channel, a head) scores the sum of its weights' scores to
            this power.
        within_rows: with scope `local`, weights are compared within each output.
    """

    of: Callable[[Tensor, ScoreInputs], Tensor]
    needs: Need | None = None
    power: int = 1
    within_rows: bool = False


SCORES: dict[str, Score] = {}
"""Scores by the name that configs use."""

Function = Callable[[Tensor, ScoreInputs], Tensor]


def score(
    name: str, needs: Need | None = None, power: int = 1, within_rows: bool = False
) -> Callable[[Function], Function]:
    """Registers a function in `SCORES`; see `Score`."""

    def enter(function: Function) -> Function:
        SCORES[name] = Score(function, needs, power, within_rows)
        return function

    return enter


@score("l1-norm")
@score("l2-norm", power=2)
def magnitude(weight: Tensor, score_inputs: ScoreInputs) -> Tensor:
    """Returns |w|, for magnitude pruning: for single weights both norms are the magnitude.

    Source: Han et al. 2015, arXiv:1506.02626, section 3.
    """
    return weight.abs()


@score("random")
def random(weight: Tensor, score_inputs: ScoreInputs) -> Tensor:
    """Returns uniform numbers in [0, 1), equal on every device."""
    return torch.rand(weight.shape, generator=score_inputs.generator).to(weight.device)


@score("movement", needs="gradients")
def movement(weight: Tensor, score_inputs: ScoreInputs) -> Tensor:
    """Returns -sum of w dL/dw: how far training moves a weight away from zero.

    Source: Sanh et al. 2020, arXiv:2005.07683, equation 3.
    """
    assert score_inputs.saliency is not None
    return -score_inputs.saliency


@score("snip", needs="gradients")
def snip(weight: Tensor, score_inputs: ScoreInputs) -> Tensor:
    """Returns |w dL/dw|: the change of the loss without the weight, to first order.

    Source: Lee et al. 2019, arXiv:1810.02340, equation 5, before normalization.
    """
    assert score_inputs.saliency is not None
    return score_inputs.saliency.abs()


@score("wanda", needs="inputs", within_rows=True)
def wanda(weight: Tensor, score_inputs: ScoreInputs) -> Tensor:
    """Returns |w_ij| ||x_j||.

    Source: Sun et al. 2023, arXiv:2306.11695, equation 1.
    """
    assert score_inputs.input_norms is not None
    return weight.abs() * score_inputs.input_norms


@score("activation", needs="units")
def activation(weight: Tensor, score_inputs: ScoreInputs) -> Tensor:
    """Returns the activation of each output's unit, in equal parts for the output's weights.

    Source: Muralidharan et al. 2024, arXiv:2407.14679, section 2.2.
    """
    assert score_inputs.unit_norms is not None
    return score_inputs.unit_norms.expand(weight.shape)
