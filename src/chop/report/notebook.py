"""Display of a job's result: its report in notebooks, a short outcome elsewhere."""

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

MAX_ROWS = 10
"""Maximum number of printed table rows."""

_SVG = re.compile(r"^.*?<svg\b", re.DOTALL)
"""Preamble of an SVG file up to its first tag, which HTML cannot contain."""


@dataclass(frozen=True)
class _ReportDisplay:
    """Displayed parts of a report, detached from the report itself.

    Attributes:
        verdict: outcome in one sentence.
        table: first table, printed up to `MAX_ROWS` rows.
        page: path of the page of these results.
        parts: report as HTML.
        figures: files of its figures, displayed after the report.
    """

    verdict: str
    table: Table | None
    page: Path
    parts: str
    figures: tuple[Path, ...]

    def text(self) -> str:
        """Returns the outcome, a table and the path of the page as text."""
        parts = [printable(self.verdict)]
        if self.table is not None:
            rows, more = self.table.rows[:MAX_ROWS], len(self.table.rows) - MAX_ROWS
            parts.append(text_table(self.table.title, rows, self.table.columns).rstrip())
            remainder = f"{more} more row{'s are' if more > 1 else ' is'} on the page."
            parts += [remainder] if more > 0 else []
        parts.append(f"Page of these results: {printable(str(self.page))}")
        return "\n".join(filter(None, parts))

    def html(self) -> str:
        """Returns the report and its figures as HTML."""
        pictures = (
            _SVG.sub("<svg", read_text(path, "picture"), 1)
            for path in self.figures
            if path.is_file()
        )
        return "\n".join([self.parts, *pictures])


class _ShownDict(Displayed, dict[str, Any]):
    """Result of a job as a dict; `dict(result)` prints all of it."""


class _ShownList(Displayed, list[Any]):
    """Result of a job as a list of rows; `list(result)` prints all of it."""


def with_display(report: Report[Any], folder: Path) -> Any:
    """Returns the result of a report with a display attached; it compares equal to the original.

    Args:
        report: report of a job. A result that is not a dict, list or `Displayed` is returned
            unchanged.
        folder: folder of its figures and its page.
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
