"""Folders that take the place of older ones, alone and in sets: a kill at each step loses none."""

import errno
import multiprocessing
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from chop.base.files import (
    atomic_files,
    atomic_folder,
    discard_older,
    latest,
    recording_writes,
    recover_folder,
    recover_folders,
    settle,
)
from chop.base.files.atomic import list_set_files
from chop.errors import WriteError

FORK = multiprocessing.get_context("fork")


def killed_at(step, work):
    """Runs `work` in a process that is killed before its nth change of a name; False: it ended."""

    def run():
        left = step

        def counting(true):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return true(*args, **kwargs)

            return call

        shutil.rmtree = counting(shutil.rmtree)
        for name in ("rename", "replace", "unlink", "rmdir"):
            setattr(Path, name, counting(getattr(Path, name)))
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def tree(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def write(path, text, **more):
    with atomic_folder(path, **more) as fresh:
        (fresh / "deep").mkdir()
        for name in ("a", "deep/b"):
            (fresh / name).write_text(text)


def whole(text):
    return {"a": text, "deep/b": text}


@pytest.mark.parametrize("next_one", ["reader", "writer"])
def test_of_a_folder_that_is_replaced_a_kill_at_any_step_leaves_one(next_one, tmp_path):
    step, kills = 0, 0
    while True:
        path = tmp_path / str(step) / "model"
        write(path, "old")
        was_killed = killed_at(step, partial(write, path, "new"))
        kills += was_killed
        if next_one == "reader":
            recover_folder(path)
            assert tree(path) in (whole("old"), whole("new"))
        write(path, "newest")
        assert tree(path.parent) == {f"model/{name}": "newest" for name in ("a", "deep/b")}
        if not was_killed:
            break
        step += 1
    assert kills >= 3


@pytest.mark.parametrize(
    ("error", "raised", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), WriteError, "No space left"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
    ids=("full", "interrupted"),
)
def test_a_folder_that_cannot_have_its_name_leaves_the_older_one(
    error, raised, told, tmp_path, monkeypatch
):
    path = tmp_path / "model"
    write(path, "old")
    rename = Path.rename

    def fails(source, target):
        if source.name.endswith(".part"):
            raise error
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(raised, match=told):
        write(path, "new")
    assert tree(tmp_path) == {f"model/{name}": "old" for name in ("a", "deep/b")}


def test_an_older_folder_of_a_process_that_lives_is_left_alone(tmp_path):
    path, text = tmp_path / "model", "old"
    write(path, text)
    with atomic_folder(path) as fresh:
        aside = fresh.with_suffix(".old")
        path.rename(aside)
        recover_folder(path)
        assert not path.exists()
        aside.rename(path)
        (fresh / "a").write_text("new")
    assert tree(path) == {"a": "new"}


def test_the_last_of_several_writers_of_a_folder_wins_and_none_fails(tmp_path):
    def work(text):
        for _ in range(40):
            write(tmp_path / "model", text)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, text) for text in "abcd"]:
            done.result()
    found = set(tree(tmp_path).items())
    assert found in [{(f"model/{name}", text) for name in ("a", "deep/b")} for text in "abcd"]


def test_an_older_folder_gets_its_own_name_back(tmp_path):
    for name in ("model", "model.large"):
        write(tmp_path / name, name)
    steps = 1  # the older folder has been renamed
    assert killed_at(steps, partial(write, tmp_path / "model.large", "new"))
    shutil.rmtree(tmp_path / "model")
    recover_folder(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    recover_folders(tmp_path)
    assert tree(tmp_path / "model.large")["a"] == "model.large"


def test_files_that_are_not_of_the_older_folder_are_kept(tmp_path):
    path = tmp_path / "out"
    write(path, "old")
    (path / "mine").mkdir()
    (path / "mine" / "notes").write_text("mine")
    (path / "deep" / "notes").write_text("mine")
    (path / "link").symlink_to("nowhere")
    known = {Path(name) for name in whole("old")}
    with atomic_folder(path, lambda name: name not in known) as fresh:
        (fresh / "mine").write_text("new")
        (fresh / "a").write_text("new")
    found = {name.as_posix() for name in (p.relative_to(path) for p in path.rglob("*"))}
    assert found >= {"a", "mine", "deep/notes", "link"}
    assert (path / "a").read_text() == (path / "mine").read_text() == "new"
    assert (path / "deep" / "notes").read_text() == "mine"
    assert (path / "link").is_symlink() and len([*tmp_path.iterdir()]) == 1
    assert "mine" in [p.read_text() for p in path.rglob("notes*")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("next_one", ["reader", "writer"])
def test_a_kill_at_any_step_leaves_the_files_that_are_kept(
    next_one, has_links, tmp_path, monkeypatch
):
    def no_links(*paths, **more):
        raise OSError(errno.EPERM, "no hard links")

    if not has_links:
        monkeypatch.setattr("os.link", no_links)
    known = {Path(name) for name in whole("old")}
    for step in range(100):
        path = tmp_path / str(step) / "out"
        write(path, "old")
        (path / "mine").mkdir()
        (path / "mine" / "notes").write_text("mine")
        was_killed = killed_at(
            step, lambda path=path: write(path, "new", is_foreign=lambda name: name not in known)
        )
        if next_one == "reader":
            recover_folder(path)
        else:
            write(path, "newer", is_foreign=lambda name: name not in known)
        assert (path / "mine" / "notes").read_text() == "mine"
        if not was_killed:
            assert [*path.parent.iterdir()] == [path]
            return
    pytest.fail("it never ends")


def test_a_file_that_can_be_neither_linked_nor_copied_is_moved(tmp_path, monkeypatch):
    path = tmp_path / "out"
    write(path, "old")
    (path / "notes").write_text("mine")

    def refused(*paths, **more):
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr("os.link", refused)
    monkeypatch.setattr("shutil.copy2", refused)
    write(path, "new", is_foreign=lambda name: name == Path("notes"))
    assert tree(path) == {**whole("new"), "notes": "mine"}


def write_set(folder, text, *gone):
    with atomic_files(folder, "results") as fresh:
        (fresh / "manifest").write_text(text)
        (fresh / "model").mkdir()
        for name in ("config", "weights"):
            (fresh / "model" / name).write_text(text)
        discard_older(fresh, *gone)


def set_of(text):
    return {"manifest": text, "model/config": text, "model/weights": text}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("next_one", ["reader", "writer"])
def test_files_and_folders_of_a_set_change_together_whatever_the_moment_of_a_kill(
    next_one, tmp_path
):
    step, seen = 0, set()
    while True:
        folder = tmp_path / str(step)
        write_set(folder, "old")
        (folder / "model.onnx").write_text("old")
        (folder / "cache").mkdir()
        (folder / "cache" / "file").write_text("old")
        gone = ("model.onnx", "cache", "never")
        work = partial(write_set, folder, "new", *gone)
        was_killed = killed_at(step, work)
        text = latest(folder / "manifest").read_text()
        seen.add(text)
        assert (latest(folder / "model") / "weights").read_text() == text
        assert latest(folder / "model.onnx").exists() is (text == "old")
        if next_one == "reader":
            settle(folder)
            names = {f"{name}": "old" for name in ("model.onnx", "cache/file")}
            for path in list(folder.glob(".*.part")):
                shutil.rmtree(path)
            assert tree(folder) == set_of(text) | (names if text == "old" else {})
        else:
            write_set(folder, "newest", *gone)
            found = {x: y for x, y in tree(folder).items() if not x.startswith(".")}
            assert found == set_of("newest")
        if not was_killed:
            break
        step += 1
    assert step >= 5 and seen == {"old", "new"}


def test_a_set_has_the_files_of_its_folders_and_tells_them_as_written(tmp_path):
    with recording_writes() as written:
        write_set(tmp_path, "new", "other")
    assert {path.relative_to(tmp_path).as_posix() for path in written} == {*set_of("new")}
    with atomic_files(tmp_path, "results") as fresh:
        (fresh / "model").mkdir()
        (fresh / "model" / "config").touch()
        discard_older(fresh, "other")
        assert [path.name for path in list_set_files(fresh)] == ["config"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_in_the_way_of_a_set_is_one_sentence_and_nothing_is_changed(kind, tmp_path):
    write_set(tmp_path, "old")
    name = "manifest" if kind == "folder" else "model"
    with pytest.raises(WriteError, match="choose another"), atomic_files(tmp_path, "x") as fresh:
        (fresh / "a").write_text("new")
        (fresh / name).mkdir() if kind == "folder" else (fresh / name).touch()
    assert tree(tmp_path) == set_of("old")
