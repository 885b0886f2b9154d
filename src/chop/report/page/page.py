"""The page of one or more runs as one text of HTML, made from manifests and documents alone.

It asks for nothing from a network: style, script, charts and graph are in it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files.documents import dump_toml
from chop.base.tables import printable
from chop.report.charts.chart import Chart, GraphChart, Histograms, LineChart, family_places
from chop.report.charts.merge import merged
from chop.report.command_line import command_line
from chop.report.document import Document, PageTable, page_table
from chop.report.page.captions import caption
from chop.report.page.histogram import histogram
from chop.report.page.numbers import get_numbers
from chop.report.page.svg import COLORS, NARROW, color_class, legend, shades, svg
from chop.report.report import Cell, Table
from chop.report.words import time_text
from chop.runs import Manifest, as_json

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

PAGE = "report.html"
"""Its own hash is not on it."""
MOST_NODES = 4000
"""Nodes of a graph that a page draws."""
MOST_FILES = 300
"""Files that a page lists."""
DECADES = 100
"""Ratio of a column's numbers from which on their colors are of their logarithms."""
PERCENT = re.compile(r"(\d) ?%(?![\w(])")
OPTION = re.compile(r"(?<!\S)--?[a-z][\w-]*")
NAME = re.compile(r"[\w.]{24,}")
INTERVAL = re.compile(r"\d %|\([^()]{1,24}\)")
"""A share, and a short text in brackets."""
HASH = 12
"""Digits of a hash that are shown; the manifest has all."""


@dataclass(frozen=True)
class PageRun:
    """A run on a page.

    Attributes:
        name: of its folder.
        manifest: of the run.
        document: of its report.
    """

    name: str
    manifest: Manifest
    document: Document


@dataclass(frozen=True)
class Picture:
    """A chart as the page has it: caption, SVG, legend and numbers, or the data of a graph.

    Attributes:
        title: title of the chart, one line.
        kind: kind of the chart.
        parts: its drawings.
        legend: legend of its colors.
        numbers: its numbers as a table.
        data: data of a graph, as JSON.
        titles: titles of the drawings, if there are several.
        narrow: the same drawings for a narrow window; none where the others fit.
        caption: description of the chart in words.
    """

    title: str
    kind: str
    parts: tuple[str, ...]
    legend: str = ""
    numbers: PageTable | None = None
    data: str = ""
    titles: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    caption: str = ""


def render(runs: Sequence[PageRun]) -> str:
    """The page.

    Args:
        runs: one, or several that are compared.
    """
    first = runs[0]
    title = first.document.title if len(runs) == 1 else " against ".join(run.name for run in runs)
    charts = list(common_charts(runs)) if len(runs) > 1 else []
    text: str = _template().render(
        title=printable(title) or first.manifest.kind,
        runs=runs,
        views=[_view(run) for run in runs],
        tiles=compared_tiles(runs) if len(runs) > 1 else None,
        charts=[picture(chart) for chart in charts],
        style=_text("page.css"),
        script=_text("page.js") + _text("graph.js"),
    )
    return text


def _view(run: PageRun) -> dict[str, Any]:
    """What the template shows of one run."""
    document, manifest = run.document, run.manifest
    return {
        "run": run,
        "pictures": [picture(c) for c in document.charts if not isinstance(c, GraphChart)],
        "graphs": [picture(c) for c in document.charts if isinstance(c, GraphChart)],
        "toml": dump_toml(manifest.settings),
        "command": command_line(manifest.command),
        "environment": _flat(manifest.environment),
        "files": _files(manifest),
    }


def compared_tiles(runs: Sequence[PageRun]) -> PageTable:
    """The tiles of several runs as a table, a row each."""
    labels = dict.fromkeys(tile.label for run in runs for tile in run.document.tiles)
    rows = []
    for run in runs:
        found = {tile.label: Cell(tile.value, tile.text) for tile in run.document.tiles}
        rows.append({"run": run.name, **{label: found.get(label) for label in labels}})
    return page_table(Table("", rows))


def common_charts(runs: Sequence[PageRun]) -> Iterable[Chart]:
    """Charts that several runs have, on the same axes."""
    keys: dict[tuple[str, ...], dict[str, Chart]] = {}
    for run in runs:
        drawn = Counter[tuple[str, ...]]()
        for chart in run.document.charts:
            if not isinstance(chart, GraphChart):
                axes = _get_axes(chart)
                keys.setdefault((*axes, str(drawn[axes])), {})[run.name] = chart
                drawn[axes] += 1
    for charts in keys.values():
        common = merged(charts) if len(charts) > 1 else None
        if common is not None:
            yield common


def _get_axes(chart: Chart) -> tuple[str, ...]:
    if isinstance(chart, LineChart):
        return chart.kind, chart.x.label, chart.y.label
    label = chart.x.label if chart.kind == "bars" else ""
    return chart.kind, chart.title, label


def picture(chart: Chart) -> Picture:
    """A chart as the page has it; the lines of its title are one sentence."""
    chart = replace(chart, title=", ".join(chart.title.splitlines()))
    if isinstance(chart, GraphChart):
        return Picture(chart.title, chart.kind, (), data=_data(chart))
    colors = _get_colors(chart)
    if isinstance(chart, Histograms):
        parts = tuple(histogram(panel, colors) for panel in chart.panels)
        titles = tuple(panel.title for panel in chart.panels)
        drawn = Picture(chart.title, chart.kind, parts, titles=titles)
    else:
        narrow = (svg(chart, NARROW),)
        drawn = Picture(chart.title, chart.kind, (svg(chart),), narrow=narrow)
    return replace(drawn, legend=legend(colors), numbers=get_numbers(chart), caption=caption(chart))


def _get_colors(chart: Chart) -> dict[str, str]:
    """The labels of a chart's legend, and the class of the color of each."""
    if isinstance(chart, Histograms):
        grids = dict.fromkeys(label for panel in chart.panels for label in panel.grids)
        return {label: f"c{i % COLORS}" for i, label in enumerate(grids)}
    if isinstance(chart, LineChart) and len(chart.series) > 1:
        kinds = zip(chart.series, family_places(chart.series), strict=True)
        return {each.label: color_class(place) + " dashed" * each.dashed for each, place in kinds}
    return {label: f"c{i}" for i, label in enumerate(getattr(chart, "parts", ()))}


def _data(chart: GraphChart) -> str:
    """The graph as JSON that a page can hold: no tag can end it."""
    nodes = [as_json(node) for node in chart.nodes[:MOST_NODES]]
    found = {
        "nodes": [{key: value for key, value in node.items() if value} for node in nodes],
        "letters": dict(chart.letters),
        "marks": dict(chart.marks),
        "leftOut": max(0, len(chart.nodes) - MOST_NODES),
    }
    text = json.dumps(found, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def get_shades(table: PageTable) -> dict[int, list[int | None]]:
    """The colors of the shaded columns, by place of the column and row; None of no number."""
    found = {}
    for place, name in enumerate(table.columns):
        if name in table.shaded:
            values = [_float(row[place]) for row in table.values]
            found[place] = shades(values, _spans_decades(values))
    return found


def _spans_decades(values: Sequence[float | None]) -> bool:
    """Whether numbers are told apart by their logarithms: all above 0, the greatest far from the
    least.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) >= DECADES * min(known)


def numeric_columns(table: PageTable) -> set[int]:
    """Places of the columns that have a number, and nothing but numbers and gaps."""
    columns = enumerate(zip(*table.values, strict=True))
    return {
        place
        for place, values in columns
        if any(map(_is_number, values)) and all(_is_number(x) or _is_gap(x) for x in values)
    }


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip("- "))


def _float(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _flat(environment: Mapping[str, Any]) -> dict[str, str]:
    """The environment, one line each."""
    found: dict[str, str] = {}
    for key, value in environment.items():
        if isinstance(value, Mapping):
            found |= {str(name): str(each) for name, each in value.items()}
        elif value is not None:
            found[str(key)] = str(value)
    return found


def _files(manifest: Manifest) -> PageTable | None:
    rows = [
        {
            "file": artifact.path,
            "bytes": Cell.of(artifact.size_bytes, ","),
            "sha256": artifact.sha256[:HASH],
        }
        for artifact in manifest.artifacts
        if artifact.path != PAGE
    ]
    left_out = max(0, len(rows) - MOST_FILES)
    table = page_table(Table("Files", rows[:MOST_FILES]))
    return replace(table, left_out=left_out) if rows else None


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@cache
def environment(*folders: Path) -> Environment:
    """Templates of pages, which escape all values."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["get_shades"] = get_shades
    found.globals["is_number"] = _is_number
    found.globals["numeric_columns"] = numeric_columns
    found.filters["printable"] = printable
    found.filters["code"] = coded
    found.filters["breakable"] = _breakable
    found.filters["said"] = said
    found.filters["time"] = time_text
    found.filters["unbroken"] = unbroken
    return found


def said(text: str) -> str:
    """Cleans a text for a page: no control characters, and a space before percent signs.

    >>> said("97.5% of 3 rows, 95 % interval")
    '97.5 % of 3 rows, 95 % interval'
    """
    return "\n".join(PERCENT.sub(r"\1 %", printable(line)) for line in text.split("\n"))


def coded(text: str) -> Markup:
    """Code as HTML. Names of options break on no line."""
    from markupsafe import Markup, escape

    shown = str(escape("\n".join(map(printable, text.splitlines()))))
    return Markup(OPTION.sub(r'<span class="option">\g<0></span>', shown))


def _breakable(text: str) -> Markup:
    """Text as HTML. Long names, as those of layers, may break behind their dots."""
    from markupsafe import Markup, escape

    return Markup(NAME.sub(lambda match: match[0].replace(".", ".<wbr>"), str(escape(text))))


def unbroken(text: str) -> str:
    """Joins a number with its unit, and the ends of its interval, by spaces that break no line.

    >>> unbroken("93.5 % (89.2 to 96.2)").split(" ")
    ['93.5\\xa0%', '(89.2\\xa0to\\xa096.2)']
    """
    return INTERVAL.sub(lambda match: match[0].replace(" ", "\u00a0"), text)


def _template() -> Any:
    return environment().get_template("page.html.jinja")
