import csv
import errno
import json
import multiprocessing
import os
import signal
import stat
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chop import MaseGraph
from chop.base.files import (
    append_line,
    atomic_file,
    atomic_files,
    atomic_folder,
    atomic_new_file,
    build_lock,
    latest,
    make_folder,
    recording_writes,
    shared_lock,
    staged_files,
    write_csv,
    write_json,
    write_text,
)
from chop.errors import ConfigError, WriteError


def contents(folder):
    return {file.name: file.read_text() for file in folder.iterdir()}


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "table.md"
    write_text(path, "first")
    assert path.read_text() == "first"
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "first"
    assert [file.name for file in path.parent.iterdir()] == ["table.md"]


def test_a_full_disk_is_one_sentence_and_leaves_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "table.md"
    write_text(path, "first")
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(WriteError, match="table.md' cannot be written: No space left.*free some"):
        write_text(path, "second")
    assert contents(tmp_path) == {"table.md": "first"}


def test_a_full_disk_is_seen_in_what_rust_says(tmp_path):
    with pytest.raises(WriteError, match="No space left"), atomic_file(tmp_path / "model.pt"):
        raise RuntimeError("I/O error: No space left on device (os error 28)")


def test_other_errors_pass_through(tmp_path):
    for error in (KeyError("a"), FileNotFoundError(errno.ENOENT, "x"), ConfigError("b")):
        with pytest.raises(type(error)), atomic_file(tmp_path / "model.pt"):
            raise error


@pytest.mark.parametrize("name", ["file/under", "file", "x" * 300])
def test_a_folder_that_cannot_be_is_one_sentence(name, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="cannot be written: .*; choose another folder"):
        make_folder(tmp_path / name)


@pytest.mark.parametrize("place", ["/proc", "/proc/x", "/proc/x/y"])
@pytest.mark.parametrize(
    "write",
    [
        make_folder,
        lambda path: write_text(path / "x", ""),
        lambda path: write_text(path, ""),
        lambda path: append_line(path / "x", ""),
        lambda path: entered(atomic_new_file(path / "x")),
        lambda path: entered(atomic_folder(path / "x")),
        lambda path: entered(atomic_files(path, "x")),
        lambda path: entered(staged_files(path, "x")),
        lambda path: entered(build_lock(path / "x")),
        lambda path: MaseGraph(nn.Linear(1, 1)).export(path / "x"),
    ],
    ids=range(10),
)
def test_a_file_system_that_takes_no_files_is_one_sentence(write, place):
    with pytest.raises(WriteError, match="/proc.* cannot be written: .*; choose another"):
        write(Path(place))


def entered(context):
    with context:
        pass


def test_a_folder_on_a_full_disk_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(WriteError, match="No space left"):
        make_folder(tmp_path / "out")
    assert contents(tmp_path / "out") == {}


def test_making_a_folder_leaves_nothing_in_it(tmp_path):
    assert contents(make_folder(tmp_path / "a" / "b")) == {}


def write_pair(folder, text):
    with atomic_files(folder, "pair") as fresh:
        (fresh / "a.pt").write_text(text)
        (fresh / "a.mz").write_text(text)


def test_files_that_belong_together_are_replaced_together(tmp_path):
    out = tmp_path / "out"
    write_pair(out, "first")
    write_pair(out, "second")
    assert contents(out) == {"a.pt": "second", "a.mz": "second"}


def test_a_failure_leaves_all_the_older_files(tmp_path):
    write_pair(tmp_path, "first")
    with pytest.raises(RuntimeError), atomic_files(tmp_path, "pair") as fresh:
        (fresh / "a.pt").write_text("second")
        raise RuntimeError
    assert contents(tmp_path) == {"a.pt": "first", "a.mz": "first"}


@pytest.mark.parametrize("moved", [0, 1])
def test_a_kill_between_two_moves_leaves_the_newer_pair_to_readers(tmp_path, moved, monkeypatch):
    write_pair(tmp_path, "first")
    moves = iter([True] * moved)

    def replace(self, target, original=Path.replace):
        return original(self, target) if next(moves, False) else full()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(WriteError):
            write_pair(tmp_path, "second")
    places = [latest(tmp_path / name) for name in ("a.pt", "a.mz")]
    assert [place.read_text() for place in places] == ["second", "second"]
    write_pair(tmp_path, "third")
    assert contents(tmp_path) == {"a.pt": "third", "a.mz": "third"}
    assert latest(tmp_path / "a.pt") == tmp_path / "a.pt"


def test_what_is_named_is_the_place_and_not_where_it_was_prepared(tmp_path, monkeypatch):
    with (
        pytest.raises(WriteError, match=f"'{tmp_path}/a.md' cannot"),
        atomic_files(tmp_path, "pair") as fresh,
    ):
        monkeypatch.setattr(Path, "write_text", full)
        write_text(fresh / "a.md", "text")


def test_a_folder_in_the_way_is_noticed_before_anything_is_replaced(tmp_path):
    write_pair(tmp_path, "first")
    (tmp_path / "a.mz").unlink()
    (tmp_path / "a.mz").mkdir()
    with pytest.raises(WriteError, match="Is a directory"):
        write_pair(tmp_path, "second")
    assert (tmp_path / "a.pt").read_text() == "first"
    assert {file.name for file in tmp_path.iterdir()} == {"a.pt", "a.mz"}


def leave(folder, name, text):
    """What a kill leaves after the rename that decides, before the first move."""
    (folder / f".{name}.new").mkdir(parents=True)
    for file in ("a.pt", "a.mz"):
        (folder / f".{name}.new" / file).write_text(text)


def test_a_set_that_a_kill_left_gives_way_to_a_newer_one_of_another_name(tmp_path):
    leave(tmp_path, "results", "old")
    write_pair(tmp_path, "new")
    assert contents(tmp_path) == {"a.pt": "new", "a.mz": "new"}
    assert latest(tmp_path / "a.pt") == tmp_path / "a.pt"


def test_a_set_that_a_kill_left_gives_way_to_a_newer_file(tmp_path):
    leave(tmp_path, "results", "old")
    write_text(tmp_path / "a.pt", "new")
    assert contents(tmp_path) == {"a.pt": "new", "a.mz": "old"}


def test_of_several_sets_that_kills_left_the_newest_wins(tmp_path):
    for age, name in enumerate("cab"):
        leave(tmp_path, name, name)
        os.utime(tmp_path / f".{name}.new", (1000 + age, 1000 + age))
    assert latest(tmp_path / "a.pt").read_text() == "b"
    write_text(tmp_path / "a.pt", "text")
    assert contents(tmp_path) == {"a.pt": "text", "a.mz": "b"}


def test_a_set_that_a_kill_left_gives_way_to_other_files_of_its_name(tmp_path):
    leave(tmp_path, "pair", "old")
    with atomic_files(tmp_path, "pair") as fresh:
        (fresh / "b.pt").write_text("new")
    assert contents(tmp_path) == {"a.pt": "old", "a.mz": "old", "b.pt": "new"}


def test_a_folder_that_has_none_of_the_files_stays_as_it_is(tmp_path):
    (tmp_path / ".mine.new").mkdir()
    (tmp_path / ".mine.new" / "notes").write_text("mine")
    write_text(tmp_path / "a.md", "text")
    with atomic_files(tmp_path, "one") as fresh:
        (fresh / "a.pt").write_text("text")
    assert (tmp_path / ".mine.new" / "notes").read_text() == "mine"
    assert not (tmp_path / "notes").exists() and len(list(tmp_path.iterdir())) == 3


def test_a_writer_inside_another_of_one_name_has_files_of_its_own(tmp_path):
    with atomic_files(tmp_path, "pair") as outer:
        (outer / "a.pt").write_text("outer")
        write_pair(tmp_path, "inner")
        with atomic_file(tmp_path / "a.md") as text:
            text.write_text("outer")
            write_text(tmp_path / "a.md", "inner")
            assert text.read_text() == "outer"
    assert contents(tmp_path) == {"a.pt": "outer", "a.mz": "inner", "a.md": "outer"}


def write_many(folder, who):
    for i in range(50):
        write_pair(folder, f"{who} {i}")
        write_text(folder / "a.md", f"{who} {i}")


@pytest.fixture(params=["folder", "file"])
def lockable(request, monkeypatch):
    """Where folders cannot be locked, as on NFS, a file in them is."""
    if request.param == "file":
        import fcntl

        def refuse(handle, how, original=fcntl.flock):
            if Path(f"/proc/self/fd/{handle}").is_dir():
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return original(handle, how)

        monkeypatch.setattr(fcntl, "flock", refuse)
    return request.param


@pytest.mark.sampled(1)
def test_two_processes_write_one_folder_and_readers_see_whole_pairs(tmp_path, lockable):
    write_pair(tmp_path, "first")
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_many, args=(tmp_path, who)) for who in "ab"]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        with shared_lock(tmp_path):
            pair = {latest(tmp_path / name).read_text() for name in ("a.pt", "a.mz")}
        assert len(pair) == 1
        seen |= pair
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0] and len(seen) > 1
    left = contents(tmp_path)
    assert left.pop(".lock", "") == "" and left["a.pt"] == left["a.mz"]
    assert {left["a.pt"], left["a.md"]} <= {"a 49", "b 49"} and len(left) == 3


def make_slowly(path, made):
    with build_lock(path):
        if not path.exists():
            append_line(made, "made")
            time.sleep(0.1)
            write_text(path, "whole")


def test_of_processes_that_make_one_file_one_does_and_the_others_wait(tmp_path):
    path, made = tmp_path / "cache" / "library.so", tmp_path / "made"
    fork = multiprocessing.get_context("fork")
    makers = [fork.Process(target=make_slowly, args=(path, made)) for _ in range(6)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 6
    assert made.read_text() == "made\n" and contents(path.parent) == {"library.so": "whole"}


def hold(path):
    with build_lock(path):
        (path.parent / "held").touch()
        signal.pause()


def test_a_process_that_is_killed_holds_no_one_up(tmp_path):
    path = tmp_path / "library.so"
    holder = multiprocessing.get_context("fork").Process(target=hold, args=(path,))
    holder.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    waiting = multiprocessing.get_context("fork").Process(
        target=make_slowly, args=(path, tmp_path / "made")
    )
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    holder.kill()
    waiting.join(30)
    assert waiting.exitcode == 0 and path.read_text() == "whole"
    assert not list(tmp_path.glob(".*"))


def test_a_failure_leaves_no_lock(tmp_path):
    with pytest.raises(RuntimeError), build_lock(tmp_path / "library.so"):
        raise RuntimeError
    assert contents(tmp_path) == {}


def test_a_file_is_made_without_waiting_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", full)
    make_slowly(tmp_path / "library.so", tmp_path / "made")
    assert (tmp_path / "library.so").read_text() == "whole"


def test_reading_what_is_not_there_or_no_folder_is_left_to_the_reader(tmp_path):
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with shared_lock(tmp_path / name):
            assert latest(tmp_path / name / "a.pt") == tmp_path / name / "a.pt"


def test_of_several_writers_that_create_a_file_the_first_wins(tmp_path, monkeypatch):
    path = tmp_path / "new" / "search.db"
    with atomic_new_file(path) as first, atomic_new_file(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert contents(path.parent) == {"search.db": "second"}  # the inner block ended first
    with monkeypatch.context() as patch:
        patch.setattr("os.link", full)  # a file system without hard links
        with atomic_new_file(path) as third:
            third.write_text("third")
        assert contents(path.parent) == {"search.db": "second"}
        with atomic_new_file(tmp_path / "other.db") as other:
            other.write_text("other")
    assert (tmp_path / "other.db").read_text() == "other"
    with pytest.raises(RuntimeError), atomic_new_file(tmp_path / "none.db") as none:
        none.write_text("half")
        raise RuntimeError
    assert {file.name for file in tmp_path.iterdir()} == {"new", "other.db"}


def test_a_folder_is_replaced_when_the_new_one_is_complete(tmp_path):
    best = tmp_path / "models" / "best"
    for text in ("first", "second"):
        with atomic_folder(best) as fresh:
            (fresh / text).write_text(text)
            assert not (best / text).exists()
    assert contents(best) == {"second": "second"}
    with pytest.raises(RuntimeError), atomic_folder(best) as fresh:
        raise RuntimeError
    with pytest.raises(FileNotFoundError), atomic_folder(best) as fresh:
        fresh.rmdir()  # by another process
    assert contents(best) == {"second": "second"}
    assert [folder.name for folder in best.parent.iterdir()] == ["best"]


def test_json_has_null_for_what_is_not_finite(tmp_path):
    write_json(tmp_path / "a.json", {"loss": float("nan"), "all": [float("inf"), (1.5, None)]})
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "loss": None,
        "all": [None, [1.5, None]],
    }


def test_csv_is_read_back_as_it_was(tmp_path):
    write_csv(tmp_path / "a.csv", ["name", "share"], [["a, b", 0.1 + 0.2], ["ö\n", None]])
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["name", "share"], ["a, b", "0.30000000000000004"], ["ö\n", ""]]
    write_csv(tmp_path / "a.csv", ["name"], [])
    assert (tmp_path / "a.csv").read_text() == "name\n"


def test_what_is_written_is_recorded_with_its_place(tmp_path):
    with recording_writes() as outer:
        with recording_writes() as inner:
            write_text(tmp_path / "a.md", "a")
            write_text(tmp_path / "a.md", "again")
            append_line(tmp_path / "b.jsonl", "b")
            with atomic_folder(tmp_path / "c") as fresh:
                write_text(fresh / "model.pt", "model")
        write_pair(tmp_path, "pair")
        with pytest.raises(RuntimeError), atomic_file(tmp_path / "d.md"):
            raise RuntimeError
    write_text(tmp_path / "later.md", "later")
    assert inner == [tmp_path / "a.md", tmp_path / "b.jsonl", tmp_path / "c" / "model.pt"]
    assert outer[:3] == inner and {*outer[3:]} == {tmp_path / "a.pt", tmp_path / "a.mz"}


PRIVATE = {
    "safetensors": lambda path: save_file({"x": torch.ones(2)}, str(path)),
    "tempfile": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)),
    "plain": lambda path: path.write_text("x"),
}


@pytest.mark.parametrize("how", PRIVATE)
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_files_have_the_mode_of_new_ones(tmp_path, how, umask):
    before = os.umask(umask)
    try:
        with atomic_file(tmp_path / "a") as file:
            PRIVATE[how](file)
        with atomic_new_file(tmp_path / "b") as file:
            PRIVATE[how](file)
        with atomic_folder(tmp_path / "folder") as folder:
            (folder / "inner").mkdir()
            PRIVATE[how](folder / "inner" / "c")
        with atomic_files(tmp_path, "set") as folder:
            PRIVATE[how](folder / "d")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "b", "folder/inner/c", "d")]
    assert modes == [0o666 & ~umask] * 4


def test_a_program_stays_one(tmp_path):
    with atomic_file(tmp_path / "run") as file:
        file.write_text("#!/bin/sh\n")
        file.chmod(0o700)
    assert (tmp_path / "run").stat().st_mode & stat.S_IXUSR
