"""Notebook display of a job's result: its report as HTML, with the figures that were written."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from chop.report.report import Block, Heading, Note, Report, Table
from chop.tables import html_table


class _Shown:
    """Mixin of results that IPython shows by the report they come from, which they do not keep."""

    _text: str
    _figures: list[Path]

    def _repr_html_(self) -> str:
        found = (path.read_text(encoding="utf-8") for path in self._figures if path.is_file())
        return "\n".join([self._text, *found])


class ShownDict(_Shown, dict[str, Any]):
    """A job's result as a dict."""


class ShownList(_Shown, list[Any]):
    """A job's result as a list of rows."""


def with_display(report: Report[Any], folder: Path) -> Any:
    """The result of a report; a dict or a list equals it and has a notebook display too.

    Args:
        report: of a job.
        folder: where its figures are.
    """
    kinds: dict[type, type] = {dict: ShownDict, list: ShownList}
    kind = kinds.get(type(report.result))
    if kind is None:
        return report.result
    shown = kind(report.result)
    parts = [f"<h3>{escape(report.title)}</h3>", *map(_html, report.blocks)]
    shown._text = "\n".join(filter(None, parts))
    shown._figures = [folder / name for name in report.figures if name.endswith(".svg")]
    return shown


def _html(block: Block) -> str:
    if isinstance(block, Table):
        return html_table(block.rows)
    if isinstance(block, Heading):
        return f"<h4>{escape(block.text)}</h4>"
    return f"<p>{escape(block.text)}</p>" if isinstance(block, Note) and block.text else ""
