"""Damaged files: every reader's files, and what can be wrong with them."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LARGE = 10**18
DEEP = 10**5


@dataclass(frozen=True)
class Reader:
    """A reader, and the file that it reads.

    Attributes:
        files: makes a folder of well-formed files.
        name: of the file in it that is damaged.
        read: reads the folder.
    """

    files: Callable[[Path], object]
    name: str
    read: Callable[[Path], object]


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def _flipped(seed: int, share: float) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        random = np.random.default_rng(seed)
        values = np.frombuffer(content, np.uint8).copy()
        places = random.integers(0, max(len(values), 1), max(int(share * len(values)), 1))
        if len(values):
            values[places] ^= random.integers(1, 256, len(places), np.uint8)
        return values.tobytes()

    return change


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def _socket(path: Path) -> None:
    home = Path.cwd()
    os.chdir(path.parent)  # a name of a socket has 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(home)


def _values(new: Any, every: int, first: int = 0) -> Callable[[bytes], bytes]:
    """Puts something else in the place of values of a JSON document; other files are cut."""

    def change(content: bytes) -> bytes:
        lines = content.splitlines() if content.count(b"\n{") else [content]
        try:
            documents = [json.loads(line) for line in lines]
        except ValueError:
            return content[: (first + 1) * len(content) // (every + 2)]
        count = iter(range(10**9))

        def visit(value: Any) -> Any:
            if next(count) % every == first and value is not documents[0]:
                return new
            if isinstance(value, dict):
                return {key: visit(item) for key, item in value.items()}
            return [*map(visit, value)] if isinstance(value, list) else value

        return b"\n".join(json.dumps(visit(document)).encode() for document in documents)

    return change


def _header(content: bytes) -> bytes:
    """A number in the first bytes, as of lengths, becomes large."""
    return content[:8] + struct.pack("<Q", 2**62) + content[16:]


MUTATIONS: dict[str, Callable[[Path], None]] = {
    "empty": _bytes(lambda _: b""),
    "one_byte": _bytes(lambda x: x[:1]),
    "cut_early": _bytes(lambda x: x[: len(x) // 5]),
    "cut_half": _bytes(lambda x: x[: len(x) // 2]),
    "cut_late": _bytes(lambda x: x[:-2]),
    "longer": _bytes(lambda x: x + b"\x00\xff" * 50),
    "twice": _bytes(lambda x: x + x),
    "ones": _bytes(lambda x: b"\xff" * len(x)),
    "zeros": _bytes(lambda x: bytes(len(x))),
    "nul": _bytes(lambda x: x[: len(x) // 2] + b"\0" + x[len(x) // 2 :]),
    "no_text": _bytes(lambda x: x[: len(x) // 3] + b"\xff\xfe\xfd" + x[len(x) // 3 :]),
    "lines": _bytes(lambda x: x.replace(b"\n", b"\r")),
    "flip_1": _bytes(_flipped(1, 0)),
    "flip_2": _bytes(_flipped(2, 0.01)),
    "flip_3": _bytes(_flipped(3, 0.2)),
    "length": _bytes(_header),
    "length_0": _bytes(lambda x: struct.pack("<Q", 2**63 - 1) + x[8:]),
    "deep": _bytes(lambda _: b"[" * DEEP),
    "deep_closed": _bytes(lambda _: b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "array": _bytes(lambda _: b"[]"),
    "object": _bytes(lambda _: b"{}"),
    "null": _bytes(lambda _: b"null"),
    "number": _bytes(lambda _: b"1e999"),
    "long_number": _bytes(lambda _: b'{"a": ' + b"9" * 5000 + b"}"),
    "huge_values": _bytes(_values(LARGE, 3, 1)),
    "minus_values": _bytes(_values(-1, 4, 2)),
    "zero_values": _bytes(_values(0, 5, 3)),
    "text_values": _bytes(_values("../../x\0", 4, 1)),
    "list_values": _bytes(_values([1], 3, 2)),
    "object_values": _bytes(_values({"a": None}, 5, 1)),
    "null_values": _bytes(_values(None, 2, 1)),
    "nan_values": _bytes(_values(float("nan"), 3, 2)),
    "deep_values": _bytes(_values(json.loads("[" * 150 + "]" * 150), 4, 1)),
    "long_values": _bytes(_values("(x+)+y" * 10**5, 5, 2)),
    "utf_16": _bytes(lambda x: x.decode("latin-1").encode("utf-16")),
    "half_character": _bytes(lambda x: x.replace(b'": "', b'": "\\ud800', 3)),
    "infinite_values": _bytes(_values(float("inf"), 4, 3)),
    "pipe": _instead(os.mkfifo),
    "socket": _instead(_socket),
    "device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "full": _instead(lambda path: path.symlink_to("/dev/full")),
    "folder": _instead(Path.mkdir),
    "missing": _instead(lambda _: None),
    "dangling": _instead(lambda path: path.symlink_to("nowhere")),
    "loop": _instead(lambda path: path.symlink_to(path.name)),
}
