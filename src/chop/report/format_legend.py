"""Legend that explains the short names of number formats on a page."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from chop.errors import enumerate_names
from chop.formats import NumberFormat
from chop.report.report import Table

INTEGER = (
    "Fixed point in two's complement: 8.5 has 8 bits, 5 of them after the binary "
    "point. 8.auto, 8.mse: the place of the point is chosen for each tensor."
)
MAX_LABELS = 6


def format_legend(formats: Iterable[NumberFormat]) -> Table | None:
    """Returns a table of name and meaning for each kind of format, or None without formats.

    Args:
        formats: formats of the page, repeats allowed. Float formats are skipped.
    """
    labels: dict[type[NumberFormat], dict[str, None]] = {}
    for each in formats:
        if not each.is_identity:
            labels.setdefault(type(each), {})[each.label] = None
    rows = []
    for kind, names in labels.items():
        label = enumerate_names(list(names), MAX_LABELS)
        rows.append({"format": label, "what it is": _described(kind)})
    return Table("Formats on this page", rows) if rows else None


def _described(kind: type[NumberFormat]) -> str:
    """Returns the first sentence of a format's definition; for integers, the naming scheme."""
    if kind.name == "integer":
        return INTEGER
    first = (inspect.getdoc(kind) or kind.name).split("\n\n")[0]
    return " ".join(first.split())
