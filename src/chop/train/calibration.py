"""Calibration data: a few training rows in the form that the model takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from chop import passes
from chop.base.notices import assume, get_logger
from chop.captured.wrappers import check_is_module
from chop.config import Range, with_checked_arguments
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.train.model_io import LABELS, input_columns
from chop.train.rows import (
    has_pictures_in_text,
    padding_token,
    read_rows,
    rows_per_batch,
    take_split,
)

MOST_LOST = 0.9
"""Share of the numbers other than 0 that a format may halve, before the range is in doubt."""

log = get_logger(__name__)


@contextmanager
def range_check(model: nn.Module) -> Iterator[None]:
    """Notes if the first quantized operator gets numbers that its calibrated range does not fit.

    This is the case for images of 0 to 1 after a calibration on 0 to 255: they become 0. The first
    call in the context is compared.
    """
    operators = (
        (name, each) for name, each in model.named_modules() if isinstance(each, QuantizedOperator)
    )
    name, operator = next(operators, ("", None))
    if operator is None or not operator.spec.data_in.is_fitted or operator.spec.data_in.is_identity:
        yield
        return

    def compare(operator: QuantizedOperator, inputs: tuple[Any, ...]) -> None:
        hook.remove()
        x = inputs[0] if inputs else None
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return
        halved = operator.quantize("data_in", x).abs() < x.abs() / 2
        lost = float(halved[x != 0].double().mean())
        if lost > MOST_LOST:
            assume(
                f"The format of the inputs of '{name}' does not fit these rows: {lost:.0%} of the "
                "numbers become 0 or its largest number. Calibrate on rows, data= of "
                "chop.quantize, that are scaled like these, as in training.",
                log,
            )

    hook = operator.register_forward_pre_hook(compare)
    try:
        yield
    finally:
        hook.remove()


@with_checked_arguments
def calibration_batches(
    model: nn.Module,
    dataset: Any,
    *,
    rows: Annotated[int, Range(1)] = 256,
    batch_size: Annotated[int, Range(1)] = 32,
    with_labels: bool = False,
) -> Iterator[dict[str, Tensor]]:
    """Yields batches of model inputs on the model's device, from rows spread over the data set.

    Args:
        model: determines the columns, see `input_columns`.
        dataset: labeled rows, with texts tokenized. A DatasetDict gives its `train` split.
        rows: number of rows.
        batch_size: maximum batch size, see `chop.train.rows.rows_per_batch`.
        with_labels: adds `labels`, int64 (batch_size,), even if the model takes none.
    Yields: the inputs by name, each (batch_size, ...).
    Raises:
        ConfigError: if no column matches an input of the model, or `rows` is below 1.
    """
    check_is_module(model, "calibration_batches")
    chosen = read_rows(take_split(dataset, "train")).spread(rows)
    columns = input_columns(model, [*chosen.columns, LABELS])
    device = next(model.parameters(), torch.empty(0)).device
    size = rows_per_batch(model, chosen, chosen.task, batch_size)
    for batch in chosen.batches(size, pad_id=padding_token(model)):
        fed = {**columns, LABELS: LABELS} if with_labels else columns
        yield {name: batch[column].to(device) for name, column in fed.items()}


def example_inputs(model: nn.Module, dataset: Any, rows: int = 3) -> dict[str, Tensor]:
    """Returns one batch of a few training rows as model inputs, without labels.

    Texts with images give a batch of one row, see `has_pictures_in_text`.
    """
    dataset = read_rows(take_split(dataset, "train"))
    rows = 1 if has_pictures_in_text(dataset) else rows
    batch = next(calibration_batches(model, dataset, rows=rows, batch_size=rows))
    return {name: column for name, column in batch.items() if name != LABELS}


def calibrated(mg: MaseGraph, dataset: Any, rows: int) -> MaseGraph:
    """Computes the pending scales of a quantized graph from training rows, in place."""
    operators = (m for m in mg.model.modules() if isinstance(m, QuantizedOperator))
    if all(operator.spec.is_fitted for operator in operators):
        return mg
    batches = list(calibration_batches(mg.model, dataset, rows=rows))
    for name in batches[0]:
        column = torch.cat([batch[name].flatten() for batch in batches])
        if column.is_floating_point() and len(column) > 1 and bool((column == column[0]).all()):
            assume(
                f"All numbers of '{name}' are {float(column[0]):g} in the rows of the calibration, "
                "so its format fits only these. Calibrate on rows as the model gets them.",
                log,
            )
    return passes.calibrate_transform_pass(mg, {"batches": batches}, inplace=True)[0]
