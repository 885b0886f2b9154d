"""State of quantized operators as tensors: initial learned scales, ranges of derived formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.padding.hidden import visible_alone
from chop.errors import ConfigError
from chop.formats import OPERANDS, Quantizer, QuantSpec, initial_scales
from chop.nn.quantized.masks import MASK, apply_mask
from chop.nn.quantized.numbers import WHOLE, has_started, is_in_fake_mode
from chop.nn.quantized.running import (
    RANGE_NAMES,
    RunningMaximum,
    empty_range,
    observe,
    read_range,
    write_range,
)
from chop.private.modules import own_buffers, own_parameters, set_members
from chop.private.torch_api import constant_when_compiled, is_fake

SCALE_NAMES = {operand: f"{operand}_scale" for operand in OPERANDS}
"""The parameters with learned scales."""
COPIES = frozenset({"known_starts", "known_fits"})
"""Attributes that are derived from tensors; files need not hold them."""
EARLIER = ("waiting", "running")
"""Attributes in which earlier versions kept what tensors hold now."""


class QuantizedState(nn.Module):
    """Mixin with the formats of an operator, and what its tensors say of them.

    Attributes:
        spec: a format for each operand.
        weight_mask: True where a weight is kept; only if it is pruned.
        weight_orig: what was in the weight before it was pruned.
    """

    spec: QuantSpec
    weight_mask: Tensor
    weight_orig: Tensor
    known_starts: frozenset[str] = frozenset()
    known_fits: Mapping[str, Quantizer] = {}
    """Copies of what the tensors say, for compilers, which see tensors without values."""

    def take_spec(self, spec: QuantSpec) -> None:
        """Takes other formats in place, and renews what follows from them."""
        before, self.spec = self.spec, spec
        renew(self, before)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Operands whose learned scales have not started."""
        learned = self.spec.lsq_operands
        return tuple(n for n in learned if not has_started(self._parameters.get(SCALE_NAMES[n])))

    @property
    def running(self) -> dict[str, RunningMaximum]:
        """By operand what training has shown of a format that was not calibrated."""
        ranges = {name: self._buffers.get(RANGE_NAMES[name]) for name, _ in self.spec.items()}
        scales = {
            name: read_range(buffer, getattr(self.spec, name))
            for name, buffer in ranges.items()
            if buffer is not None and not getattr(self.spec, name).is_fitted
        }
        return {name: x for name, x in scales.items() if x is not None}

    @property
    def fits(self) -> dict[str, Quantizer]:
        """By operand the format that training has fitted."""
        return {name: maximum.fitted for name, maximum in self.running.items()}

    @property
    def is_pruned(self) -> bool:
        """True when the weight has a mask."""
        return MASK in self._buffers

    def effective(self, operand: str) -> Tensor:
        """The parameter of that name as it enters the operator: masked, not yet quantized."""
        x = getattr(self, operand)
        return apply_mask(x, self.weight_mask) if operand == "weight" and self.is_pruned else x


def waits(operator: QuantizedState, operand: str, until: str) -> str:
    """The message that learned scales have not started.

    Args:
        operator: it has them.
        operand: operand with these scales.
        until: the end of the sentence.
    """
    return (
        f"{type(operator).__name__}: the scales of its {operand} wait: run the model on a batch in "
        f"train(), or calibrate_transform_pass, {until}"
    )


# --- learned scales ----------------------------------------------------------------------------


def scales_for(operator: QuantizedState, operand: str, x: Tensor) -> Tensor:
    """The scales that a tensor is rounded by: learned, or measured where they have not started.

    In training mode what is measured is the start, and is written into the parameter. In
    evaluation it is written when a gradient comes back to it.

    Raises:
        ConfigError: the call is compiled, and the scales have not started.
    """
    scales = own_parameters(operator)[SCALE_NAMES[operand]]
    assert scales is not None
    if torch.compiler.is_compiling():
        note_compiling(operator)
        if operand not in operator.known_starts:
            raise ConfigError(waits(operator, operand, "before compiling."))
        return scales
    if has_started(scales):
        return scales
    start = measured_scales(operator, operand, x)
    if start is None:
        return scales.clone()  # another operand of this call may start them, by a write
    if operator.training:
        write_scales(operator, operand, start, scales)
        return scales
    start = start.to(scales)
    if torch.is_grad_enabled() and scales.requires_grad:
        # A model that is trained in eval(), without dropout, starts where a gradient arrives.
        values, start = start, start + (scales - scales.detach())
        start.register_hook(lambda grad: _start_at(operator, operand, values, scales))
    return start


def _start_at(operator: QuantizedState, operand: str, start: Tensor, scales: nn.Parameter) -> None:
    if not has_started(scales):
        write_scales(operator, operand, start, scales)


@torch.no_grad()
def measured_scales(operator: QuantizedState, operand: str, x: Tensor) -> Tensor | None:
    """The start of learned scales for a tensor, float32 (n,), without hidden tokens of inputs.

    Returns: None for tensors that say nothing of scales: fake, empty, and inputs that are all zero
        or not finite, such as a trial run's.
    """
    if x.is_meta or not x.numel() or is_in_fake_mode(x):
        return None
    number_format = operator.spec.number_format(operand)
    if operand in own_parameters(operator):
        return initial_scales(number_format, x.detach())
    with visible_alone(x) as seen:
        if not ((seen != 0) & seen.isfinite()).any():
            return None
        return initial_scales(number_format, seen.detach().reshape(1, -1))


@torch.no_grad()
def write_scales(
    operator: QuantizedState, operand: str, start: Tensor, scales: nn.Parameter
) -> None:
    """Writes learned scales into their parameter, which follows them to their device."""
    if scales.device == start.device and scales.shape == start.shape:
        scales.copy_(start)
    else:
        scales.data = start.to(scales.dtype)
    note(operator)


# --- ranges ------------------------------------------------------------------------------------


def observe_operand(operator: QuantizedState, operand: str, x: Tensor) -> None:
    """Updates the range of an operand by a training tensor, without tokens that a mask hides."""
    if torch.compiler.is_compiling():
        return
    name = RANGE_NAMES[operand]
    buffer = own_buffers(operator).get(name)
    if buffer is None:  # the spec was replaced by hand
        operator.register_buffer(name, empty_range(x.device))
        buffer = own_buffers(operator)[name]
    assert buffer is not None
    with visible_alone(x) as seen:
        is_changed = observe(buffer, getattr(operator.spec, operand), seen)
    if is_changed:
        note(operator)


def restored_fit(operator: QuantizedState, operand: str, waiting: Quantizer) -> Quantizer:
    """The fit that training has shown of a format that waits; the format itself without one."""
    buffer = own_buffers(operator).get(RANGE_NAMES[operand])
    if buffer is None:
        return waiting
    if torch.compiler.is_compiling() or (type(buffer) not in WHOLE and is_fake(buffer)):
        note_compiling(operator)
        return operator.known_fits.get(operand, waiting)
    maximum = read_range(buffer, waiting)
    return waiting if maximum is None else maximum.fitted


# --- both --------------------------------------------------------------------------------------


def note(operator: QuantizedState) -> None:
    """Updates the attributes that compilers read; they compile again where one has changed."""
    learned = operator.spec.lsq_operands
    starts = frozenset(
        n for n in learned if has_started(own_parameters(operator).get(SCALE_NAMES[n]))
    )
    fits = operator.fits
    if starts != operator.known_starts:
        operator.known_starts = starts
    if fits != operator.known_fits:
        operator.known_fits = fits


@constant_when_compiled
def note_compiling(operator: QuantizedState) -> bool:
    """`note`, where tensors have values: in `torch.compile`, not in `torch.export`."""
    tensors = (*own_parameters(operator).values(), *own_buffers(operator).values())
    has_values = not any(x is not None and (x.is_meta or is_fake(x)) for x in tensors)
    if has_values:
        torch.compiler.disable(note)(operator)
    return has_values


def renew(operator: QuantizedState, before: QuantSpec) -> None:
    """Makes parameters and buffers for new formats; an operand whose format stays keeps its own."""
    # The operator that was taken over keeps its own members.
    same = {name for name, fmt in operator.spec.items() if fmt == getattr(before, name)}
    learned, earlier = operator.spec.lsq_operands, before.lsq_operands
    stale = [n for n in OPERANDS if n not in same.intersection(learned, earlier)]
    if learned or earlier:
        dropped = {SCALE_NAMES[name] for name in stale}
        parameters = {
            name: x for name, x in own_parameters(operator).items() if name not in dropped
        }
        set_members(operator, parameters)
        for operand in (name for name in stale if name in learned):
            scales = _placeholder(operator, operand)
            operator.register_parameter(SCALE_NAMES[operand], nn.Parameter(scales))
    ranges = [name for name, fmt in operator.spec.items() if not fmt.is_fitted]
    held = own_buffers(operator)
    if ranges or not held.keys().isdisjoint(RANGE_NAMES.values()):
        dropped = {RANGE_NAMES[name] for name in OPERANDS if name not in same.intersection(ranges)}
        set_members(operator, buffers={n: x for n, x in held.items() if n not in dropped})
        add_ranges(operator)
    note(operator)


def add_ranges(operator: QuantizedState) -> None:
    """Adds empty ranges for the operands whose formats wait and have none."""
    spec = vars(operator).get("spec", QuantSpec())  # that of an attention is its steps'
    for name, fmt in spec.items():
        if not fmt.is_fitted and RANGE_NAMES[name] not in own_buffers(operator):
            operator.register_buffer(RANGE_NAMES[name], empty_range(_device(operator)))


def _device(operator: QuantizedState) -> torch.device | None:
    held = [*own_parameters(operator).values(), *own_buffers(operator).values()]
    return next((x.device for x in held if x is not None), None)


def _placeholder(operator: QuantizedState, operand: str) -> Tensor:
    """Scales that come with the format, or zeros, which have not started."""
    number_format: Any = operator.spec.number_format(operand)
    is_parameter = own_parameters(operator).get(operand) is not None
    row = torch.zeros(1, 1, device=_device(operator))
    x = operator.effective(operand).detach() if is_parameter else row
    start = initial_scales(number_format, x)
    return start if number_format.scales is not None else torch.zeros_like(start)


@torch.no_grad()
def adopt_attributes(operator: QuantizedState) -> None:
    """Moves what files and pickles of earlier versions have as attributes into tensors."""
    waiting, running = (vars(operator).pop(name, ()) for name in EARLIER)
    for operand in waiting:
        scales = own_parameters(operator).get(SCALE_NAMES[operand])
        if scales is not None:
            scales.zero_()
    if "spec" not in vars(operator):
        return
    add_ranges(operator)
    for operand, stored in dict(running).items():
        maximum = stored if isinstance(stored, RunningMaximum) else RunningMaximum(*stored)
        buffer = own_buffers(operator).get(RANGE_NAMES[operand])
        if buffer is not None:
            write_range(buffer, maximum, [maximum.largest])
    note(operator)
