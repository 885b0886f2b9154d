"""Fingerprints of weights and rows: which model and data a result is of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from chop.files.reading import read_bytes
from chop.train import Rows
from chop.trust import OF_FILE


def fingerprint_of_weights(model: nn.Module) -> str:
    """Text that is another where a parameter or buffer is."""
    return fingerprint_of_tensors(sorted(model.state_dict().items()))


def fingerprint_of_code(name: str) -> str:
    """Returns the function's name with a digest of its file, which identifies the function."""
    match = OF_FILE.fullmatch(name)
    if match is None:
        return name
    digest = hashlib.sha256(read_bytes(Path(match["file"]).expanduser(), "source")).hexdigest()[:16]
    return f"{match['name']} {digest}"


def fingerprint_of_rows(rows: Rows) -> str:
    """Text that is another where a column or label is: rows cut elsewhere are other rows."""
    listed = [
        (name, value)
        for name, column in [*sorted(rows.columns.items()), ("labels", rows.labels)]
        for value in ([column] if isinstance(column, Tensor) else column)
    ]
    return fingerprint_of_tensors(listed)


def fingerprint_of_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Text that is another where a name, a dtype, a shape or a number is."""
    digest = hashlib.sha256()
    for name, value in tensors:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
