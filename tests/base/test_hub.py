"""The cache folder, where the home folder cannot be written or is nowhere."""

import os
import warnings
from pathlib import Path

import pytest

from chop.base import hub
from chop.errors import WriteError
from tests.unprivileged import NEEDS_ROOT, NOBODY, as_nobody


@pytest.fixture(autouse=True)
def places(open_to_all, monkeypatch):
    """No `CHOP_CACHE`, and a folder for temporary files."""
    monkeypatch.delenv("CHOP_CACHE", raising=False)
    (open_to_all / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(open_to_all / "tmp"))
    hub._temporary_cache.cache_clear()
    yield
    hub._temporary_cache.cache_clear()


def a_file(open_to_all, monkeypatch):
    (open_to_all / "home").touch()
    monkeypatch.setenv("HOME", str(open_to_all / "home"))


def no_folders(open_to_all, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nohome")


def nowhere(open_to_all, monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)


@pytest.mark.parametrize("home", [a_file, no_folders, nowhere])
def test_a_home_that_cannot_be_written_gives_one_notice_and_a_cache(home, open_to_all, monkeypatch):
    home(open_to_all, monkeypatch)
    with pytest.warns(UserWarning, match="cache in the home folder .*CHOP_CACHE"):
        folder = hub.cache_folder()
    assert folder == open_to_all / "tmp" / f"chop-cache-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    with warnings.catch_warnings(action="error"):
        assert hub.cache_folder() == folder


@NEEDS_ROOT
def test_a_home_of_somebody_else_is_not_written(open_to_all, monkeypatch):
    (open_to_all / "home" / ".cache" / "chop").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(open_to_all / "home"))
    (open_to_all / "tmp").chmod(0o777)
    with warnings.catch_warnings(action="ignore"):
        folder = as_nobody(hub.cache_folder)
    assert folder.parent == open_to_all / "tmp" and folder.stat().st_uid == NOBODY
    assert hub.cache_folder() == open_to_all / "home" / ".cache" / "chop"


@NEEDS_ROOT
@pytest.mark.parametrize("trap", ["of another user", "open to all", "a link"])
def test_a_cache_that_others_can_write_is_not_used(trap, open_to_all, monkeypatch):
    no_folders(open_to_all, monkeypatch)
    placed = open_to_all / "tmp" / f"chop-cache-{os.geteuid()}"
    if trap == "a link":
        placed.symlink_to(open_to_all)
    else:
        placed.mkdir(mode=0o700)
        if trap == "open to all":
            placed.chmod(0o777)
        else:
            os.chown(placed, NOBODY, NOBODY)
    with pytest.warns(UserWarning, match="cache in the home folder"):
        folder = hub.cache_folder()
    assert folder != placed and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("named", ["/proc/x", "~no-such-user/x", "/dev/null/x"])
def test_a_named_cache_that_cannot_be_made_is_one_sentence(named, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", named)
    with pytest.raises(WriteError, match="cache folder cannot be created: .*CHOP_CACHE"):
        hub.cache_folder()
