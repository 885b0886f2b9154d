"""Rows of batches: which of them are padding, and which bring what is no number.

A row is an index along all dimensions of a value but the last: a token, or an example. What
methods measure on batches leaves padding out, and refuses NaN and infinite values by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from chop.captured.padding.hidden import hidden_elements, is_followed
from chop.captured.padding.masks import TARGET_SIDE, is_tokens_first, list_inputs, visible_tokens
from chop.errors import ConfigError
from chop.ir.ops import of_node


class Measured(NamedTuple):
    """What measures rows, and where it is, for messages.

    Attributes:
        where: the setting that the batches come from.
        path: the layer, operator or node.
    """

    where: str
    path: str


def counted_rows(node: fx.Node, x: Tensor, batch: Mapping[str, Any]) -> Tensor | None:
    """Boolean (rows,), False where a row of a value is padding; None where no mask tells.

    Inside of `captured.padding.hidden.following` a row is padding if all of it was made from hidden
    tokens. Other values are read by their shapes: where a batch has as many rows as tokens, the
    values that were seen first decide which is which.

    Args:
        node: what gives the value.
        x: the value, (..., channels); its rows are (batch, tokens), (tokens, batch) or both in one.
        batch: the inputs of the graph by name.
    """
    if is_followed(x):
        hidden = hidden_elements(x)
        if hidden is None or _is_slid_over(node):
            return None
        return ~hidden.all(-1).reshape(-1)
    masks = {name: mask for name, mask in visible_tokens(batch).items() if mask.dim() == 2}
    shape = x.shape[:-1]
    found: dict[str, Tensor] = {}
    for name, mask in masks.items():
        if shape == mask.T.shape and (shape != mask.shape or is_tokens_first(node, name)):
            found[name] = mask.T
        elif shape in (mask.shape, (mask.numel(),)):
            found[name] = mask
    if len(found) > 1:
        in_decoder = any(str(n.target).startswith(TARGET_SIDE) for n in list_inputs(node))
        of_side = [name for name in found if name.startswith(TARGET_SIDE) == in_decoder]
        found = {name: found[name] for name in of_side or found}
    kept_rows = next(iter(found.values()), None)
    return None if kept_rows is None else kept_rows.reshape(-1).to(x.device)


def _is_slid_over(node: fx.Node) -> bool:
    """Returns whether a convolution reads a value, whose channels are not its last dimension."""
    model = node.graph.owning_module
    return model is not None and any(of_node(user, model).spatial for user in node.users)


def finite_rows(
    node: fx.Node, x: Tensor, batch: Mapping[str, Any], number: int, measured: Measured
) -> Tensor:
    """(rows, channels) the rows of a value that count.

    Args:
        node: what gives the value.
        x: the value, (..., channels).
        batch: the inputs by name.
        number: of the batch.
        measured: for the message.

    Raises:
        ConfigError: one of them is not finite.
    """
    counted = counted_rows(node, x, batch)
    check_finite(x, counted, batch, number, measured)
    rows = x.reshape(-1, x.shape[-1])
    return rows if counted is None else rows[counted]


def check_finite(
    x: Tensor, counted: Tensor | None, batch: Mapping[str, Any], number: int, measured: Measured
) -> None:
    """Refuses NaN and infinite values in rows that count.

    Args:
        x: the value, its first dimension that of the batch; (..., channels) where `counted` is.
        counted: from `counted_rows`.
        batch: the inputs by name.
        number: of the batch.
        measured: for the message.

    Raises:
        ConfigError: there are some; it names the batch, the row, and the input that has them too.
    """
    rows = non_finite_rows(x, counted)
    if not len(rows):
        return
    row = int(rows[0])
    guilty = [n for n, given in batch.items() if _has_some(given, row)]
    what = "NaN" if bool(x.isnan().any()) else "infinite values"
    origin = f" (its input '{guilty[0]}' is not finite)" if guilty else ""
    is_half = not guilty and x.dtype in (torch.float16, torch.bfloat16)
    way_out = " or convert the model to float32 (`model.float()`)" if is_half else ""
    raise ConfigError(
        f"{measured.where}: row {row} of batch {number} brings {what} to '{measured.path}'"
        f"{origin}; leave the row out{way_out}."
    )


def check_loss(loss: Tensor, batch: Mapping[str, Any], number: int, where: str) -> None:
    """Refuses a loss that is NaN or infinite, and names the batch and the row that has such inputs.

    Raises:
        ConfigError: it is.
    """
    if bool(loss.isfinite()):
        return
    found = [
        f" (row {int(rows[0])} of its input '{name}' is not finite)"
        for name, x in batch.items()
        if isinstance(x, Tensor) and x.dim() > 0 and len(rows := non_finite_rows(x))
    ]
    raise ConfigError(
        f"{where}: the loss of batch {number} is {loss.item()}{''.join(found[:1])}; leave out the "
        "row that makes it so."
    )


def non_finite_rows(x: Tensor, counted: Tensor | None = None) -> Tensor:
    """(n,) indices along the first dimension where a value is NaN or infinite."""
    wrong = ~x.isfinite() if x.is_floating_point() else torch.zeros(1, dtype=torch.bool)
    if counted is not None and wrong.dim() > 1:
        wrong = wrong.any(-1) & counted.view(wrong.shape[:-1])
    wrong = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong.reshape(-1)
    return wrong.nonzero()[:, 0]


def _has_some(given: Any, row: int) -> bool:
    return isinstance(given, Tensor) and given.dim() > 0 and row in non_finite_rows(given).tolist()
