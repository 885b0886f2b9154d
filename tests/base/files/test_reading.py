"""One function opens every file that is read: a regular file within the bound of its kind."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from chop.base.files.documents import MAX_VALUES, parse_json, read_json, read_toml
from chop.base.files.reading import open_regular, read_bytes, read_text, require_file
from chop.errors import ConfigError

READERS = {
    "bytes": lambda path: read_bytes(path, "config"),
    "text": lambda path: read_text(path, "config"),
    "open": lambda path: open_regular(path, "config"),
    "require": lambda path: require_file(path, "config"),
    "json": lambda path: read_json(path, "config"),
    "toml": lambda path: read_toml(path, "settings"),
}
readers = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@readers
def test_a_pipe_a_socket_and_a_device_are_refused_at_once(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        for name in ("pipe", "link", "zero", "socket"):
            with pytest.raises(ConfigError, match="expected a regular file, got a "):
                read(tmp_path / name)


@readers
def test_folders_missing_files_and_loops_stay_errors_of_the_system(read, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")
    with pytest.raises(OSError, match="symbolic links"):
        read(tmp_path / "a")
    with pytest.raises(ConfigError, match="its name cannot be that of a file"):
        read(f"{tmp_path}/a\0b")


@readers
def test_a_file_beyond_its_bound_is_refused_by_its_size(read, tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(ConfigError, match=r"1,099,511,627,776 bytes, .* at most"):
        read(path)


def test_a_growing_file_is_read_as_far_as_it_was(tmp_path):
    path = tmp_path / "growing"
    path.write_bytes(b"one")
    with open_regular(path, "weights") as file, path.open("ab") as writer:
        writer.write(b"two")
        assert file.read(3) == b"one"
    assert read_bytes(path, "weights") == b"onetwo"


def test_no_file_stays_open_where_one_is_refused(tmp_path):
    before = _open_files()
    (tmp_path / "zero").symlink_to("/dev/zero")
    for _ in range(20):
        with pytest.raises(ConfigError):
            read_bytes(tmp_path / "zero", "config")
        with pytest.raises(IsADirectoryError):
            read_bytes(tmp_path, "config")
    assert _open_files() == before


def _open_files():
    place = Path("/proc/self/fd")
    return len([*place.iterdir()]) if place.is_dir() else 0


def test_lines_and_bytes_that_are_no_text_are_as_text_files_have_them(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a\r\nb\xff")
    assert read_text(path, "source", errors="replace") == "a\nb\ufffd"
    with pytest.raises(ConfigError, match="not UTF-8 text: byte 4 is invalid"):
        read_text(path, "source")


def test_values_of_a_document_are_counted_before_they_take_memory():
    for text in (b"[" + b"[]," * (MAX_VALUES // 2) + b"0]", '{"a":[' + "0," * MAX_VALUES + "0]}"):
        with pytest.raises(ConfigError, match="more than 4,194,304 values"):
            parse_json(text, None)
    assert len(parse_json("[" + "0," * 10**5 + "0]", list)) == 10**5 + 1


SMALL = """
import resource, sys
from chop.base.files.documents import read_json, read_toml
from chop.errors import ConfigError
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20,) * 2)
assert read_json(sys.argv[1], "manifest") == {}
assert read_toml(sys.argv[2], "settings") == {"a": 1}
try:
    read_json(sys.argv[3], "manifest")
except ConfigError as error:
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_document_takes_the_memory_of_its_size(tmp_path):
    """A read of the largest size that a file may have asks for as much address space."""
    for name, content in (("a.json", "{}"), ("a.toml", "a = 1"), ("b.json", "[")):
        (tmp_path / name).write_text(content)
    os.truncate(tmp_path / "b.json", 9 * 10**7)
    names = [str(tmp_path / name) for name in ("a.json", "a.toml", "b.json")]
    done = subprocess.run(
        [sys.executable, "-c", SMALL, *names], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert "90,000,000 bytes" in done.stdout
