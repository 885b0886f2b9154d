"""Names that are too long: the one that is, in one sentence, as the system found it."""

import errno
from pathlib import Path

import pytest

from chop.errors import ConfigError
from chop.files import names_of_files

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
