"""Display of a job's result: in notebooks its report with figures, else its outcome in short."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from chop.base.displayed import Displayed, displayed
from chop.base.files.reading import read_text
from chop.base.tables import html_table, printable, text_table
from chop.report.page.page import PAGE
from chop.report.report import Block, Heading, Note, Report, Table

MOST_ROWS = 10
"""Rows of the table of a result that is printed."""

_SVG = re.compile(r"^.*?<svg\b", re.DOTALL)
"""What stands before a picture in a file, which a page has no place for, and its first tag."""


@dataclass(frozen=True)
class _ReportDisplay:
    """A report as a result shows it, which does not keep the report.

    Attributes:
        verdict: the outcome in one sentence.
        table: its first table, printed to `MOST_ROWS` rows.
        page: of the same results.
        parts: the report as HTML.
        figures: files of its figures, which follow.
    """

    verdict: str
    table: Table | None
    page: Path
    parts: str
    figures: tuple[Path, ...]

    def text(self) -> str:
        """The outcome, a table and the path of the page."""
        parts = [printable(self.verdict)]
        if self.table is not None:
            rows, more = self.table.rows[:MOST_ROWS], len(self.table.rows) - MOST_ROWS
            parts.append(text_table(self.table.title, rows, self.table.columns).rstrip())
            kept = f"{more} more row{'s are' if more > 1 else ' is'} on the page."
            parts += [kept] if more > 0 else []
        parts.append(f"Page of these results: {printable(str(self.page))}")
        return "\n".join(filter(None, parts))

    def html(self) -> str:
        """The report and its figures."""
        found = (
            _SVG.sub("<svg", read_text(path, "picture"), 1)
            for path in self.figures
            if path.is_file()
        )
        return "\n".join([self.parts, *found])


class _ShownDict(Displayed, dict[str, Any]):
    """A job's result as a dict; `dict(result)` prints whole."""


class _ShownList(Displayed, list[Any]):
    """A job's result as a list of rows; `list(result)` prints whole."""


def with_display(report: Report[Any], folder: Path) -> Any:
    """The result of a report; it equals that and has a display, in notebooks the report's.

    Args:
        report: of a job; a result that is no dict, list or `Displayed` stays as it is.
        folder: where its figures and its page are.
    """
    kinds: dict[type, type] = {dict: _ShownDict, list: _ShownList}
    kind = kinds.get(type(report.result))
    result = report.result if kind is None else kind(report.result)
    if not isinstance(result, Displayed):
        return result
    blocks = [block for block in report.blocks if block.is_written]
    closing = map(Note, report.closing)
    heading = f"<h3>{escape(report.title)}</h3>" if report.title else ""
    parts = [heading, *map(_html, blocks), *map(_html, closing)]
    tables = (block for block in report.blocks if isinstance(block, Table) and block.rows)
    display = _ReportDisplay(
        verdict=report.verdict or next(iter(report.closing), report.title),
        table=next(tables, None),
        page=folder / PAGE,
        parts="\n".join(filter(None, parts)),
        figures=tuple(folder / name for name in report.figures if name.endswith(".svg")),
    )
    return displayed(result, display)


def _html(block: Block) -> str:
    if isinstance(block, Table):
        return html_table(block.rows)
    if isinstance(block, Heading):
        return f"<h4>{escape(block.text)}</h4>"
    return f"<p>{escape(block.text)}</p>" if isinstance(block, Note) and block.text else ""
