"""What Fisher information says that rounding costs: one backward for all layers and formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Gradient, NumberFormat, StandIn
from chop.mixed_precision.layers import operands_of
from chop.mixed_precision.problem import PrecisionProblem
from chop.train.evaluator import Evaluator, evaluating
from chop.train.model_io import read_output

Damages = dict[tuple[str, str], float]
"""By choice and option: what the option costs while everything else is float."""


def fisher_damages(problem: PrecisionProblem, rows: Evaluator) -> Damages:
    """The increase of the loss that the diagonal of the empirical Fisher information predicts.

    Of a parameter W in format Q: 1/2 sum_i F_ii (Q(W) - W)_i^2, F_ii the mean over batches of
    B g_i^2, g the gradient of the mean loss of the B answers of a batch. Of an input x: the mean
    over batches of B/2 sum_i g_i^2 (Q(x) - x)_i^2. A choice adds up all that it rounds.

    Args:
        problem: what can be chosen.
        rows: labelled rows in batches, of the problem's model.
    Returns: in the unit of the loss, of classes nats.
    Raises:
        ConfigError: the loss has no gradient.
    Source: Zandonati et al. 2022 (FIT), arXiv:2210.08502, section 3, which models the rounding
        errors of inputs; here they are measured.
    """
    anchor = torch.zeros((), requires_grad=True)
    taps = _put_taps(problem, anchor)
    try:
        with torch.enable_grad(), evaluating(rows.model):
            for inputs, labels in rows.batches:
                _, logits = read_output(rows.model(**inputs))
                answers, expected = rows.task.compare(logits, labels)
                loss = rows.task.loss(answers, expected)
                if not loss.requires_grad:
                    raise ConfigError("the loss has no gradient: the model detaches its answers.")
                torch.autograd.grad(loss * len(answers) ** 0.5, anchor)
                for _, tap in taps:
                    tap.end_batch()
    finally:
        problem.layers.switch({})
    found = dict.fromkeys(problem.pairs, 0.0)
    for choice, tap in taps:
        for text, damage in tap.damages().items():
            found[choice, text] += damage / len(rows.batches)
    return found


def _put_taps(problem: PrecisionProblem, anchor: Tensor) -> list[tuple[str, _Tap]]:
    """Puts taps in the place of the formats of all that choices round; by choice."""
    problem.layers.switch({})
    taps: list[tuple[str, _Tap]] = []
    for choice, (layer, operands) in problem.targets.items():
        for path, part in problem.layers.by_name[layer].parts.items():
            for operand in set(operands) & set(operands_of(part)):
                fit = {
                    text: problem.layers.fit(path, part, operand, fmt)
                    for text, fmt in problem.options.items()
                }
                tap = _Tap(fit, part._parameters.get(operand) is not None, anchor)
                part.spec = part.spec.with_quantizers(**{operand: tap})
                taps.append((choice, tap))
    return taps


class _Tap(StandIn):
    """Passes on what it is given, and sees its gradient."""

    def __init__(
        self, formats: Mapping[str, NumberFormat], is_parameter: bool, anchor: Tensor
    ) -> None:
        self.formats, self.is_parameter, self.anchor = formats, is_parameter, anchor
        self.sums = dict.fromkeys(formats, 0.0)
        self.parameter: Tensor | None = None
        self.gradient: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        return _Pass.apply(x, self.anchor, self)

    def look(self, x: Tensor, gradient: Tensor) -> None:
        if self.is_parameter:
            self.parameter, self.gradient = x, self.gradient + gradient.double()
        else:
            self.add(x, gradient.double().square())

    def end_batch(self) -> None:
        """A parameter's gradients add up over a batch; those of an input are each row's own."""
        self.squares, self.gradient = self.squares + self.gradient**2, 0.0

    def add(self, x: Tensor, squares: Tensor | float) -> None:
        for text, fmt in self.formats.items():
            self.sums[text] += ((fmt(x) - x).double().square() * squares).sum().item() / 2

    def damages(self) -> dict[str, float]:
        if self.parameter is not None:
            self.add(self.parameter, self.squares)
        return self.sums


class _Pass(torch.autograd.Function):
    """The identity. By the anchor the backward reaches it even where nothing before it learns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, tap: _Tap) -> Tensor:
        ctx.save_for_backward(x)
        ctx.tap = tap
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.tap.look(ctx.saved_tensors[0].detach(), gradient)
        return gradient, torch.zeros(()), None
