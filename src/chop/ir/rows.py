"""Batch rows: detection of padding and of non-finite values.

A row is an index along all dimensions of a value but the last: a token, or an example. Calibration
methods exclude padding, and reject NaN and infinite values with an error that names the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from chop.captured.padding.hidden import hidden_elements, is_followed
from chop.captured.padding.masks import TARGET_SIDE, is_tokens_first, list_inputs, visible_tokens
from chop.errors import ConfigError
from chop.ir.ops import get_node_row


class Measured(NamedTuple):
    """Location of a measurement, for messages.

    Attributes:
        where: setting with the batches.
        path: layer, operator or node.
    """

    where: str
    path: str


def counted_rows(node: fx.Node, x: Tensor, batch: Mapping[str, Any]) -> Tensor | None:
    """Returns a boolean (rows,) mask, False for padding; None if there is no attention mask.

    Inside `captured.padding.hidden.following`, a row is padding if all of it was computed from
    hidden tokens. Other values are interpreted by shape: if a batch has as many rows as tokens, the
    values that were seen first resolve the ambiguity.

    Args:
        node: node that computes the value.
        x: the value, (..., channels); its rows are (batch, tokens), (tokens, batch) or both in one.
        batch: the inputs of the graph by name.
    """
    if is_followed(x):
        hidden = hidden_elements(x)
        if hidden is None or _is_slid_over(node):
            return None
        return ~hidden.all(-1).reshape(-1)
    visible = {name: mask for name, mask in visible_tokens(batch).items() if mask.dim() == 2}
    shape = x.shape[:-1]
    masks: dict[str, Tensor] = {}
    for name, mask in visible.items():
        if shape == mask.T.shape and (shape != mask.shape or is_tokens_first(node, name)):
            masks[name] = mask.T
        elif shape in (mask.shape, (mask.numel(),)):
            masks[name] = mask
    if len(masks) > 1:
        in_decoder = any(str(n.target).startswith(TARGET_SIDE) for n in list_inputs(node))
        same_side = [name for name in masks if name.startswith(TARGET_SIDE) == in_decoder]
        masks = {name: masks[name] for name in same_side or masks}
    counted = next(iter(masks.values()), None)
    return None if counted is None else counted.reshape(-1).to(x.device)


def _is_slid_over(node: fx.Node) -> bool:
    """Returns whether a convolution reads a value, whose channels are not its last dimension."""
    model = node.graph.owning_module
    return model is not None and any(get_node_row(user, model).spatial for user in node.users)


def finite_rows(
    node: fx.Node, x: Tensor, batch: Mapping[str, Any], number: int, measured: Measured
) -> Tensor:
    """Returns the (rows, channels) of a value without padding.

    Args:
        node: node that computes the value.
        x: the value, (..., channels).
        batch: the inputs by name.
        number: number of the batch.
        measured: location, for the message.

    Raises:
        ConfigError: if a row is not finite.
    """
    counted = counted_rows(node, x, batch)
    check_finite(x, counted, batch, number, measured)
    rows = x.reshape(-1, x.shape[-1])
    return rows if counted is None else rows[counted]


def check_finite(
    x: Tensor, counted: Tensor | None, batch: Mapping[str, Any], number: int, measured: Measured
) -> None:
    """Raises an error for NaN and infinite values in rows that are not padding.

    Args:
        x: the value, batch dimension first; (..., channels) if `counted` is given.
        counted: from `counted_rows`.
        batch: the inputs by name.
        number: number of the batch.
        measured: location, for the message.

    Raises:
        ConfigError: if there are any. The message names the batch, the row and the input that has
            them too.
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
        f"{measured.where}: row {row} of batch {number} causes {what} in "
        f"'{measured.path}'{origin}; leave the row out{way_out}."
    )


def check_loss(loss: Tensor, batch: Mapping[str, Any], number: int, where: str) -> None:
    """Raises an error for a NaN or infinite loss that names the batch and its non-finite row.

    Raises:
        ConfigError: if the loss is not finite.
    """
    if bool(loss.isfinite()):
        return
    origins = [
        f" (row {int(rows[0])} of its input '{name}' is not finite)"
        for name, x in batch.items()
        if isinstance(x, Tensor) and x.dim() > 0 and len(rows := non_finite_rows(x))
    ]
    raise ConfigError(
        f"{where}: the loss of batch {number} is {loss.item()}{''.join(origins[:1])}; leave out "
        "its row."
    )


def non_finite_rows(x: Tensor, counted: Tensor | None = None) -> Tensor:
    """Returns (n,) indices along the first dimension with NaN or infinite values."""
    wrong = ~x.isfinite() if x.is_floating_point() else torch.zeros(1, dtype=torch.bool)
    if counted is not None and wrong.dim() > 1:
        wrong = wrong.any(-1) & counted.view(wrong.shape[:-1])
    wrong = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong.reshape(-1)
    return wrong.nonzero()[:, 0]


def _has_some(given: Any, row: int) -> bool:
    return isinstance(given, Tensor) and given.dim() > 0 and row in non_finite_rows(given).tolist()
