"""Fingerprints that identify the model and the data of a result."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.files.reading import read_bytes
from chop.base.trust import CODE_FILE
from chop.train import Rows


def fingerprint_of_weights(model: nn.Module) -> str:
    """Returns a text that changes with any parameter or buffer."""
    state = sorted(model.state_dict().items())
    return fingerprint_of_tensors((name, x) for name, x in state if isinstance(x, Tensor))


def fingerprint_of_code(name: str) -> str:
    """Returns the function's name with a digest of its file, which identifies the function."""
    match = CODE_FILE.fullmatch(name)
    if match is None:
        return name
    digest = hashlib.sha256(read_bytes(Path(match["file"]).expanduser(), "source")).hexdigest()[:16]
    return f"{match['name']} {digest}"


def fingerprint_of_function(function: Callable[..., Any], code: str = "") -> str:
    """Returns a text that identifies a function.

    Args:
        function: function of the user.
        code: its name in a command, `file.py:fn`, whose file is hashed. "" for a function of a
            program: then its own code is hashed, without the functions that it calls.
    """
    if code:
        return fingerprint_of_code(code)
    own = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    parts = () if own is None else (own.co_code, own.co_consts, own.co_names, own.co_freevars)
    text = f"{getattr(function, '__qualname__', type(function).__qualname__)} {parts!r}"
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode()).hexdigest()[:16]


def fingerprint_of_rows(rows: Rows) -> str:
    """Returns a text that changes with any column, label or number of rows."""
    listed = [
        (name, value)
        for name, column in [*sorted(rows.columns.items()), ("labels", rows.labels)]
        for value in ([column] if isinstance(column, Tensor) else column)
    ]
    return fingerprint_of_tensors(listed)


def fingerprint_of_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Returns a text that changes with any name, dtype, shape or number."""
    digest = hashlib.sha256()
    for name, value in tensors:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
