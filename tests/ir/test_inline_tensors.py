"""Tensors in the text of a checkpoint unpack to what its size allows, and no more."""

import base64
import zlib

import pytest
import torch
from torch import nn

from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from chop.ir.storage import checkpoint, tensor_store
from chop.ir.storage.tensor_store import TensorStore, pack_inline, restore, unpack_inline


def build_table(tensors):
    store = TensorStore()
    for name, tensor in tensors.items():
        store.add(name, tensor)
    return store.table


def test_tensors_come_back_whatever_room_is_left(monkeypatch):
    monkeypatch.setattr(tensor_store, "INLINE_FREE", 3 * 10**4)
    masks = {f"mask{n}": torch.full((100, 100), n % 2 == 0) for n in range(5)}
    tensors = {**masks, "empty": torch.empty(0, 3), "one": torch.tensor(7.5), "ids": torch.ones(9)}
    texts = pack_inline(tensors)
    sizes = [len(texts[name]) for name in masks]
    assert sizes[0] < 100 < 10**4 < sizes[-1]  # no room is left for the last ones
    table = build_table(tensors)
    found = restore(table, unpack_inline(texts, table))
    assert all(
        torch.equal(found[name], x) and found[name].dtype == x.dtype for name, x in tensors.items()
    )


BOMBS = {
    "one": [2**31],
    "two": [2**27, 2**27],
    "many": [2**26] * 60,
    "wide": [2**50],
}


@pytest.mark.parametrize("sizes", BOMBS.values(), ids=BOMBS)
def test_texts_that_ask_for_more_are_not_unpacked(sizes, monkeypatch):
    packed = base64.b64encode(zlib.compress(bytes(2**16))).decode()
    table = {str(n): {"dtype": "uint8", "shape": [size]} for n, size in enumerate(sizes)}
    unpacked = []

    class Unpacking:
        def decompress(self, data, max_length):
            unpacked.append(max_length)
            return bytes(1)

    monkeypatch.setattr(tensor_store.zlib, "decompressobj", Unpacking)
    with pytest.raises(CheckpointError, match=r"tensor '\d+' unpacks to \d+ bytes, too much for"):
        unpack_inline(dict.fromkeys(table, packed), table)
    assert sum(unpacked) <= tensor_store.INLINE_FREE + len(sizes) * 64 * len(packed)


def test_texts_that_are_none_are_refused():
    table = {"a": {"dtype": "uint8", "shape": [4]}}
    for text in ("", "AAAA", "é", "x" * 7):
        with pytest.raises(CheckpointError, match="tensor 'a'"):
            restore(table, unpack_inline({"a": text}, table))


def test_a_file_that_would_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "BOUNDS", {"checkpoint": 100})
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)), dummy_in={"input": torch.ones(3, 4)})
    with pytest.raises(CheckpointError, match="more than are read again"):
        mg.export(tmp_path / "a")
    assert [*tmp_path.iterdir()] == []
