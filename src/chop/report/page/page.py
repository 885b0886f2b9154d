"""HTML page of one or more runs, rendered from manifests and page contents.

The page is self-contained: style, scripts, charts and graphs are embedded, and nothing is loaded
from a network.
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
"""File name of the page. The manifest excludes it from its hashes."""
MAX_NODES = 4000
"""Maximum number of graph nodes on a page."""
MAX_FILES = 300
"""Maximum number of files listed on a page."""
DECADES = 100
"""Ratio of a column's extreme numbers above which shading is logarithmic."""
PERCENT = re.compile(r"(\d) ?%(?![\w(])")
OPTION = re.compile(r"(?<!\S)--?[a-z][\w-]*")
NAME = re.compile(r"[\w.]{24,}")
INTERVAL = re.compile(r"\d %|\([^()]{1,24}\)")
"""Pattern of a percentage, or of a short text in brackets."""
HASH = 12
"""Number of hash digits on the page; the manifest has the full hash."""


@dataclass(frozen=True)
class PageRun:
    """Run on a page.

    Attributes:
        name: name of its folder.
        manifest: its manifest.
        document: its page content.
    """

    name: str
    manifest: Manifest
    document: Document


@dataclass(frozen=True)
class Picture:
    """Chart on a page: caption, SVG, legend and numbers, or the data of a graph.

    Attributes:
        title: title of the chart in one line.
        kind: kind of the chart.
        parts: drawings as SVG.
        legend: legend as HTML.
        numbers: numbers as a table.
        data: graph as JSON.
        titles: titles of the drawings, if there are several.
        narrow: drawings for a narrow window. Empty if the wide ones fit.
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
    """Renders a page as HTML.

    Args:
        runs: one run, or several to compare.
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
    """Returns the template variables of one run."""
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
    """Returns the tiles of several runs as a table with a row per run."""
    labels = dict.fromkeys(tile.label for run in runs for tile in run.document.tiles)
    rows = []
    for run in runs:
        tiles = {tile.label: Cell(tile.value, tile.text) for tile in run.document.tiles}
        rows.append({"run": run.name, **{label: tiles.get(label) for label in labels}})
    return page_table(Table("", rows))


def common_charts(runs: Sequence[PageRun]) -> Iterable[Chart]:
    """Returns the charts that several runs share, merged onto common axes."""
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
    """Converts a chart to its page form, with the title in one line."""
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
    """Returns the labels of a chart's legend and the CSS classes of their colors."""
    if isinstance(chart, Histograms):
        grids = dict.fromkeys(label for panel in chart.panels for label in panel.grids)
        return {label: f"c{i % COLORS}" for i, label in enumerate(grids)}
    if isinstance(chart, LineChart) and len(chart.series) > 1:
        kinds = zip(chart.series, family_places(chart.series), strict=True)
        return {each.label: color_class(place) + " dashed" * each.dashed for each, place in kinds}
    return {label: f"c{i}" for i, label in enumerate(getattr(chart, "parts", ()))}


def _data(chart: GraphChart) -> str:
    """Returns a graph as JSON that is safe inside a script element."""
    nodes = [as_json(node) for node in chart.nodes[:MAX_NODES]]
    graph = {
        "nodes": [{key: value for key, value in node.items() if value} for node in nodes],
        "letters": dict(chart.letters),
        "marks": dict(chart.marks),
        "leftOut": max(0, len(chart.nodes) - MAX_NODES),
    }
    text = json.dumps(graph, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def get_shades(table: PageTable) -> dict[int, list[int | None]]:
    """Returns color levels of the shaded columns by column, then row. None for cells without
    numbers.
    """
    levels = {}
    for place, name in enumerate(table.columns):
        if name in table.shaded:
            values = [_float(row[place]) for row in table.values]
            levels[place] = shades(values, _spans_decades(values))
    return levels


def _spans_decades(values: Sequence[float | None]) -> bool:
    """Returns whether shading is logarithmic: all values positive, over a wide range."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) >= DECADES * min(known)


def numeric_columns(table: PageTable) -> set[int]:
    """Returns the indices of columns with numbers and gaps only."""
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
    """Returns environment entries as lines of text."""
    entries: dict[str, str] = {}
    for key, value in environment.items():
        if isinstance(value, Mapping):
            entries |= {str(name): str(each) for name, each in value.items()}
        elif value is not None:
            entries[str(key)] = str(value)
    return entries


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
    omitted = max(0, len(rows) - MAX_FILES)
    table = page_table(Table("Files", rows[:MAX_FILES]))
    return replace(table, left_out=omitted) if rows else None


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@cache
def environment(*folders: Path) -> Environment:
    """Returns the template environment for pages, with all values escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["get_shades"] = get_shades
    templates.globals["is_number"] = _is_number
    templates.globals["numeric_columns"] = numeric_columns
    templates.filters["printable"] = printable
    templates.filters["code"] = coded
    templates.filters["breakable"] = _breakable
    templates.filters["clean"] = clean_text
    templates.filters["time"] = time_text
    templates.filters["unbroken"] = unbroken
    return templates


def clean_text(text: str) -> str:
    """Cleans text for a page: drops control characters and puts spaces before percent signs.

    >>> clean_text("97.5% of 3 rows, 95 % interval")
    '97.5 % of 3 rows, 95 % interval'
    """
    return "\n".join(PERCENT.sub(r"\1 %", printable(line)) for line in text.split("\n"))


def coded(text: str) -> Markup:
    """Returns code as HTML whose option names do not break across lines."""
    from markupsafe import Markup, escape

    escaped = str(escape("\n".join(map(printable, text.splitlines()))))
    return Markup(OPTION.sub(r'<span class="option">\g<0></span>', escaped))


def _breakable(text: str) -> Markup:
    """Returns text as HTML whose long names, such as those of layers, may break after dots."""
    from markupsafe import Markup, escape

    return Markup(NAME.sub(lambda match: match[0].replace(".", ".<wbr>"), str(escape(text))))


def unbroken(text: str) -> str:
    """Replaces spaces inside numbers with units and inside intervals by non-breaking ones.

    >>> unbroken("93.5 % (89.2 to 96.2)").split(" ")
    ['93.5\\xa0%', '(89.2\\xa0to\\xa096.2)']
    """
    return INTERVAL.sub(lambda match: match[0].replace(" ", "\u00a0"), text)


def _template() -> Any:
    return environment().get_template("page.html.jinja")
