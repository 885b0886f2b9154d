"""Other values for a parameter that is stored as codes, and what rounding them costs."""

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
    """`layer.weight = values`: another parameter, as torch has it.

    Layers that had the old one keep it. The parameter of another packed layer is shared, where
    both have one format: what is written to one is then written to the other.

    Args:
        layer: the layer; it is changed.
        name: of the parameter.
        values: as `write` takes them.
        source: the layer, parameter and codes that they are decoded from; None: from none.

    Raises:
        ConfigError: as `write`.
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
            f"{type(layer).__name__}.{name} takes the values of {type(owner).__name__}.{other} and "
            "cannot be tied to it, because their formats or shapes differ or it is pruned: what is "
            "written to one of them later does not reach the other."
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
    """Encodes other values for a packed parameter, and says once what rounding them costs.

    Rows that keep their values keep their codes. On a pruned layer what is zero stays zero.

    Args:
        layer: the layer; it is changed.
        name: of the parameter.
        values: of its shape; any device and floating type.
        takes_rows: there may be more rows than before, or fewer, as in a layer that takes some.
        is_shared: layers with the same codes see the change; otherwise they keep the old ones.

    Raises:
        ConfigError: the values do not fit, are not finite, or the codes are spread over processes.
    """
    stored, where = layer.encoded(name), f"{type(layer).__name__}.{name}"
    if stored.codes.is_meta:  # without numbers
        return
    if type(stored.codes) is not Tensor:
        raise ConfigError(f"{where} is spread over processes; write to it before that.")
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
    kept = min(len(values), len(before)) if before.ndim else None
    _report(layer, name, values[:kept], before[:kept])


def _fitting(values: Tensor, stored: Encoded, where: str, takes_rows: bool) -> Tensor:
    expected = list(stored.shape)
    if takes_rows and values.ndim:
        expected[0] = len(values)
    if list(values.shape) != expected or not expected or 0 in expected:
        raise ConfigError(
            f"{where} is stored as codes of the shape {list(stored.shape)}, got values of "
            f"{list(values.shape)}; unpack the layer to give it another one."
        )
    if not values.is_floating_point():
        values = values.to(stored.dtype)
    if not values.isfinite().all():
        raise ConfigError(
            f"{where} is stored as codes, which are finite; the values written to it are not."
        )
    return values.detach().to(stored.codes.device)


def _encoded(number_format: NumberFormat, values: Tensor, old: Encoded, before: Tensor) -> Encoded:
    """The codes of values; those of rows that are as before are the old ones."""
    count = min(len(values), len(before)) if before.ndim else 0
    if not count or not number_format.is_row_separable(values.shape):
        return encode_in_parts(number_format, values)
    same = (values[:count].to(before.dtype) == before[:count]).flatten(1).all(1)
    kept = old.take_rows(same.nonzero().flatten())
    if len(kept.codes) and same.all() and count == len(values):
        return kept
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

    codes = merged(made.codes, kept.codes)
    assert codes is not None
    return Encoded(codes, values.shape, old.dtype, merged(made.scales, kept.scales))


def _report(layer: PackedState, name: str, wanted: Tensor, before: Tensor) -> None:
    """Says once for each format how far what is stored is from what was written."""
    stored = layer._decode(name, layer.encoded(name))[: len(wanted) if wanted.ndim else None]
    lost, change = (x.double().square().sum().sqrt() for x in (stored - wanted, wanted - before))
    size = wanted.double().square().sum().sqrt()
    if not lost or not size:
        return
    label = layer.spec.number_format(name).label
    pruned = ", and what is pruned stays zero" if layer.packed_mask else ""
    warn_once(
        f"{type(layer).__name__}: what is written to a {name} that is stored as codes is rounded "
        f"to its format, {label}{pruned}: here by {float(lost / size):.2g} of the values"
        + (f" and {float(lost / change):.2g} of the change." if change else "."),
        about=f"rounded to {label}",
    )
