"""The harness of jobs: one report, printed and written, all or nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from chop.actions.job import Job, load_nothing, run_job
from chop.errors import ConfigError
from chop.report.report import Cell, Heading, Note, Report, Table, show, with_details
from chop.runs import read_manifest


@dataclass(frozen=True)
class Settings:
    out: Path
    count: int = 12345
    matmul_precision: str | None = None


def build_report(config, workload, output):
    """A report with every kind of part; `output.results` has a file before it is written."""
    (output.results / "early.txt").write_text("early")
    table = Table("counts", [{"what": "numbers", "count": Cell.of(config.count, ",")}])
    early = show(table, Note("below the table"), Note("terminal alone", is_written=False))
    blocks = [Heading("Counts"), *early, Note(None), Note("document alone", is_printed=False)]
    return Report(
        "counts",
        {"table.md": blocks},
        {"count": config.count},
        [{"count": config.count}],
        figures={"counts.svg": lambda path: path.write_text("<svg/>")},
        closing=[f"written to {config.out}: {(config.out / 'table.md').exists()}"],
    )


def failing(error):
    def run(config, workload, output):
        (output.results / "table.md").write_text("half")
        raise error

    return run


def test_a_report_is_printed_and_written_once(tmp_path, capsys):
    config = Settings(tmp_path)
    assert run_job(Job("count", build_report, load_nothing), config) == {"count": 12345}
    told = capsys.readouterr().out
    assert told.count("12,345") == told.count("below the table") == 1
    assert told.index("12,345") < told.index("below") < told.index("terminal alone")
    assert "document alone" not in told and "## Counts" not in told
    assert told.rindex("written to") > told.index("terminal alone")  # a long path is wrapped
    text = (tmp_path / "table.md").read_text()
    assert text == (
        "## Counts\n\n| what | count |\n| --- | --- |\n| numbers | 12,345 |\n\nbelow the table\n\n"
        "document alone\n"
    )
    assert json.loads((tmp_path / "result.json").read_text()) == {"count": 12345}
    manifest = read_manifest(tmp_path)
    assert (manifest.kind, manifest.state) == ("count", "finished")
    assert manifest.rows == ({"count": 12345},)
    files = {"early.txt", "table.md", "counts.svg", "result.json", "report.html", "report.json"}
    assert {artifact.path for artifact in manifest.artifacts} == files


@pytest.mark.parametrize("error", [ConfigError("no"), KeyboardInterrupt()], ids=type)
def test_a_job_that_ends_early_leaves_the_earlier_results(error, tmp_path):
    config = Settings(tmp_path)
    run_job(Job("count", build_report, load_nothing), config)
    before = (tmp_path / "table.md").read_text()
    with pytest.raises(type(error)) as found:
        run_job(Job("count", failing(error), load_nothing), config)
    assert (tmp_path / "table.md").read_text() == before
    is_refused = isinstance(error, ConfigError)
    assert read_manifest(tmp_path).state == ("finished" if is_refused else "interrupted")
    notes = getattr(found.value, "__notes__", [])
    kept = f"no results were saved in {tmp_path}/. Run the same command to start again."
    assert notes == ([kept] if isinstance(error, KeyboardInterrupt) else [])


def test_a_folder_in_the_place_of_out_has_the_results(tmp_path):
    folder = tmp_path / "later"
    run_job(Job("count", build_report, load_nothing), Settings(tmp_path / "out"), folder=folder)
    assert (folder / "table.md").exists() and not (tmp_path / "out").exists()
    assert read_manifest(folder).settings["out"] == str(tmp_path / "out")


def test_details_are_printed_on_request_and_columns_that_say_one_thing_above_the_table(capsys):
    rows = [
        {"layer": name, "bits": 8, "bias": None, "error": e}
        for name, e in zip("abc", "123", strict=True)
    ]
    blocks = [Table("Layers", rows), Note("more", is_detail=True), Table("Memory", rows[:2])]
    show(*blocks)
    told = capsys.readouterr().out
    assert "every row: bits 8" in told and "more" not in told
    layers, memory = told.split("Memory")
    assert "bias" not in layers and "error" in layers
    assert "bits" in memory and "bias" in memory  # two rows may be alike by chance
    with with_details():
        show(*blocks)
    assert "more" in capsys.readouterr().out
