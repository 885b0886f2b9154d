"""Page files, written with the results of a run or rendered again from its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.base.files import write_json, write_text
from chop.base.notices import warn_each_time
from chop.errors import CheckpointError, ConfigError
from chop.report.charts.chart import Chart
from chop.report.document import (
    FILE,
    Document,
    PageTable,
    build_document,
    page_table,
    read_document,
)
from chop.report.page.page import PAGE, PageRun, render
from chop.report.report import Report, Table
from chop.runs import MANIFEST, Manifest, Run, as_json, read_manifest


def add_page(report: Report[Any], run: Run, results: Path) -> None:
    """Writes the page content of a report; the page itself is written with the manifest.

    Raises:
        WriteError: if the disk is full or read-only.
    """
    document = _document(report)
    write_json(results / FILE, as_json(document))
    name = run.folder.name
    run.views[PAGE] = lambda manifest: _rendered(PageRun(name, manifest, document))


def _document(report: Report[Any]) -> Document:
    """Builds the page content; a failure becomes a warning, so that results are not lost."""
    try:
        return build_document(report)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        reason = f"The page has no tables or charts, because they could not be built ({cause})"
        warn_each_time(f"{reason}. All other files were written.", UserWarning)
        return Document(report.title, warnings=(f"{reason}.",))


def _rendered(run: PageRun) -> str:
    """Renders the page; a failure becomes a warning, so that results are not lost."""
    try:
        return render([run])
    except Exception as error:
        warn_each_time(
            f"The results page could not be rendered ({type(error).__name__}: {error}). All other "
            "files were written. 'chop report' renders the page again.",
            UserWarning,
        )
        return f"<!doctype html><html lang='en'><title>chop</title><p>{type(error).__name__}</p>"


def write_page(folders: Sequence[Path], out: Path) -> Path:
    """Writes the page of finished runs from their manifests and page contents.

    Returns: `out`.
    Raises:
        CheckpointError: if a folder has no results, or its files are corrupt.
        ConfigError: if a folder is given twice, or the page of one run would be overwritten.
        WriteError: if the page cannot be written.
    """
    for folder, count in Counter(folder.resolve() for folder in folders).items():
        if count > 1:
            raise ConfigError(f"expected different run folders, got '{folder}' {count} times.")
    if len(folders) > 1 and out.name == PAGE and (out.parent / MANIFEST).exists():
        raise ConfigError(
            f"'{out}' already is the page of a single run: choose another file with --out."
        )
    names = _names(folders)
    runs = [read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
    try:
        text = render(runs)
    except Exception as error:  # rows of unequal length, invalid indices
        raise CheckpointError(
            f"The page of {', '.join(names)} cannot be rendered ({type(error).__name__}: {error}): "
            f"expected {FILE} and {MANIFEST} as chop writes them."
        ) from error
    write_text(out, text)
    return out


def read_run(folder: Path, name: str) -> PageRun:
    """Reads a run folder; runs of earlier versions of `chop` only have the rows of the manifest.

    Raises:
        CheckpointError: if the folder has no results, or its files are corrupt.
    """
    manifest = read_manifest(folder)
    finished = manifest.results or manifest
    document = (read_document(folder) if manifest.results else None) or _document_from_rows(
        finished
    )
    if finished is not manifest:
        later = (
            f"A later run in this folder is {manifest.state}. "
            "The results are from the run before it."
        )
        document = replace(document, warnings=(later, *document.warnings))
    return PageRun(name, finished, document)


def _document_from_rows(manifest: Manifest) -> Document:
    """Builds page content from a manifest."""
    settings = manifest.settings
    title = str(settings.get("model") or manifest.kind)
    tables: tuple[PageTable, ...] = ()
    if manifest.rows:
        columns = dict.fromkeys(name for row in manifest.rows for name in row)
        rows = [{name: row.get(name) for name in columns} for row in manifest.rows]
        tables = (page_table(Table("", rows)),)
    warnings = () if manifest.state == "finished" else (f"The run is {manifest.state}.",)
    charts: tuple[Chart, ...] = ()
    return Document(title, manifest.error or "", warnings, (), tables, charts)


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns the shortest path suffixes that distinguish the folders."""
    for parts in range(1, max(len(folder.resolve().parts) for folder in folders) + 1):
        names = ["/".join(folder.resolve().parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names
