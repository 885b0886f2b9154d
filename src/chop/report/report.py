"""Report of a job: tables, sentences, figures and files.

A report is data. The terminal (`show`), Markdown (`write_report`) and notebooks
(`chop.report.notebook`) render the same blocks, and the result is written as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from chop.base.files import write_json
from chop.base.tables import print_table, write_markdown
from chop.errors import check_known, in_callers_words
from chop.report.charts.chart import Chart
from chop.report.words import in_words
from chop.runs import Outcome

Writer = Callable[[Path], object]
"""Function that writes or draws a file at a path."""
FIGURE_SUFFIXES = (".svg", ".png")
"""Default figure formats: SVG for pages, PNG for everything else."""
FIGURE_KINDS = ("pdf", "png", "svg")
"""Formats of `--figures`; PDF is for LaTeX."""
_further: ContextVar[tuple[str, ...]] = ContextVar("further figure formats", default=())
_has_details: ContextVar[bool] = ContextVar("details are printed", default=False)
R = TypeVar("R")


@dataclass(frozen=True)
class Cell:
    """Table number with its formatted text.

    Attributes:
        value: the number.
        text: formatted number, with unit or interval.

    >>> str(Cell.of(12345, ","))
    '12,345'
    """

    value: Any
    text: str

    @classmethod
    def of(cls, value: Any, form: str = "") -> Cell:
        """Formats a number by a Python format specification."""
        return cls(value, format(value, form))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Block:
    """Part of a report.

    Attributes:
        is_printed: True if the terminal shows it.
        is_detail: True if the terminal shows it with `--verbose` only. The page always shows it.
        is_written: True if the document contains it.
    """

    is_printed: bool = field(default=True, kw_only=True)
    is_detail: bool = field(default=False, kw_only=True)
    is_written: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Table(Block):
    """Table with equal columns in all rows.

    Attributes:
        title: heading of the table in the terminal.
        rows: a mapping for each row: numbers as `Cell`, texts and plain values.
        columns: columns in the narrow terminal. None for all.
        shaded: columns of a page with a color behind each number.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str] | None = None
    shaded: Sequence[str] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Note(Block):
    """Paragraph on the results. Empty paragraphs are omitted."""

    text: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text and in_callers_words(self.text))


@dataclass(frozen=True)
class Heading(Block):
    """Heading of the document, of level 1 or more; the terminal shows none."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Tile:
    """Headline number of a page.

    Attributes:
        label: name of the number.
        value: number with its unit.
        note: comparison value or interval.
    """

    label: str
    value: Cell
    note: str = ""


@dataclass(frozen=True)
class Step:
    """Suggested next step with the results of a run.

    Attributes:
        label: description of the step.
        code: command line, lines of Python or path, ready to paste.
    """

    label: str
    code: str


@dataclass(frozen=True)
class Report(Generic[R]):
    """Results of a job in printable and writable form.

    Attributes:
        title: title of the report.
        documents: Markdown file -> its blocks. The terminal shows them in the same order.
        result: return value of the job.
        rows: table of the manifest.
        figures: file name -> function that draws it.
        files: file name, or stem of several -> function that writes it.
        result_file: JSON file of `result`. "" for none.
        closing: sentences that the terminal shows after everything is written.
        written: files of the run written by other processes or steps.
        verdict: outcome in one sentence. "" uses the first closing sentence.
        warnings: cautions to read before the numbers.
        tiles: headline numbers.
        charts: further charts that only the page shows.
        tables: further tables that only the page shows.
        outcome: numbers for lists of runs.
        steps: suggested next steps, at the end of the page.
        assumptions: assumptions of the job, most important first.
    """

    title: str
    documents: Mapping[str, Sequence[Block]]
    result: R
    rows: Sequence[Mapping[str, Any]]
    figures: Mapping[str, Writer] = field(default_factory=dict)
    files: Mapping[str, Writer] = field(default_factory=dict)
    result_file: str = "result.json"
    closing: Sequence[str] = ()
    written: Sequence[Path] = ()
    verdict: str = ""
    warnings: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    outcome: Outcome | None = None
    steps: Sequence[Step] = ()
    assumptions: Sequence[str] = ()

    @property
    def blocks(self) -> list[Block]:
        """Returns the blocks of all documents."""
        return [block for blocks in self.documents.values() for block in blocks]


def show(*blocks: Block) -> list[Block]:
    """Prints blocks in order.

    Returns: the blocks marked as printed, so that a report with them does not print them again.
    """
    for block in blocks:
        is_visible = block.is_printed and (_has_details.get() or not block.is_detail)
        if is_visible and isinstance(block, Table):
            print_table(block.title, block.rows, block.columns, leaves_out_alike=True)
        elif is_visible and isinstance(block, Note) and block.text:
            say(block.text)
    return [dataclasses.replace(block, is_printed=False) for block in blocks]


def say(text: str, *, is_whole: bool = False) -> None:
    """Prints a sentence of the results, also with `--quiet`.

    Args:
        text: sentence to print.
        is_whole: keeps the text on one line, so that a path in it can be copied.
    """
    from rich.console import Console

    Console().print(in_callers_words(text), highlight=False, markup=False, soft_wrap=is_whole)


def announce(subject: str, step: str) -> None:
    """Prints the current step of a job, with its subject in bold. `--quiet` suppresses it."""
    from rich import get_console
    from rich.text import Text

    get_console().print(Text.assemble((subject, "bold"), f": {step}"))


def write_report(report: Report[Any], folder: Path) -> None:
    """Writes the files, figures, Markdown documents and result JSON of a report.

    Raises:
        WriteError: if the disk is full or read-only.
    """
    for name, write in {**report.files, **_in_further_kinds(report.figures)}.items():
        write(folder / name)
    for place, (name, blocks) in enumerate(report.documents.items()):
        start = int(bool(blocks) and isinstance(blocks[0], Heading))  # below the title
        own = [] if place else [Note(assumptions_text(report))]
        write_document(folder / name, [*blocks[:start], *own, *blocks[start:]])
    if report.result_file:
        write_json(folder / report.result_file, _result_document(report))


def _result_document(report: Report[Any]) -> Any:
    """Returns the result as plain values. A mapping includes the assumptions."""
    result = report.result
    is_record = dataclasses.is_dataclass(result) and not isinstance(result, type)
    content = dataclasses.asdict(result) if is_record else result
    if not report.assumptions or not isinstance(content, dict):
        return content
    return {**content, "assumptions": list(report.assumptions)}


def assumptions_text(report: Report[Any]) -> str | None:
    """Formats the assumptions of a report as a list, or None if there are none."""
    if not report.assumptions:
        return None
    return "\n".join(["Assumptions:", "", *(f"- {text}" for text in report.assumptions)])


@contextmanager
def with_details() -> Iterator[None]:
    """Context manager under which the terminal also shows details."""
    token = _has_details.set(True)
    try:
        yield
    finally:
        _has_details.reset(token)


@contextmanager
def further_figures(kinds: Sequence[str]) -> Iterator[None]:
    """Context manager under which reports also write each figure in further formats.

    Args:
        kinds: formats from `FIGURE_KINDS`.
    Raises:
        ConfigError: if a format is unknown.
    """
    for kind in kinds:
        check_known(kind, FIGURE_KINDS, "--figures: unknown figure format")
    token = _further.set(tuple(kinds))
    try:
        yield
    finally:
        _further.reset(token)


def _in_further_kinds(figures: Mapping[str, Writer]) -> dict[str, Writer]:
    further = {
        f"{Path(name).with_suffix('')}.{kind}": draw
        for name, draw in figures.items()
        for kind in _further.get()
        if isinstance(draw, Figure)
    }
    return {**further, **figures}


def write_document(path: Path, blocks: Sequence[Block]) -> None:
    """Writes blocks as a Markdown file.

    Raises:
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    write_markdown(path, *(_markdown(block) for block in blocks if block.is_written))


def _markdown(block: Block) -> str | Sequence[Mapping[str, Any]] | None:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Table):
        words = {name: in_words(name) for row in block.rows[:1] for name in row}
        return [{words[name]: value for name, value in row.items()} for row in block.rows]
    assert isinstance(block, Note)
    return block.text


@dataclass(frozen=True)
class Figure:
    """Figure of `Report.figures`, which draws into a file and provides its charts to a page.

    Attributes:
        make: chart maker.
        args: positional arguments of the chart maker.
        kwargs: keyword arguments of the chart maker.
    """

    make: Callable[..., Sequence[Chart]]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, path: Path) -> Path:
        """Draws the figure into a file in the format of its suffix."""
        from chop.report.figures.draw import draw_charts

        return draw_charts(path, self.make(*self.args, **self.kwargs))

    @property
    def charts(self) -> list[Chart]:
        """Returns the charts that are not empty."""
        return [chart for chart in self.make(*self.args, **self.kwargs) if not chart.is_empty]


def figure(make: Callable[..., Sequence[Chart]], *args: Any, **kwargs: Any) -> Figure:
    """Returns a figure for `Report.figures`.

    Args:
        make: chart maker, such as `chop.report.charts.accuracy.accuracy_charts`.
        args: positional arguments of the chart maker.
        kwargs: keyword arguments of the chart maker.
    """
    return Figure(make, args, kwargs)


def figure_files(
    name: str, make: Callable[..., Sequence[Chart]], *args: Any, **kwargs: Any
) -> dict[str, Writer]:
    """Returns a figure in each format of `FIGURE_SUFFIXES`, for `Report.figures`.

    Args:
        name: stem of the files.
        make: chart maker, see `figure`.
        args: positional arguments of the chart maker.
        kwargs: keyword arguments of the chart maker.
    """
    return {name + suffix: figure(make, *args, **kwargs) for suffix in FIGURE_SUFFIXES}
