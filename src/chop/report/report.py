"""Report of a job: tables, sentences, figures and files, printed and written by one function each.

A report is data: the terminal (`show`), Markdown (`write_report`) and notebooks
(`chop.report.notebook`) render the same blocks; its result is written as JSON.
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
from chop.errors import check_known
from chop.report.charts.chart import Chart
from chop.runs import Outcome

Writer = Callable[[Path], object]
"""Writes or draws a file at a path."""
FIGURE_SUFFIXES = (".svg", ".png")
"""Formats of a figure: for a page, and for everything else."""
FIGURE_KINDS = ("pdf", "png", "svg")
"""What `--figures` takes: PDF is what LaTeX reads."""
_further: ContextVar[tuple[str, ...]] = ContextVar("further kinds of figures", default=())
_has_details: ContextVar[bool] = ContextVar("details are printed", default=False)
R = TypeVar("R")


@dataclass(frozen=True)
class Cell:
    """A number of a table with its display, formatted once.

    Attributes:
        value: the number.
        text: its display, with unit or interval.

    >>> str(Cell.of(12345, ","))
    '12,345'
    """

    value: Any
    text: str

    @classmethod
    def of(cls, value: Any, form: str = "") -> Cell:
        """A number in a format specification of Python."""
        return cls(value, format(value, form))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Block:
    """Part of a report.

    Attributes:
        is_printed: shown in the terminal.
        is_detail: shown there by `--verbose` alone; the page has it anyway.
        is_written: part of the document.
    """

    is_printed: bool = field(default=True, kw_only=True)
    is_detail: bool = field(default=False, kw_only=True)
    is_written: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Table(Block):
    """Rows of equal columns.

    Attributes:
        title: above the table in the terminal.
        rows: a mapping each: numbers as `Cell`, texts and plain values.
        columns: those of the terminal, which is narrow; None takes all.
        shaded: columns of a page with a color behind each number.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str] | None = None
    shaded: Sequence[str] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Note(Block):
    """A paragraph: sentences on the results. Empty ones are left out."""

    text: str | None


@dataclass(frozen=True)
class Heading(Block):
    """A heading of the document, of level 1 or more; the terminal has none."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Tile:
    """A number that the page shows first.

    Attributes:
        label: what it is.
        value: the number with its unit.
        note: what it is compared with, or its interval.
    """

    label: str
    value: Cell
    note: str = ""


@dataclass(frozen=True)
class Step:
    """Suggested next step with the results of a run.

    Attributes:
        label: description of the step.
        code: a command line, lines of Python or a path, which can be pasted as it is.
    """

    label: str
    code: str


@dataclass(frozen=True)
class Report(Generic[R]):
    """Results of a job, as they are printed and written.

    Attributes:
        title: of the whole, in words.
        documents: Markdown file -> its blocks; the terminal shows them in the same order.
        result: what the job returns.
        rows: the table of the manifest.
        figures: file -> draws it.
        files: file, or stem of several -> writes it.
        result_file: JSON file of `result`; "" writes none.
        closing: sentences for the terminal alone, once everything is written.
        written: files of the run that other processes or steps have written.
        verdict: the outcome in one sentence; "" takes the first closing sentence.
        warnings: what a reader must know before the numbers.
        tiles: the numbers that matter most.
        charts: what only the page shows, beside the charts of the figures.
        tables: what only the page shows.
        outcome: the numbers by which a list of runs tells this one from others.
        steps: next steps for the reader, at the end of the page.
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
        """The blocks of all documents."""
        return [block for blocks in self.documents.values() for block in blocks]


def show(*blocks: Block) -> list[Block]:
    """Prints blocks, in order.

    Returns: the same blocks, marked as printed: a report that has them writes them alone.
    """
    for block in blocks:
        is_shown = block.is_printed and (_has_details.get() or not block.is_detail)
        if is_shown and isinstance(block, Table):
            print_table(block.title, block.rows, block.columns, leaves_out_alike=True)
        elif is_shown and isinstance(block, Note) and block.text:
            say(block.text)
    return [dataclasses.replace(block, is_printed=False) for block in blocks]


def say(text: str, *, is_whole: bool = False) -> None:
    """Prints a sentence of the results, which `--quiet` leaves.

    Args:
        text: the sentence.
        is_whole: no line break is put into it, which a path cannot be copied with.
    """
    from rich.console import Console

    Console().print(text, highlight=False, markup=False, soft_wrap=is_whole)


def announce(subject: str, step: str) -> None:
    """Prints the step of a job that begins, with its subject in bold; `--quiet` silences it."""
    from rich import get_console
    from rich.text import Text

    get_console().print(Text.assemble((subject, "bold"), f": {step}"))


def write_report(report: Report[Any], folder: Path) -> None:
    """Writes files, figures, Markdown documents and the JSON of a report.

    Raises:
        WriteError: the disk is full or read-only.
    """
    for name, write in {**report.files, **_in_further_kinds(report.figures)}.items():
        write(folder / name)
    for place, (name, blocks) in enumerate(report.documents.items()):
        first = [] if place else [Note(assumptions_text(report))]
        write_document(folder / name, [*first, *blocks])
    if report.result_file:
        write_json(folder / report.result_file, _result_document(report))


def _result_document(report: Report[Any]) -> Any:
    """The result as plain values; a mapping has the assumptions, too."""
    result = report.result
    is_record = dataclasses.is_dataclass(result) and not isinstance(result, type)
    content = dataclasses.asdict(result) if is_record else result
    if not report.assumptions or not isinstance(content, dict):
        return content
    return {**content, "assumptions": list(report.assumptions)}


def assumptions_text(report: Report[Any]) -> str | None:
    """Formats the assumptions of a report as one list, or None if there are none."""
    if not report.assumptions:
        return None
    return "\n".join(["Assumptions:", "", *(f"- {text}" for text in report.assumptions)])


@contextmanager
def with_details() -> Iterator[None]:
    """Context in which the terminal also shows details."""
    token = _has_details.set(True)
    try:
        yield
    finally:
        _has_details.reset(token)


@contextmanager
def further_figures(kinds: Sequence[str]) -> Iterator[None]:
    """Inside, reports write each of their figures as these kinds of files, too.

    Args:
        kinds: of `FIGURE_KINDS`.
    Raises:
        ConfigError: there is no such kind.
    """
    for kind in kinds:
        check_known(kind, FIGURE_KINDS, "--figures: no kind of figure")
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
    """Writes blocks as one Markdown file.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    write_markdown(path, *(_markdown(block) for block in blocks if block.is_written))


def _markdown(block: Block) -> str | Sequence[Mapping[str, Any]] | None:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Table):
        return block.rows
    assert isinstance(block, Note)
    return block.text


@dataclass(frozen=True)
class Figure:
    """A figure of `Report.figures`: draws itself into a file, and gives its charts to a page.

    Attributes:
        make: returns the charts.
        args: its arguments.
        kwargs: by name.
    """

    make: Callable[..., Sequence[Chart]]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, path: Path) -> Path:
        """Writes the figure; the suffix of the path picks the kind."""
        from chop.report.figures.draw import draw_charts

        return draw_charts(path, self.make(*self.args, **self.kwargs))

    @property
    def charts(self) -> list[Chart]:
        """The charts in which there is something to compare."""
        return [chart for chart in self.make(*self.args, **self.kwargs) if not chart.is_empty]


def figure(make: Callable[..., Sequence[Chart]], *args: Any, **kwargs: Any) -> Figure:
    """A figure of `Report.figures`.

    Args:
        make: chart maker, such as `chop.report.charts.accuracy.accuracy_charts`.
        args: its arguments.
        kwargs: by name.
    """
    return Figure(make, args, kwargs)


def figure_files(
    name: str, make: Callable[..., Sequence[Chart]], *args: Any, **kwargs: Any
) -> dict[str, Writer]:
    """The same figure in every format of `FIGURE_SUFFIXES`, for `Report.figures`.

    Args:
        name: of the files, without a suffix.
        make: see `figure`.
        args: the same.
        kwargs: the same.
    """
    return {name + suffix: figure(make, *args, **kwargs) for suffix in FIGURE_SUFFIXES}
