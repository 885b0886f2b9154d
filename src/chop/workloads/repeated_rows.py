"""Check for test rows that are also training rows, as in two copies of one table."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from chop.base.notices import assume, get_logger
from chop.train import Rows

log = get_logger(__name__)
MOST_ROWS = 2**14
"""Number of rows at the start of a split that are compared."""
LARGE_SHARE = 0.5
"""Share of repeated test rows that is reported. Some rows occur twice in most tables."""


def report_repeated_rows(rows: Mapping[str, Rows]) -> None:
    """Reports test rows that also occur in the training rows, with equal labels.

    Tables of few values repeat rows by chance: nothing is reported if the training rows are not
    mostly distinct.

    Args:
        rows: the splits by name; nothing is compared without `train` and `test`.
    """
    if not {"train", "test"} <= rows.keys():
        return
    train, test = _hashes(rows["train"]), _hashes(rows["test"])
    known = set(train)
    repeated = sum(each in known for each in test)
    if repeated > LARGE_SHARE * len(test) and len(known) > LARGE_SHARE * len(train):
        first = "the first " if len(rows["test"]) > len(test) else ""
        assume(
            f"{repeated} of {first}{len(test)} test rows are also training rows, so that results "
            "on the test rows may be too good. Use rows that the model was not trained on.",
            log,
        )


def _hashes(rows: Rows) -> list[int]:
    """Returns a hash of the inputs and the label of each row."""
    columns = [*rows.columns.values(), rows.labels]
    count = min(len(rows), MOST_ROWS)
    return [hash(tuple(_bytes(column[i]) for column in columns)) for i in range(count)]


def _bytes(x: Tensor) -> bytes:
    """Returns the memory of a tensor, also of dtypes that NumPy lacks."""
    return x.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
