"""State of quantized operators as tensors: initial learned scales, ranges of derived formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.padding.hidden import visible_elements
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
"""Attributes derived from tensors; files may omit them."""
EARLIER = ("waiting", "running")
"""Attributes of earlier versions, whose values are in tensors now."""


class QuantizedState(nn.Module):
    """Mixin with the formats of an operator, and the state in its tensors.

    Attributes:
        spec: a format for each operand.
        weight_mask: True for kept weights; only if it is pruned.
        weight_orig: values of masked weights before pruning.
    """

    spec: QuantSpec
    weight_mask: Tensor
    weight_orig: Tensor
    known_starts: frozenset[str] = frozenset()
    known_fits: Mapping[str, Quantizer] = {}
    """Fitted formats for compilers, which see tensors without values."""

    def take_spec(self, spec: QuantSpec) -> None:
        """Sets other formats in place, and updates derived state."""
        before, self.spec = self.spec, spec
        renew(self, before)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Operands with uninitialized learned scales."""
        learned = self.spec.lsq_operands
        return tuple(n for n in learned if not has_started(self._parameters.get(SCALE_NAMES[n])))

    @property
    def running(self) -> dict[str, RunningMaximum]:
        """Observed ranges of uncalibrated formats by operand."""
        ranges = {name: self._buffers.get(RANGE_NAMES[name]) for name, _ in self.spec.items()}
        scales = {
            name: read_range(buffer, getattr(self.spec, name))
            for name, buffer in ranges.items()
            if buffer is not None and not getattr(self.spec, name).is_fitted
        }
        return {name: x for name, x in scales.items() if x is not None}

    @property
    def fits(self) -> dict[str, Quantizer]:
        """Formats fitted in training by operand."""
        return {name: maximum.fitted for name, maximum in self.running.items()}

    @property
    def is_pruned(self) -> bool:
        """True if the weight has a mask."""
        return MASK in self._buffers

    def effective(self, operand: str) -> Tensor:
        """Returns the parameter of that name, masked and not yet quantized."""
        x = getattr(self, operand)
        return apply_mask(x, self.weight_mask) if operand == "weight" and self.is_pruned else x


def uninitialized_message(operator: QuantizedState, operand: str, until: str) -> str:
    """Returns the message that learned scales are uninitialized.

    Args:
        operator: the operator.
        operand: operand with these scales.
        until: the end of the sentence.
    """
    return (
        f"{type(operator).__name__}: the learned scales of its {operand} are uninitialized: run "
        f"the model on a batch in train(), or calibrate_transform_pass, {until}"
    )


# --- learned scales ----------------------------------------------------------------------------


def scales_for(operator: QuantizedState, operand: str, x: Tensor) -> Tensor:
    """Returns the scales of a tensor: learned, or measured while they are uninitialized.

    In training mode, measured scales are written into the parameter as initial values. In
    evaluation they are written when a gradient arrives.

    Raises:
        ConfigError: if the call is compiled, and the scales are uninitialized.
    """
    scales = own_parameters(operator)[SCALE_NAMES[operand]]
    assert scales is not None
    if torch.compiler.is_compiling():
        update_if_compiling(operator)
        if operand not in operator.known_starts:
            raise ConfigError(uninitialized_message(operator, operand, "before compiling."))
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
    """Measures initial learned scales of a tensor, float32 (n,), without hidden tokens of inputs.

    Returns: None for tensors without information on scales: fake, empty, and all-zero or non-finite
        inputs, such as those of a trial run.
    """
    if x.is_meta or not x.numel() or is_in_fake_mode(x):
        return None
    number_format = operator.spec.number_format(operand)
    if operand in own_parameters(operator):
        return initial_scales(number_format, x.detach())
    with visible_elements(x) as seen:
        if not ((seen != 0) & seen.isfinite()).any():
            return None
        return initial_scales(number_format, seen.detach().reshape(1, -1))


@torch.no_grad()
def write_scales(
    operator: QuantizedState, operand: str, start: Tensor, scales: nn.Parameter
) -> None:
    """Writes learned scales into their parameter, and moves it to their device."""
    if scales.device == start.device and scales.shape == start.shape:
        scales.copy_(start)
    else:
        scales.data = start.to(scales.dtype)
    update_known_state(operator)


# --- ranges ------------------------------------------------------------------------------------


def observe_operand(operator: QuantizedState, operand: str, x: Tensor) -> None:
    """Updates the range of an operand with a training tensor, without masked tokens."""
    if torch.compiler.is_compiling():
        return
    name = RANGE_NAMES[operand]
    buffer = own_buffers(operator).get(name)
    if buffer is None:  # the spec was replaced by hand
        operator.register_buffer(name, empty_range(x.device))
        buffer = own_buffers(operator)[name]
    assert buffer is not None
    with visible_elements(x) as seen:
        is_changed = observe(buffer, getattr(operator.spec, operand), seen)
    if is_changed:
        update_known_state(operator)


def restored_fit(operator: QuantizedState, operand: str, waiting: Quantizer) -> Quantizer:
    """Returns the fit of a format with a derived field; the format itself without training data."""
    buffer = own_buffers(operator).get(RANGE_NAMES[operand])
    if buffer is None:
        return waiting
    if torch.compiler.is_compiling() or (type(buffer) not in WHOLE and is_fake(buffer)):
        update_if_compiling(operator)
        return operator.known_fits.get(operand, waiting)
    maximum = read_range(buffer, waiting)
    return waiting if maximum is None else maximum.fitted


# --- both --------------------------------------------------------------------------------------


def update_known_state(operator: QuantizedState) -> None:
    """Updates the attributes that compilers read; a change triggers recompilation."""
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
def update_if_compiling(operator: QuantizedState) -> bool:
    """Updates the known state in `torch.compile`, not in `torch.export`."""
    tensors = (*own_parameters(operator).values(), *own_buffers(operator).values())
    has_values = not any(x is not None and (x.is_meta or is_fake(x)) for x in tensors)
    if has_values:
        torch.compiler.disable(update_known_state)(operator)
    return has_values


def renew(operator: QuantizedState, before: QuantSpec) -> None:
    """Creates parameters and buffers for new formats; operands with the same format keep theirs."""
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
    update_known_state(operator)


def add_ranges(operator: QuantizedState) -> None:
    """Adds empty ranges for operands with uncalibrated derived formats."""
    spec = vars(operator).get("spec", QuantSpec())  # that of an attention is its steps'
    for name, fmt in spec.items():
        if not fmt.is_fitted and RANGE_NAMES[name] not in own_buffers(operator):
            operator.register_buffer(RANGE_NAMES[name], empty_range(_device(operator)))


def _device(operator: QuantizedState) -> torch.device | None:
    held = [*own_parameters(operator).values(), *own_buffers(operator).values()]
    return next((x.device for x in held if x is not None), None)


def _placeholder(operator: QuantizedState, operand: str) -> Tensor:
    """Returns the scales of the format, or zeros, which are uninitialized."""
    number_format: Any = operator.spec.number_format(operand)
    is_parameter = own_parameters(operator).get(operand) is not None
    row = torch.zeros(1, 1, device=_device(operator))
    x = operator.effective(operand).detach() if is_parameter else row
    start = initial_scales(number_format, x)
    return start if number_format.scales is not None else torch.zeros_like(start)


@torch.no_grad()
def adopt_attributes(operator: QuantizedState) -> None:
    """Moves attributes of files and pickles of earlier versions into tensors."""
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
    update_known_state(operator)
