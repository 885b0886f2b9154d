"""Results of a run are one set; what a killed run has left is removed by the next one."""

import contextlib
import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from chop import runs
from chop.base.files import (
    atomic_file,
    atomic_folder,
    staged_files,
    temporary,
    write_json,
    write_text,
)
from chop.errors import CheckpointError, WriteError
from chop.report.measured import MeasuredTable
from chop.report.page.files import read_run
from chop.report.page.page import PAGE
from chop.report.ui.folder import RunsFolder
from tests.unprivileged import NEEDS_ROOT, NOBODY


def job(folder, value, stop=None):
    """A sweep: points, and then tables, a figure and JSON in its folder."""
    with runs.start("sweep", {"value": value}, folder) as run:
        runs.Journal(folder / "points.jsonl").add({"value": value}, {"found": value})
        run.rows = [{"value": value}]
        with run.results():
            MeasuredTable("a table", [{"value": value}]).write(folder)
            for name in ("curve.svg", "curve.png"):
                write_text(folder / name, f"drawn {value}")
            if stop is not None:
                stop()
            write_json(folder / "best.json", {"value": value})


def results(folder):
    names = ("table.csv", "table.md", "curve.svg", "curve.png", "best.json")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def test_tables_figures_and_the_manifest_are_of_one_run(tmp_path):
    job(tmp_path, 4)
    manifest = runs.read_manifest(tmp_path)
    assert manifest.state == "finished" and len(results(tmp_path)) == 5
    listed = {artifact.path: artifact for artifact in manifest.artifacts}
    assert listed.keys() == {*results(tmp_path), "points.jsonl"}
    assert all(runs.Artifact.of(tmp_path / name, tmp_path) == listed[name] for name in listed)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_disk_that_fills_up_leaves_the_results_of_the_run_before(count, tmp_path, monkeypatch):
    job(tmp_path, 4)
    before, manifest, written = results(tmp_path), runs.read_manifest(tmp_path), []
    write = Path.write_text

    def full(path, *args, **kwargs):
        if any(name in str(path) for name in before) or "curve" in str(path):
            written.append(path)
            if len(written) >= count:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(WriteError, match="No space left on device"):
        job(tmp_path, 8)
    monkeypatch.undo()
    found = runs.read_manifest(tmp_path)
    assert results(tmp_path) == before and found.state == "failed" and found.results == manifest
    assert runs.Journal(tmp_path / "points.jsonl").find({"value": 8}) == {"found": 8}
    assert not list(tmp_path.rglob(".*.part"))


def in_a_process(function, *args):
    process = multiprocessing.get_context("fork").Process(target=function, args=args)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path):
    job(tmp_path, 4)
    before = results(tmp_path)
    (tmp_path / "deep").mkdir()
    in_a_process(job, tmp_path, 8, killed)
    in_a_process(half_written, tmp_path / "deep" / "file")
    assert results(tmp_path) == before and len(list(tmp_path.rglob(".*.part"))) >= 2
    mine, elsewhere = (tmp_path / f".a.{mark}.part" for mark in marks())
    mine.touch()
    elsewhere.touch()
    job(tmp_path, 16)
    assert {*tmp_path.glob(".*.part")} == {mine, elsewhere}
    assert list((tmp_path / "deep").glob(".*.part"))  # of no job of this folder
    write_text(tmp_path / "deep" / "file", "whole")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]
    assert json.loads((tmp_path / "best.json").read_text()) == {"value": 16}


def job_with_files_below(folder, value):
    with runs.start("sweep", {}, folder) as run:
        write_text(folder / "best" / "7" / "model", str(value))
        run.rows = [{"value": value}]


@pytest.mark.parametrize("place", ["best/7", "."])
def test_what_is_left_beside_files_of_the_last_results_is_removed(tmp_path, place):
    job_with_files_below(tmp_path, 4)
    in_a_process(half_written, tmp_path / place / "other")
    assert list(tmp_path.rglob(".*.part"))
    job_with_files_below(tmp_path, 8)
    assert not list(tmp_path.rglob(".*.part"))


def test_a_manifest_that_names_files_outside_removes_nothing_there(tmp_path):
    job_with_files_below(tmp_path / "out", 4)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["artifacts"][0]["path"] = "../elsewhere/model"
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    in_a_process(half_written, tmp_path / "elsewhere" / "file")
    with contextlib.suppress(CheckpointError):
        job_with_files_below(tmp_path / "out", 8)
    assert list((tmp_path / "elsewhere").glob(".*.part"))


def marks():
    """The mark of this process, and one of a dead process of another machine."""
    return temporary.owner_mark(), "0123abcd-999999-1-0123abcd"


def half_written(path):
    with atomic_file(path) as unfinished:
        unfinished.write_text("half")
        killed()


def half_a_folder(path):
    with atomic_folder(path) as unfinished:
        (unfinished / "a").touch()
        killed()


def test_a_folder_half_written_is_removed_by_its_next_writer(tmp_path):
    in_a_process(half_a_folder, tmp_path / "emit")
    (left,) = tmp_path.iterdir()
    assert temporary.is_orphan(left.name)
    with atomic_folder(tmp_path / "emit"), atomic_folder(tmp_path / "other"):
        assert not left.exists() and len(list(tmp_path.iterdir())) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"emit", "other"}


def test_temporary_folders_of_killed_processes_are_orphans(tmp_path):
    def leaves():
        (tmp_path / f"chop-shard-{temporary.owner_mark()}-x1").mkdir()
        killed()

    in_a_process(leaves)
    (tmp_path / "chop-shard-of-a-person").mkdir()
    (tmp_path / f"chop-shard-{temporary.owner_mark()}-x2").mkdir()
    temporary.remove_orphans(tmp_path.glob("chop-shard-*"))
    assert len(list(tmp_path.iterdir())) == 2


ANSWERS = {
    "ended": (FileNotFoundError, ProcessLookupError, True),
    "ends now": (ProcessLookupError, ProcessLookupError, True),
    "of another user": (PermissionError, PermissionError, False),
    "hidden": (FileNotFoundError, PermissionError, False),
    "hidden, of this user": (FileNotFoundError, None, False),
    "not readable": (OSError, PermissionError, False),
}
"""What /proc and a signal say of a process, and whether it has ended."""


@pytest.mark.parametrize(("stat", "signalled", "has_ended"), ANSWERS.values(), ids=ANSWERS)
def test_only_a_process_that_is_not_there_has_ended(
    stat, signalled, has_ended, tmp_path, monkeypatch
):
    left = tmp_path / f".a.{temporary.owner_mark()}.part"
    left.touch()
    read = Path.read_text

    def told(path, *args, **kwargs):
        if path == Path(f"/proc/{os.getpid()}/stat"):
            raise stat
        return read(path, *args, **kwargs)

    def kill(number, signal):
        assert (number, signal) == (os.getpid(), 0)
        if signalled:
            raise signalled

    monkeypatch.setattr(Path, "read_text", told)
    monkeypatch.setattr(os, "kill", kill)
    temporary.remove_orphans([left])
    assert left.exists() is not has_ended


@NEEDS_ROOT
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_another_user_owns_stays(kind, tmp_path):
    def leaves():
        place = tmp_path / f".a.{temporary.owner_mark()}.part"
        {"file": place.touch, "folder": place.mkdir, "link": lambda: place.symlink_to("/")}[kind]()
        killed()

    in_a_process(leaves)
    (left,) = tmp_path.iterdir()
    os.chown(left, NOBODY, NOBODY, follow_symlinks=False)
    temporary.remove_orphans([left])
    assert os.path.lexists(left)
    os.chown(left, os.geteuid(), -1, follow_symlinks=False)
    temporary.remove_orphans([left])
    assert not os.path.lexists(left)


def test_files_of_other_folders_are_not_of_the_set(tmp_path):
    with staged_files(tmp_path / "out", "results") as fresh:
        write_text(tmp_path / "out" / "deep" / "a", "1")
        write_text(tmp_path / "b", "1")
        write_text(tmp_path / "out" / "c", "1")
        assert (tmp_path / "out" / "deep" / "a").exists() and (tmp_path / "b").exists()
        assert not (tmp_path / "out" / "c").exists() and (fresh / "c").exists()
    assert (tmp_path / "out" / "c").read_text() == "1"


def test_a_reader_moves_nothing_of_what_a_kill_has_left_and_the_next_run_does(tmp_path):
    job(tmp_path, 4)
    document = runs.as_json(runs.read_manifest(tmp_path))
    write_text(tmp_path / PAGE, "old")
    write_json(tmp_path / "report.json", {"title": "old"})
    left = tmp_path / ".results.new"
    left.mkdir()
    write_json(left / "manifest.json", {**document, "rows": [{"value": 8}]})
    write_text(left / PAGE, "new")
    write_json(left / "report.json", {"title": "new"})

    def names():
        return sorted((path.as_posix(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))

    before = names()
    assert runs.read_manifest(tmp_path).rows == ({"value": 8},)
    assert read_run(tmp_path, "it").document.title == "new"
    list_of_runs = RunsFolder(tmp_path.parent)
    (found,) = [run for run in list_of_runs.runs() if run.path == tmp_path.name]
    assert found.state == "finished" and list_of_runs.page(found) == "new"
    assert names() == before
    with runs.start("sweep", {"value": 9}, tmp_path):
        assert not left.exists() and (tmp_path / PAGE).read_text() == "new"
