"""Writes to packed parameters, and a report of their rounding error."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.base.notices import warn_once
from chop.errors import ConfigError
from chop.formats import Encoded, NumberFormat
from chop.nn.packed.encoding import encode_in_parts
from chop.nn.packed.state import PackedState


def assign(
    layer: PackedState,
    name: str,
    values: Tensor,
    source: tuple[PackedState, str, Encoded] | None,
) -> None:
    """Executes `layer.weight = values`, which assigns another parameter.

    Layers that share the old one keep it. The parameter of another packed layer with the same
    format is shared: later writes to one change the other.

    Args:
        layer: the layer; it is changed.
        name: name of the parameter.
        values: as in `write`.
        source: layer, parameter and codes that they were decoded from. None: other values.

    Raises:
        ConfigError: as in `write`.
    """
    if source is not None:
        owner, other, stored = source
        if stored.codes is layer.encoded(name).codes:
            return
        is_alike = layer.spec.number_format(name).key == owner.spec.number_format(other).key
        if is_alike and stored.shape == layer.packed_shapes[name] and not layer.packed_mask:
            layer.put_codes(name, stored, in_place=False)
            return
        warn_once(
            f"{type(layer).__name__}.{name} copies the values of {type(owner).__name__}.{other}. "
            "The two cannot be tied, because their formats or shapes differ or it is pruned: later "
            "writes to one of them do not change the other."
        )
    write(layer, name, values, is_shared=False)


@torch.no_grad()
def write(
    layer: PackedState,
    name: str,
    values: Tensor,
    takes_rows: bool = False,
    is_shared: bool = True,
) -> None:
    """Encodes new values of a packed parameter, and reports the rounding error once.

    Unchanged rows keep their codes. On a pruned layer zeros stay zero.

    Args:
        layer: the layer; it is changed.
        name: name of the parameter.
        values: new values in its shape; any device and floating type.
        takes_rows: the number of rows may change, for layers that support it.
        is_shared: layers with the same codes see the change. False: they keep the old ones.

    Raises:
        ConfigError: if the values do not fit or are not finite, or the codes are distributed over
            processes.
    """
    stored, where = layer.encoded(name), f"{type(layer).__name__}.{name}"
    if stored.codes.is_meta:  # without numbers
        return
    if type(stored.codes) is not Tensor:
        raise ConfigError(f"{where} is distributed over processes; write to it before that.")
    takes_rows = takes_rows or (name == "weight" and layer.takes_rows)
    values = _fitting(values, stored, where, takes_rows)
    before = layer._decode(name, stored)
    if name == "weight" and layer.packed_mask and len(values) == len(before):
        values = values.where(before != 0, 0)
    is_same = values.shape == before.shape and torch.equal(values.to(before.dtype), before)
    if is_same and is_shared:
        return
    number_format = layer.spec.number_format(name)
    made = _encoded(number_format, values, stored, before)
    layer.put_codes(name, made, in_place=is_shared)
    rows = min(len(values), len(before)) if before.ndim else None
    _report(layer, name, values[:rows], before[:rows])


def _fitting(values: Tensor, stored: Encoded, where: str, takes_rows: bool) -> Tensor:
    expected = list(stored.shape)
    if takes_rows and values.ndim:
        expected[0] = len(values)
    if list(values.shape) != expected or not expected or 0 in expected:
        raise ConfigError(
            f"{where} is stored as codes of shape {list(stored.shape)}, got values of shape "
            f"{list(values.shape)}; unpack the layer to change the shape."
        )
    if not values.is_floating_point():
        values = values.to(stored.dtype)
    if not values.isfinite().all():
        raise ConfigError(
            f"{where} is stored as codes and cannot store the non-finite values written to it."
        )
    return values.detach().to(stored.codes.device)


def _encoded(number_format: NumberFormat, values: Tensor, old: Encoded, before: Tensor) -> Encoded:
    """Returns the codes of values; unchanged rows keep the old codes."""
    count = min(len(values), len(before)) if before.ndim else 0
    if not count or not number_format.is_row_separable(values.shape):
        return encode_in_parts(number_format, values)
    same = (values[:count].to(before.dtype) == before[:count]).flatten(1).all(1)
    unchanged = old.take_rows(same.nonzero().flatten())
    if len(unchanged.codes) and same.all() and count == len(values):
        return unchanged
    if old.tensor_scale is not None:  # a factor that all rows decide
        return encode_in_parts(number_format, values)
    changed = torch.ones(len(values), dtype=torch.bool, device=values.device)
    changed[:count] = ~same
    made = encode_in_parts(number_format, values[changed])

    def merged(new: Tensor | None, was: Tensor | None) -> Tensor | None:
        if new is None or was is None:
            return new
        width = max(new.numel() + was.numel(), 1) // len(values)
        whole = was.new_empty(len(values), width)
        whole[changed] = new.view(-1, width)
        whole[~changed] = was.view(-1, width)
        return whole.flatten()

    codes = merged(made.codes, unchanged.codes)
    assert codes is not None
    return Encoded(codes, values.shape, old.dtype, merged(made.scales, unchanged.scales))


def _report(layer: PackedState, name: str, wanted: Tensor, before: Tensor) -> None:
    """Reports the error of stored values once for each format."""
    stored = layer._decode(name, layer.encoded(name))[: len(wanted) if wanted.ndim else None]
    lost, change = (x.double().square().sum().sqrt() for x in (stored - wanted, wanted - before))
    size = wanted.double().square().sum().sqrt()
    if not lost or not size:
        return
    label = layer.spec.number_format(name).label
    pruned = ", and pruned weights stay zero" if layer.packed_mask else ""
    warn_once(
        f"{type(layer).__name__}: its {name} is stored as codes, and written values are rounded to "
        f"{label}{pruned}: the relative error is {float(lost / size):.2g} of the values"
        + (f" and {float(lost / change):.2g} of the change." if change else "."),
        about=f"rounded to {label}",
    )
