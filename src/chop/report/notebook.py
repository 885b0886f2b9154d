"""Display of a job's result: in notebooks its report with figures, else its outcome in short."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from chop.report.page.page import PAGE
from chop.report.report import Block, Heading, Note, Report, Table
from chop.tables import html_table, printable, text_table

MOST_ROWS = 10
"""Rows of the table of a result that is printed."""

_SVG = re.compile(r"^.*?<svg\b", re.DOTALL)
"""What stands before a picture in a file, which a page has no place for, and its first tag."""


class _Shown:
    """Mixin of results that are shown by the report they come from, which they do not keep.

    `dict(result)` and `list(result)` print whole.
    """

    _text: str
    _figures: list[Path]
    _verdict: str
    _table: Table | None
    _page: Path | None = None

    def __repr__(self) -> str:
        if self._page is None:  # made by a method of the class, of other contents
            return super().__repr__()
        table, parts = self._table, [printable(self._verdict)]
        if table is not None:
            rows, more = table.rows[:MOST_ROWS], len(table.rows) - MOST_ROWS
            parts.append(text_table(table.title, rows, table.columns).rstrip())
            kept = f"{more} more row{'s are' if more > 1 else ' is'} on the page."
            parts += [kept] if more > 0 else []
        return "\n".join(filter(None, [*parts, f"Page of these results: {self._page}"]))

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        found = (
            _SVG.sub("<svg", path.read_text(encoding="utf-8"), 1)
            for path in self._figures
            if path.is_file()
        )
        return "\n".join([self._text, *found])


class ShownDict(_Shown, dict[str, Any]):
    """A job's result as a dict."""


class ShownList(_Shown, list[Any]):
    """A job's result as a list of rows."""


def with_display(report: Report[Any], folder: Path) -> Any:
    """The result of a report; a dict or a list equals it and has a notebook display too.

    Args:
        report: of a job.
        folder: where its figures and its page are.
    """
    kinds: dict[type, type] = {dict: ShownDict, list: ShownList}
    kind = kinds.get(type(report.result))
    if kind is None:
        return report.result
    shown = kind(report.result)
    blocks = [block for block in report.blocks if block.is_written]
    closing = map(Note, report.closing)
    parts = [f"<h3>{escape(report.title)}</h3>", *map(_html, blocks), *map(_html, closing)]
    shown._text = "\n".join(filter(None, parts))
    shown._figures = [folder / name for name in report.figures if name.endswith(".svg")]
    shown._verdict = report.verdict or next(iter(report.closing), report.title)
    tables = (block for block in report.blocks if isinstance(block, Table) and block.rows)
    shown._table, shown._page = next(tables, None), folder / PAGE
    return shown


def _html(block: Block) -> str:
    if isinstance(block, Table):
        return html_table(block.rows)
    if isinstance(block, Heading):
        return f"<h4>{escape(block.text)}</h4>"
    return f"<p>{escape(block.text)}</p>" if isinstance(block, Note) and block.text else ""
