"""Temporary folders: they end with their process, or with the next one where it was killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chop.base.files import temporary
from chop.base.files.temporary import own_temporary_files, scratch_folder, scratch_prefix
from chop.errors import WriteError

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The folder of temporary files of a test, whatever was asked for before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (temporary.SHARED, "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    temporary.remove_old_scratch.cache_clear()
    yield tmp_path
    temporary.remove_old_scratch.cache_clear()


def killed(work):
    def run():
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


OPEN = []


def entered(context):
    """Enters a context that nothing ends but its process."""
    OPEN.append(context)
    return context.__enter__()


def leave():
    (entered(scratch_folder("read")) / "weights").write_text("all of them")


def test_a_scratch_folder_goes_at_the_end_also_of_a_block_that_fails(place):
    with pytest.raises(KeyError), scratch_folder("read") as folder:
        (folder / "weights").touch()
        assert folder.parent == place and folder.stat().st_mode & 0o777 == 0o700
        raise KeyError
    assert not [*place.iterdir()]


@pytest.mark.parametrize("next_one", ["scratch", "trainer"])
def test_what_a_killed_process_left_goes_with_the_next_one(place, next_one):
    killed(leave)
    (left,) = place.iterdir()
    assert (left / "weights").exists()
    (place / "chop-thesis").mkdir()  # no process of ours
    with scratch_folder("mine") as living:
        temporary.remove_old_scratch.cache_clear()
        if next_one == "trainer":
            scratch_prefix("trainer")
        else:
            with scratch_folder("other"):
                pass
        assert living.is_dir() and not left.exists() and (place / "chop-thesis").is_dir()


def test_no_place_for_temporary_files_is_one_sentence(place, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(place / "nowhere"))
    with pytest.raises(WriteError, match="no temporary folder .*TMPDIR"):
        entered(scratch_folder("read"))


def test_libraries_of_a_command_have_a_folder_of_its_own(place, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(temporary, "PATH_BYTES", 1000)
    program = "import tempfile; print(tempfile.mkdtemp())"

    def by_a_library():
        made = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        return Path(made.stdout.strip()), Path(tempfile.mkdtemp())

    with own_temporary_files():
        folders = {path.parent for path in by_a_library()}
        assert folders == {Path(os.environ["TMPDIR"])} != {place}
        assert os.environ[temporary.SHARED] == str(place)
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{place}/torchinductor_")
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(place)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ and not [*place.iterdir()]

    def command():
        entered(own_temporary_files())
        by_a_library()

    killed(command)
    assert len([*place.rglob("tmp*")]) == 2
    temporary.remove_old_scratch.cache_clear()
    with own_temporary_files():
        pass
    assert not [*place.iterdir()]


def test_sockets_of_processes_have_names_that_are_short_enough(place, monkeypatch):
    monkeypatch.setattr(temporary, "PATH_BYTES", len(str(place)))
    with own_temporary_files():
        assert tempfile.gettempdir() == str(place)


def test_commands_that_need_no_temporary_files_run_where_none_can_be_made(place, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(place / "nowhere"))
    with own_temporary_files():
        assert tempfile.gettempdir() == str(place / "nowhere")

    def full():
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    with own_temporary_files():
        pass
