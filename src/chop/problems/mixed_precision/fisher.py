"""Fisher information: loss increase of all layers and formats from one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from chop.captured.padding.hidden import following, hidden_elements
from chop.errors import ConfigError
from chop.formats import Gradient, NumberFormat, StandIn
from chop.ir.rows import check_loss
from chop.private.modules import own_parameters
from chop.problems.mixed_precision.layers import list_operands
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.train.evaluator import Evaluator
from chop.train.feed import eval_mode
from chop.train.model_io import loss_and_answers

LossIncreases = dict[tuple[str, str], float]
"""(choice, option) -> predicted loss increase while everything else is float."""


def fisher_loss_increases(
    problem: PrecisionProblem, rows: Evaluator, on_batch: Callable[[], None] = lambda: None
) -> LossIncreases:
    """Returns the loss increases predicted by the diagonal of the empirical Fisher information.

    For a parameter W in format Q, it is 1/2 sum_i F_ii (Q(W) - W)_i^2. F_ii is the mean over
    batches of B g_i^2, with g the gradient of the mean loss of the B answers of a batch. For an
    input x, it is the mean over batches of B/2 sum_i g_i^2 (Q(x) - x)_i^2 without padding. A choice
    adds up the increases of its operands.

    Args:
        problem: problem with the choices.
        rows: labeled rows in batches, from the problem's model.
        on_batch: called after each batch.
    Returns: loss increases in the unit of the loss, nats for classes.
    Raises:
        ConfigError: if the loss has no gradient, or is NaN or infinite.
    Source: Zandonati et al. 2022 (FIT), arXiv:2210.08502, section 3, which models the rounding
        errors of inputs; here they are measured. A weight that several layers share counts
        in each of them.
    """
    anchor = torch.zeros((), requires_grad=True)
    observers = _insert_observers(problem, anchor)
    try:
        with torch.enable_grad(), eval_mode(rows.model):
            for number, (inputs, labels) in enumerate(rows.batches):
                with following(rows.model, inputs) as given:
                    output = rows.model(**given)
                loss, answers = loss_and_answers(output, labels, rows.task)
                if not loss.requires_grad:
                    raise ConfigError("the loss has no gradient: the model detaches its answers.")
                check_loss(loss, inputs, number, "the Fisher information")
                torch.autograd.grad(loss * len(answers) ** 0.5, anchor)
                for _, observer in observers:
                    observer.end_batch()
                on_batch()
    finally:
        problem.layers.switch({})
    increases = dict.fromkeys(problem.pairs, 0.0)
    for choice, observer in observers:
        for text, increase in observer.loss_increases().items():
            increases[choice, text] += increase / len(rows.batches)
    return increases


def _insert_observers(
    problem: PrecisionProblem, anchor: Tensor
) -> list[tuple[str, _GradientObserver]]:
    """Replaces the formats of all choices by observers; returns observers by choice."""
    problem.layers.switch({})
    observers: list[tuple[str, _GradientObserver]] = []
    rounded = [
        (choice, path, part, operand)
        for choice in problem.targets
        for layer, operands in problem.rounded(choice).items()
        for path, part in problem.layers.by_name[layer].parts.items()
        for operand in set(operands) & set(list_operands(part))
    ]
    for choice, path, part, operand in rounded:
        options = problem.options.items()
        fit = {text: problem.layers.fit(path, part, operand, fmt) for text, fmt in options}
        is_parameter = own_parameters(part).get(operand) is not None
        observer = _GradientObserver(fit, is_parameter, anchor)
        part.spec = part.spec.with_quantizers(**{operand: observer})
        observers.append((choice, observer))
    return observers


class _GradientObserver(StandIn):
    """Observer in place of a format: identity in the forward, records gradients in the backward."""

    def __init__(
        self, formats: Mapping[str, NumberFormat], is_parameter: bool, anchor: Tensor
    ) -> None:
        self.formats, self.is_parameter, self.anchor = formats, is_parameter, anchor
        self.sums = dict.fromkeys(formats, 0.0)
        self.parameter: Tensor | None = None
        self.gradient: Tensor | None = None
        self.squares: Tensor | None = None

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        y: Tensor = _ObservedIdentity.apply(x, self.anchor, self)  # type: ignore[no-untyped-call]
        return y

    def look(self, x: Tensor, gradient: Tensor, hidden: Tensor | None) -> None:
        if hidden is not None:
            # Padding has no rounding error and must not affect shared scales.
            x, gradient = x.masked_fill(hidden, 0), gradient.masked_fill(hidden, 0)
        if self.is_parameter:
            self.parameter = x
            self.gradient = gradient if self.gradient is None else self.gradient + gradient
        else:
            self.add(x, gradient.double().square())

    def end_batch(self) -> None:
        """Accumulates a batch: gradients of a parameter add up, those of an input are per row."""
        if self.gradient is None:
            return
        own = self.gradient.double()
        self.squares = own.square() if self.squares is None else self.squares.addcmul_(own, own)
        self.gradient = None

    def add(self, x: Tensor, squares: Tensor) -> None:
        for text, fmt in self.formats.items():
            self.sums[text] += ((fmt(x) - x).double().square() * squares).sum().item() / 2

    def loss_increases(self) -> dict[str, float]:
        if self.parameter is not None and self.squares is not None:
            self.add(self.parameter, self.squares)
        return self.sums


class _ObservedIdentity(torch.autograd.Function):
    """Identity with an anchor input, so that the backward reaches it below frozen layers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, observer: _GradientObserver) -> Tensor:
        ctx.save_for_backward(x)
        ctx.observer, ctx.hidden = observer, hidden_elements(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.observer.look(ctx.saved_tensors[0].detach(), gradient, ctx.hidden)
        return gradient, torch.zeros(()), None
