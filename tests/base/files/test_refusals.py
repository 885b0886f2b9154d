"""Names that are too long: the one that is, in one sentence, as the system found it."""

import errno
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from chop.base.files import atomic_file, make_folder, names_of_files, writing
from chop.errors import ConfigError, WriteError
from tests.limits import files_up_to

WIDE, LIMIT = "\u8a9e", 255
"""A letter of three bytes, and the bytes of a name that file systems of Linux take."""
NAME = r"too long for the name of a file or folder; most disks take 255 bytes"
CASES = {
    "x" * (LIMIT + 1): r"^'x{60}\.\.\. \(256 characters\)' is " + NAME,
    WIDE * 86: rf"^'{WIDE}{{60}}\.\.\. \(86 characters\)' is " + NAME,
    # The one before it has more letters, and fewer bytes.
    f"{'x' * 200}/{WIDE * 100}/{'y' * 200}": rf"^'{WIDE}{{60}}\.\.\. \(100 characters\)' is "
    + NAME,
    "ab/" * 1500 + "ab": r"^'(ab/){20}\.\.\. \(4502 characters\)' is too long for a path",
}
"""Name -> what is said of it."""


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_name_that_is_too_long_is_told(case, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("x" * 200).mkdir()
    name, told = list(CASES.items())[case]
    with pytest.raises(ConfigError, match=told), names_of_files():
        Path(name).stat()


def test_names_at_the_limit_are_looked_up(tmp_path):
    with pytest.raises(FileNotFoundError), names_of_files():
        (tmp_path / (WIDE * (LIMIT // len(WIDE.encode())))).stat()


@pytest.mark.parametrize("error", [OSError(errno.ENAMETOOLONG, "no name"), OSError("no code")])
def test_an_error_without_a_name_stays_itself(error):
    with pytest.raises(OSError) as raised, names_of_files():
        raise error
    assert raised.value is error


LARGE = torch.zeros(100_000)


def by_an_open_file(write):
    def by(path):
        with path.open("wb") as file:
            write(file)

    return by


WRITERS = {
    "torch": lambda path: torch.save(LARGE, path),
    "torch, by a file": by_an_open_file(partial(torch.save, LARGE)),
    "torch, many": lambda path: torch.save([LARGE[:1000].clone() for _ in range(100)], path),
    "torch, by pickle": lambda path: torch.save(LARGE, path, _use_new_zipfile_serialization=False),
    "numpy": lambda path: LARGE.numpy().tofile(path),
    "numpy, npy": by_an_open_file(lambda file: np.save(file, LARGE.numpy())),
    "numpy, npz": by_an_open_file(lambda file: np.savez(file, x=LARGE.numpy())),
    "safetensors": lambda path: save_file({"x": LARGE}, path),
    "Python": lambda path: path.write_bytes(bytes(100_000)),
}


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_that_a_library_cannot_write_is_one_sentence_with_the_free_space(tmp_path, write):
    path = tmp_path / "model.pt"
    with files_up_to(20_000), pytest.raises(WriteError) as caught, atomic_file(path) as temporary:
        WRITERS[write](temporary)
    message = str(caught.value)
    assert re.fullmatch(
        r"'.*model\.pt' cannot be written: (File too large|No space left on device); free some "
        r"space, or choose another folder \([\d,.]+ MB are free\)\.",
        message,
    )
    assert not [*tmp_path.iterdir()]


def test_errors_of_libraries_that_are_no_write_errors_pass_through(tmp_path):
    for error in (RuntimeError("shapes differ"), OSError("3 requested"), ValueError("(os error)")):
        with pytest.raises(type(error), match=re.escape(str(error))), writing(tmp_path / "a"):
            raise error


def test_a_file_where_a_folder_is_expected_is_named(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b")
    with pytest.raises(
        WriteError, match=r"rows.csv' cannot be written: it is a file, not a folder"
    ):
        make_folder(tmp_path / "rows.csv")


@pytest.mark.parametrize("out", ["link", "link/sub", "link/sub/below"])
def test_a_link_without_its_folder_is_the_named_cause(out, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(WriteError, match=r"link' is a link to '.*gone', which does not exist"):
        make_folder(tmp_path / out)
    (tmp_path / "gone").mkdir()
    assert make_folder(tmp_path / out).is_dir()
