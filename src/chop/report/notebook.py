"""Notebook display of a job's result: its report as HTML, with the figures that were written."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from chop.report.report import Block, Heading, Note, Report, Table
from chop.tables import html_table

_SVG = re.compile(r"^.*?<svg\b", re.DOTALL)
"""What stands before a picture in a file, which a page has no place for, and its first tag."""


class _Shown:
    """Mixin of results that IPython shows by the report they come from, which they do not keep."""

    _text: str
    _figures: list[Path]

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
        folder: where its figures are.
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
    return shown


def _html(block: Block) -> str:
    if isinstance(block, Table):
        return html_table(block.rows)
    if isinstance(block, Heading):
        return f"<h4>{escape(block.text)}</h4>"
    return f"<p>{escape(block.text)}</p>" if isinstance(block, Note) and block.text else ""
