"""A limit of the machine is one sentence of the command; other errors keep their trace."""

import errno
import sys

import pytest
import torch

from chop import cli
from chop.base.files.limits import LOOP, NO_FILE, NO_MEMORY, NO_PROCESS, NO_SPACE, reached_limit


def _caused(error):
    try:
        try:
            raise error
        except Exception as cause:
            raise ImportError("cannot import torch") from cause
    except ImportError as outer:
        return outer


def _raised(work):
    try:
        work()
    except Exception as error:
        return error


LIMITS = {
    "fork": (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), NO_PROCESS),
    "thread": (RuntimeError("can't start new thread"), NO_PROCESS),
    "files": (OSError(errno.EMFILE, "Too many open files"), NO_FILE),
    "files_of_all": (OSError(errno.ENFILE, "Too many open files in system"), NO_FILE),
    "memory": (MemoryError(), NO_MEMORY),
    "memory_of_fork": (OSError(errno.ENOMEM, "Cannot allocate memory"), NO_MEMORY),
    "memory_of_torch": (_raised(lambda: torch.empty(10**15)), NO_MEMORY),
    "files_of_the_loader": (ImportError("x.so: cannot open: Too many open files"), NO_FILE),
    "full_output": (OSError(errno.ENOSPC, "No space left on device"), NO_SPACE),
    "link": (RuntimeError("Symlink loop from '/x/y'"), LOOP.format("'/x/y'")),
    "behind_an_import": (_caused(OSError(errno.EMFILE, "Too many open files")), NO_FILE),
}


@pytest.mark.parametrize("error, sentence", LIMITS.values(), ids=LIMITS)
def test_a_limit_is_one_sentence_of_the_command(error, sentence, monkeypatch, capsys):
    def fails():
        raise error

    monkeypatch.setattr("chop.cli.app.app", fails)
    monkeypatch.setattr(sys, "argv", ["chop"])
    assert reached_limit(error) == sentence
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert " ".join(capsys.readouterr().err.split()) == f"Stopped: {sentence}"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug"),
        OSError(errno.EIO, "Input/output error"),
        BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 4096),
        OSError(errno.ENOSPC, "No space left on device", "/x/y"),
    ],
)
def test_other_errors_stay_as_they_are(error, monkeypatch):
    def fails():
        raise error

    monkeypatch.setattr("chop.cli.app.app", fails)
    assert reached_limit(error) is None
    with pytest.raises(type(error)):
        cli.main()
