"""A file of torch.save is read in the memory that it has itself."""

import io
import os
import struct
import zipfile

import pytest
import torch
from torch import nn

from chop.errors import CheckpointError
from chop.ir.storage.torch_file import check_torch_file, read_torch_file
from chop.models.weights import load_checkpoint, load_weights

LARGE = 3 * 10**8


class Filled:
    """Unpickled, it takes as many bytes as a number says; `weights_only` allows it."""

    def __reduce__(self):
        return bytearray, (LARGE,)


@pytest.fixture
def state():
    torch.manual_seed(0)
    return nn.Linear(4, 4).state_dict()


def _bytes(state, **settings):
    file = io.BytesIO()
    torch.save(state, file, **settings)
    return file.getvalue()


def _again(content, compression, also=()):
    """The same archive, written by zipfile."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), compression if "/data/" in name else None)
        for name, size in also:
            new.writestr(name, bytes(size), compression)
    return file.getvalue()


def _with_sizes(content, size):
    """The archive whose first member says that it has other sizes."""
    changed = bytearray(content)
    struct.pack_into("<II", changed, changed.find(b"PK\x01\x02") + 20, size, size)
    return bytes(changed)


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_writes_is_read(state, zipped, tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"state_dict": state, "step": 3}, path, _use_new_zipfile_serialization=zipped)
    found = read_torch_file(path)
    check_torch_file(path)
    assert found["step"] == 3 and found["state_dict"]["weight"].equal(state["weight"])
    assert load_weights(nn.Linear(4, 4), path).weight.equal(state["weight"])


def test_an_archive_of_zip64_is_read(state, tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(io.BytesIO(_bytes(state))) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            with new.open(name, "w", force_zip64=True) as member:
                member.write(old.read(name))
    assert read_torch_file(path)["weight"].equal(state["weight"])


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members_are_refused_before_they_are_inflated(state, method, tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(_again(_bytes(state), method, [("archive/data/7", 10**6)]))
    assert path.stat().st_size < 10**4
    for read in (read_torch_file, check_torch_file, lambda x: load_weights(nn.Linear(4, 4), x)):
        with pytest.raises(CheckpointError, match="is compressed"):
            read(path)
    with pytest.raises(CheckpointError, match="is compressed"):
        load_checkpoint(path, "pl", nn.Linear(4, 4))


def test_members_that_overlap_are_refused(state, tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(_with_sizes(_bytes(state), LARGE))
    with pytest.raises(CheckpointError, match=r"members have 300,000,\d+ bytes together"):
        read_torch_file(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_class_that_fills_memory_is_refused(state, zipped, tmp_path):
    path = tmp_path / "a.pt"
    torch.save({**state, "x": Filled()}, path, _use_new_zipfile_serialization=zipped)
    assert path.stat().st_size < 10**4
    with pytest.raises(CheckpointError, match="contains a bytearray"):
        load_weights(nn.Linear(4, 4), path)


def _comment(content):
    return content[:-2] + b"\x05\x00hello"


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:-30],
        lambda x: x[:4],
        lambda x: x[: len(x) // 2],
        lambda x: b"",
        lambda x: x[:2],
        _comment,
        lambda x: x + b"\0" * 100,
        lambda x: x.replace(b"PK\x01\x02", b"PK\x01\x03"),
        lambda x: x[:-10] + b"\xff" * 10,
        lambda x: bytes(len(x)),
    ],
)
def test_a_damaged_file_is_one_sentence(state, change, tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(change(_bytes(state)))
    with pytest.raises(CheckpointError, match=r"a\.pt") as caught:
        load_weights(nn.Linear(4, 4), path)
    assert "\n" not in str(caught.value)


def test_a_pipe_and_a_device_are_no_weights(tmp_path):
    os.mkfifo(tmp_path / "a.pt")
    (tmp_path / "b.safetensors").symlink_to("/dev/zero")
    for path in tmp_path.iterdir():
        with pytest.raises(CheckpointError, match="expected a regular file"):
            load_weights(nn.Linear(4, 4), path)
