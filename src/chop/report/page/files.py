"""Files of a page: written with the results of a run, and made again from its folder."""

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
    """Writes the document of a report; the page is written with the manifest, from both.

    Raises:
        WriteError: the disk is full or read-only.
    """
    document = _document(report)
    write_json(results / FILE, as_json(document))
    name = run.folder.name
    run.views[PAGE] = lambda manifest: _rendered(PageRun(name, manifest, document))


def _document(report: Report[Any]) -> Document:
    """The document; results that took hours are not lost where it cannot be made."""
    try:
        return build_document(report)
    except Exception as error:
        said = f"The page has no tables and charts ({type(error).__name__}: {error})"
        warn_each_time(f"{said}; all other files are there.", UserWarning)
        return Document(report.title, warnings=(f"{said}.",))


def _rendered(run: PageRun) -> str:
    """The page; results that took hours are not lost where it cannot be drawn."""
    try:
        return render([run])
    except Exception as error:
        warn_each_time(
            f"The page of the results could not be drawn ({type(error).__name__}: {error}); all "
            "other files are there, and chop report tries again.",
            UserWarning,
        )
        return f"<!doctype html><html lang='en'><title>chop</title><p>{type(error).__name__}</p>"


def write_page(folders: Sequence[Path], out: Path) -> Path:
    """Writes the page of runs that have finished, from their manifests and documents.

    Returns: `out`.
    Raises:
        CheckpointError: one of them is no folder of results, or its files are broken.
        ConfigError: one of them is there twice, or several would replace the page of one run.
        WriteError: the page cannot be written.
    """
    for folder, count in Counter(folder.resolve() for folder in folders).items():
        if count > 1:
            raise ConfigError(f"expected different folders, got '{folder}' {count} times.")
    if len(folders) > 1 and out.name == PAGE and (out.parent / MANIFEST).exists():
        raise ConfigError(f"'{out}' is the page of that folder's run: give another file as --out.")
    names = _names(folders)
    runs = [read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
    try:
        text = render(runs)
    except Exception as error:  # rows of unequal length, numbers that are no places
        raise CheckpointError(
            f"The page of {', '.join(names)} cannot be drawn ({type(error).__name__}: {error}): "
            f"expected {FILE} and {MANIFEST} as chop writes them."
        ) from error
    write_text(out, text)
    return out


def read_run(folder: Path, name: str) -> PageRun:
    """What a page shows of a folder; one of an earlier version of `chop` has its rows alone.

    Raises:
        CheckpointError: it is no folder of results, or its files are broken.
    """
    manifest = read_manifest(folder)
    found = manifest.results or manifest
    document = (read_document(folder) if manifest.results else None) or _of_rows(found)
    if found is not manifest:
        later = f"A later run of this folder is {manifest.state}: these are the results before it."
        document = replace(document, warnings=(later, *document.warnings))
    return PageRun(name, found, document)


def _of_rows(manifest: Manifest) -> Document:
    """The document of a manifest alone."""
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
    """Names that tell folders apart: as much of the end of their paths as that takes."""
    for parts in range(1, max(len(folder.resolve().parts) for folder in folders) + 1):
        names = ["/".join(folder.resolve().parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names
