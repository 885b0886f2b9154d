"""Files and values of a walk: complete or not there, and removed where settings differ."""

import copy
import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import WriteError
from chop.quantization.walk import values as block_values
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.values import NoBlocksError, Values
from tests.limits import files_up_to


def test_other_settings_start_anew(tmp_path):
    BlockFiles(tmp_path, {"walk": 1})
    (first,) = tmp_path.iterdir()
    BlockFiles(tmp_path, {"walk": 1})
    assert [*tmp_path.iterdir()] == [first]
    files = BlockFiles(tmp_path, {"walk": 2})
    (second,) = tmp_path.iterdir()
    assert first != second and files.whole(4) == 0 and not files.removed
    files.keep(0, {"x": torch.ones(2)}, None, {})
    assert BlockFiles(tmp_path, {"walk": 3}).removed
    BlockFiles(tmp_path, {"walk": 3}).remove()
    assert not tmp_path.exists()


def test_files_that_are_no_walk_s_stay(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    BlockFiles(tmp_path, {"walk": 1})
    BlockFiles(tmp_path, {"walk": 2}).remove()
    assert [file.name for file in tmp_path.rglob("*")] == ["mine", "notes.txt"]


@pytest.mark.parametrize("lost", ["model-00000.safetensors", "model-00001.safetensors", "0.pt"])
def test_a_walk_whose_files_are_lost_or_cut_starts_anew(tmp_path, lost):
    values = Values([], tmp_path)
    values.put(0, {})
    values.put(1, {})
    record = {"told": {}, "left": []}
    for action in (Path.unlink, lambda file: os.truncate(file, 10)):
        files = BlockFiles(tmp_path, {"walk": 1})
        for part in range(3):
            files.keep(part, {"x": torch.full((2,), part)} if part != 2 else {}, values, record)
        assert BlockFiles(tmp_path, {"walk": 1}).whole(5) == 3
        (file,) = files.folder.rglob(lost)
        action(file)
        left = BlockFiles(tmp_path, {"walk": 1}).whole(5)
        assert left == 0
        files.remove()


def test_what_no_file_has_is_no_value(tmp_path):
    mg = MaseGraph(nn.Linear(2, 2))
    values = Values(mg.nodes, tmp_path)
    x = torch.randn(1000)[:3]
    values.put(0, {mg.nodes[0]: (x, [None, 2.5], {"a": x})})
    found = values.get(0)[mg.nodes[0]]
    assert torch.equal(found[0], x) and found[0].untyped_storage().nbytes() == 12
    values.write(tmp_path)
    again = Values.from_files(mg.nodes, tmp_path).get(0)[mg.nodes[0]]
    assert torch.equal(again[2]["a"], x) and again[1] == [None, 2.5]
    with pytest.raises(NoBlocksError, match="is a object"):
        values.put(1, {mg.nodes[0]: object()})
    assert copy.copy(values).get(7) == {}


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    mg = MaseGraph(nn.Linear(2, 2))
    monkeypatch.setattr(block_values, "MEMORY_BYTES", 0)
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(WriteError, match="free some space"):
        Values(mg.nodes, tmp_path).put(0, {mg.nodes[0]: torch.ones(2)})


@pytest.mark.parametrize("memory", [0, 2**27])
def test_values_that_no_disk_takes_are_told_and_no_part_of_them_counts(
    memory, tmp_path, monkeypatch
):
    monkeypatch.setattr(block_values, "MEMORY_BYTES", memory)
    mg = MaseGraph(nn.Linear(2, 2))
    files = BlockFiles(tmp_path / "blocks", {"walk": 1})
    told = r"cannot be written: (File too large|No space left on device); free.* MB are free\)\."
    with files_up_to(20_000), pytest.raises(WriteError, match=told):
        values = Values(mg.nodes, files.scratch)
        values.put(0, {mg.nodes[0]: torch.ones(10**5)})
        files.keep(0, {}, values, {})
    again = BlockFiles(tmp_path / "blocks", {"walk": 1})
    assert again.whole(2) == 0
    left = {path.name for path in again.folder.rglob("*") if path.is_file()}
    assert left <= {"journal.jsonl"}
