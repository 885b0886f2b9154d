import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import time

import psutil
import pytest

from chop.actions import doctor
from chop.base.files.digests import digest_beside
from chop.base.files.temporary import temporary_beside
from chop.base.native import (
    Sources,
    cache_path,
    cached_file,
    compiler,
    first_error,
    is_trusted,
    is_whole,
    load_library,
    run_tool,
)
from chop.errors import WriteError
from tests.unprivileged import NEEDS_ROOT, NOBODY

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@needs_compiler
def test_sources_of_one_name_in_different_folders_are_all_in_the_library(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    files = []
    for number, folder in enumerate(("cpu", "cuda"), start=1):
        files.append(tmp_path / folder / "kernel.cpp")
        files[-1].parent.mkdir()
        files[-1].write_text(f'extern "C" int {folder}() {{ return {number}; }}\n')
    library = ctypes.CDLL(str(Sources("twins", tuple(files)).compiled(compiler(), ("-fPIC",))))
    assert (library.cpu(), library.cuda()) == (1, 2)


def source(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


@needs_compiler
def test_an_object_is_linked_into_libraries(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    parts = [source(tmp_path, f"{n}.cpp", f"int part{n}() {{ return {n}; }}\n") for n in (1, 2)]
    runtime = Sources("runtime", tuple(parts), suffix=".o").compiled(compiler(), ("-fPIC",))
    text = 'int part1(); int part2(); extern "C" int all() { return part1() + part2(); }\n'
    main = Sources("main", (source(tmp_path, "main.cpp", text),), objects=(runtime,))
    path = main.compiled(compiler(), ("-fPIC",))
    assert ctypes.CDLL(str(path)).all() == 3
    assert runtime.name.startswith("runtime-") and runtime.suffix == ".o"


@needs_compiler
def test_flags_of_one_file_are_its_own_and_part_of_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    text = 'extern "C" int {0}() {{ return VALUE; }}\n'
    first, second = (source(tmp_path, f"{n}.cpp", text.format(n)) for n in ("first", "second"))
    flags = ("-fPIC", "-DVALUE=1")
    given = {second: ("-UVALUE", "-DVALUE=2")}
    sources = Sources("flags", (first, second), file_flags=given)
    library = ctypes.CDLL(str(sources.compiled(compiler(), flags)))
    assert (library.first(), library.second()) == (1, 2)
    assert Sources("flags", (first, second)).path(compiler(), flags) != sources.path(
        compiler(), flags
    )


@needs_compiler
def test_the_first_error_of_the_compiler_is_told_and_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    wrong = source(tmp_path, "wrong.cpp", "int f() {\n  return no_such_name;\n}\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        Sources("wrong", (wrong,)).compiled(compiler(), ("-fPIC",))
    told = first_error(caught.value)
    assert "wrong.cpp:2" in told and "no_such_name" in told
    assert [*(tmp_path / "cache").iterdir()] == []


@needs_compiler
def test_a_compiler_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    slow = Sources("slow", (source(tmp_path, "a.cpp", "int a;\n"),), seconds=0.001)
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        slow.compiled(compiler(), ("-fPIC",))
    assert first_error(caught.value) == "it took longer than 0.001 seconds"


@needs_compiler
def test_of_two_processes_that_want_one_library_one_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    log = tmp_path / "log"
    slow = source(
        tmp_path, "slow-c++", f'#!/bin/sh\necho "$*" >> {log}\nsleep 0.2\nexec {compiler()} "$@"\n'
    )
    slow.chmod(0o755)
    sources = Sources("once", (source(tmp_path, "a.cpp", 'extern "C" int a() { return 7; }\n'),))
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=sources.compiled, args=(str(slow), ("-fPIC",))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    (library,) = (tmp_path / "cache").glob("*.so")
    assert ctypes.CDLL(str(library)).a() == 7
    calls = log.read_text().splitlines()
    assert len([call for call in calls if " -c " in call]) == 1
    assert len([call for call in calls if "-shared" in call]) == 1


def test_what_a_tool_has_started_ends_with_it(tmp_path):
    number = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {number}; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        run_tool("sh", "-c", script, seconds=0.5)
    deadline = time.monotonic() + 5  # a signal takes effect when its process is scheduled
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(int(number.read_text()))
        while started.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


PLACED = {
    "of another user": lambda path: os.chown(path, NOBODY, NOBODY),
    "a group can write": lambda path: path.chmod(0o664),
    "anybody can write": lambda path: path.chmod(0o646),
    "a link to a file of another user": lambda path: link(path, target=NOBODY),
    "a link of another user": lambda path: link(path, owner=NOBODY),
    "a link": lambda path: link(path),
}


def link(path, owner=-1, target=-1):
    other = path.with_name("other")
    path.rename(other)
    os.chown(other, target, target)
    path.symlink_to(other)
    os.chown(path, owner, owner, follow_symlinks=False)


@NEEDS_ROOT
@pytest.mark.parametrize("how", PLACED)
def test_code_that_another_user_could_have_placed_is_made_again(tmp_path, how):
    path = tmp_path / "kernels.so"
    path.write_text("placed")
    PLACED[how](path)
    assert cached_file(path, lambda target: target.write_text("made")).read_text() == "made"
    status = path.stat()
    assert status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert cached_file(path, lambda target: pytest.fail("made twice")) == path


FOLDERS = {
    "of another user": (NOBODY, 0o755, False),
    "sticky, of another user": (NOBODY, 0o1777, False),
    "a group can write": (-1, 0o775, False),
    "anybody can write": (-1, 0o757, False),
    "sticky": (-1, 0o1777, True),
    "closed": (-1, 0o700, True),
}


@NEEDS_ROOT
@pytest.mark.parametrize(("owner", "mode", "is_kept"), FOLDERS.values(), ids=FOLDERS)
def test_no_code_is_run_of_a_folder_where_others_can_replace_it(tmp_path, owner, mode, is_kept):
    path, deep = tmp_path / "cache" / "kernels.so", tmp_path / "cache" / "cuda"
    deep.mkdir(mode=0o700, parents=True)
    path.parent.chmod(0o755)
    cached_file(path, lambda target: target.write_text("before"))
    os.chown(path.parent, owner, owner)
    path.parent.chmod(mode)
    assert is_trusted(path) is is_trusted(deep, stat.S_ISDIR) is is_kept
    assert not is_trusted(deep)
    if is_kept:
        assert cached_file(path, lambda target: pytest.fail("made twice")) == path
        return
    with pytest.raises(WriteError, match=r"other users can replace .*CHOP_CACHE"):
        cached_file(path, lambda target: target.write_text("made"))
    assert path.read_text() == "before"


def test_a_cache_folder_is_this_user_s_to_write_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    before = os.umask(0o002)
    try:
        path = cache_path("a", ".so", ["b"])
    finally:
        os.umask(before)
    assert cached_file(path, lambda target: target.write_text("made")).read_text() == "made"


def test_code_is_nobody_else_s_to_write_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        path = cached_file(tmp_path / "kernels.so", lambda target: target.write_text("made"))
    finally:
        os.umask(before)
    assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert cached_file(path, lambda target: pytest.fail("made twice")) == path


def test_compiled_files_that_were_not_used_for_longest_are_removed_beyond_a_bound(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("chop.base.native.CACHE_BYTES", 2500)
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    old, older, new = (cache_path(name, ".so", [name]) for name in ("old", "older", "new"))
    for path, hours in ((old, 5), (older, 9)):
        cached_file(path, lambda target: target.write_bytes(bytes(1000)))
        for file in (path, digest_beside(path)):
            os.utime(file, (time.time() - 3600 * hours,) * 2)
    thesis = tmp_path / "thesis.so"
    thesis.write_bytes(bytes(10**4))
    cached_file(older, lambda target: pytest.fail("made twice"))  # used again
    cached_file(new, lambda target: target.write_bytes(bytes(1000)))
    assert {*tmp_path.iterdir()} == {older, new, thesis, *map(digest_beside, (older, new))}
    monkeypatch.setattr("chop.base.native.CACHE_BYTES", 0)
    cached_file(old, lambda target: target.write_bytes(bytes(1000)))
    all_of_them = {old, older, new, *map(digest_beside, (old, older, new))}
    assert {*tmp_path.iterdir()} == {thesis, *all_of_them}  # all may be in use


def test_what_is_removed_of_a_cache_folder_can_be_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    names = ["kernels-0123456789abcdef.so", "verilator-0123456789abcdef.o", ".a.so.01234567.part"]
    names += [
        "kernels-0123456789abcdef.so.sha256",
        ".a.so.lock",
        "trained/mlp-digits-seed0-0123456789ab.safetensors",
    ]
    others = ["datasets/a-0123456789abcdef.so", "thesis.tex", "my-model.safetensors"]
    fresh = "simulation-top-0123456789abcdef.so"
    for name in (*names, *others, fresh):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - 3600 * (name != fresh),) * 2)
    (tmp_path / "link-0123456789abcdef.so").symlink_to(tmp_path / "thesis.tex")
    found = doctor.clean()
    assert found.detail == f"5 files, 0.0 MB, of {tmp_path}"
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*others, fresh, "link-0123456789abcdef.so"}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def as_pipe(path):
    path.unlink()
    os.mkfifo(path)


def as_folder(path):
    path.unlink()
    (path / "deep").mkdir(parents=True)


DAMAGES = {
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flip,
    "empty": lambda path: path.write_text(""),
    "text": lambda path: path.write_text("no library"),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "gone": lambda path: path.unlink(),
    "a pipe": as_pipe,
    "a folder": as_folder,
    "not text": lambda path: path.write_bytes(bytes(range(128, 256)) * 100),
}
QUIET = ("a pipe", "a folder", "gone")
"""Damages without a line: it is no file that this user has written, and is made as if missing."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    text = 'extern "C" int answer() { return 42; }\n'
    Sources("small", (source(folder, "small.cpp", text),)).compile(
        compiler(), ("-fPIC",), folder / "small.so"
    )
    return folder / "small.so"


@needs_compiler
@pytest.mark.parametrize("what", ["library", "digest"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_library_is_removed_and_built_again_with_a_line(
    what, how, small, tmp_path, caplog
):
    def again():
        return cached_file(tmp_path / "small.so", lambda target: shutil.copy(small, target))

    path = again()
    DAMAGES[how](path if what == "library" else digest_beside(path))
    assert not is_whole(path)
    assert load_library(again)[1].answer() == 42
    assert path.read_bytes() == small.read_bytes()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (0 if what == "library" and how in QUIET else 1)
    assert all("is damaged" in line and "built again" in line for line in lines)
    cached_file(path, lambda target: pytest.fail("made twice"))
    assert {file.name for file in tmp_path.iterdir()} == {path.name, digest_beside(path).name}


def test_what_matches_its_digest_and_does_not_load_is_built_again_once(tmp_path, caplog):
    path, made = tmp_path / "small.so", []

    def make(target):
        made.append(target)
        target.write_text("no library")

    with pytest.raises(OSError, match=r"small\.so"):
        load_library(lambda: cached_file(path, make))
    assert len(made) == 2
    assert ["does not load" in record.getMessage() for record in caplog.records] == [True]


def test_a_file_of_code_and_its_digest_are_on_the_disk_before_they_have_their_names(
    tmp_path, monkeypatch
):
    calls = []
    for name in ("fsync", "replace"):
        true = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *given, name=name, true=true: (calls.append(name), true(*given))[1]
        )
    cached_file(tmp_path / "a.so", lambda target: target.write_text("made"))
    assert calls == ["fsync", "fsync", "replace", "replace", "fsync"]


@pytest.mark.parametrize("moment", ["make", "chmod", "write_digest", "sync_folder"])
def test_a_kill_while_code_is_made_leaves_nothing_that_is_used(
    moment, tmp_path, monkeypatch, caplog
):
    path = tmp_path / "a-0123456789abcdef.so"

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def work():
        if moment == "chmod":
            monkeypatch.setattr("pathlib.Path.chmod", die)
        elif moment != "make":
            monkeypatch.setattr(f"chop.base.native.{moment}", die)
        cached_file(path, lambda target: (target.write_text("half"), moment == "make" and die()))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if moment != "sync_folder":
        assert not path.exists()
        assert cached_file(path, lambda target: target.write_text("whole")).read_text() == "whole"
    assert is_whole(cached_file(path, lambda target: pytest.fail("made twice")))
    left = {file.name for file in tmp_path.iterdir() if file.suffix != ".lock"}
    assert left == {path.name, digest_beside(path).name}
    assert not caplog.records


def test_half_made_files_of_other_code_are_removed_by_the_next_that_is_made(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=left_behind, args=(tmp_path,))
    process.start()
    process.join()
    assert len([*tmp_path.iterdir()]) == 1
    cached_file(tmp_path / "b.so", lambda target: target.write_text("made"))
    assert {file.name for file in tmp_path.iterdir()} == {"b.so", "b.so.sha256"}


def left_behind(folder):
    temporary_beside(folder / "a.so").write_text("half")


def test_digests_are_compared_in_little_time(tmp_path):
    path = cached_file(tmp_path / "a.so", lambda target: target.write_bytes(bytes(1_200_000)))
    took = []
    for _ in range(10):
        start = time.perf_counter()
        is_whole(path)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.005
