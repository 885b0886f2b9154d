"""GGUF header: metadata and tensor locations, checked against the file size.

A malicious file may request any amount of time and memory: a text of 2^60 bytes, as many tensors,
or overlapping tensors. Everything is compared with the file's size before a library reads it. The
gguf library creates an object for each array value, so it gets a file without the other arrays.

Source: ggml, `docs/gguf.md`, versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chop.base.files import writing
from chop.base.files.reading import require_file
from chop.errors import CheckpointError

SUFFIX = ".gguf"
MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""`struct` format letters by value type."""
TEXT, ARRAY = 8, 9
ALIGNMENT, LEAST_ALIGNMENT = "general.alignment", 32
LEAST_PAIR, LEAST_TENSOR = 13, 24
"""Smallest sizes, in bytes, of a key-value pair and of a tensor description."""
MOST_DIMENSIONS, MOST_ALIGNMENT = 4, 2**16
MOST_BLOCKS, MOST_NUMBER = 2**14, 2**27
"""Limits for numbers of layers and heads, and for other sizes of a model in a small file."""
BY_LAYER = ".attention.head_count_kv"
"""End of the key whose value may be an array with a number per layer."""
MOST_TEXTS = 2**22
"""Limit for texts in all arrays: a vocabulary has up to 2^20 tokens and twice as many merges."""


@dataclass(frozen=True)
class TensorPlace:
    """Location of a tensor.

    Attributes:
        shape: shape in torch's order, rows first.
        type_name: ggml type, such as "Q8_0".
        start: offset in the file, in bytes.
        size: size in bytes.
    """

    shape: tuple[int, ...]
    type_name: str
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """Metadata of a file.

    Attributes:
        metadata: scalar values, and numbers of each layer, by key.
        arrays: lengths of other arrays by key.
        pairs: start and end offsets of a key and its value, by key.
        tensors: tensor locations by name.
    """

    metadata: dict[str, Any]
    arrays: dict[str, int]
    pairs: dict[str, tuple[int, int]]
    tensors: dict[str, TensorPlace]


def gguf_file(path: Path) -> Path | None:
    """Returns the GGUF file of a path, or of a folder without other weights."""
    if path.is_file():
        return path if path.suffix == SUFFIX else None
    if not path.is_dir() or any(any(path.glob(f"*.{x}")) for x in ("safetensors", "bin")):
        return None
    files = [*path.glob(f"*{SUFFIX}")]
    return files[0] if len(files) == 1 and files[0].is_file() else None


def read_header(path: Path) -> Header:
    """Reads the header of a file.

    Raises:
        CheckpointError: if it is truncated, or if an entry is larger than the file.
    """
    try:
        return _Cursor(path).header()
    except (struct.error, OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"'{path}' is not a readable GGUF file: {error}") from None


def write_part(
    path: Path, header: Header, keys: Iterable[str], to: Path, tensors: Iterable[str] = ()
) -> None:
    """Writes a file with selected keys and tensors.

    Raises:
        WriteError: if the disk is full.
    """
    data, alignment = np.memmap(path, mode="r"), header.metadata.get(ALIGNMENT, LEAST_ALIGNMENT)
    pairs = [data[slice(*header.pairs[key])].tobytes() for key in keys]
    places = {name: header.tensors[name] for name in tensors}
    described, offset = [], 0
    for name, place in places.items():
        described.append(_described(name, place, offset))
        offset += -(-place.size // alignment) * alignment
    counts = struct.pack("<IQQ", VERSIONS[-1], len(places), len(pairs))
    with writing(to), to.open("wb") as file:
        file.write(b"".join([MAGIC, counts, *pairs, *described]))
        for place in places.values():
            file.write(bytes(-file.tell() % alignment))
            file.write(data[place.start : place.start + place.size].data)


def _described(name: str, place: TensorPlace, offset: int) -> bytes:
    from gguf import GGMLQuantizationType

    text, dimensions = name.encode(), place.shape[::-1]
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    kind = GGMLQuantizationType[place.type_name]
    return struct.pack("<Q", len(text)) + text + shape + struct.pack("<IQ", kind, offset)


class _Cursor:
    """Read position in a file.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._data = np.memmap(require_file(path, "gguf"), mode="r")
        self._at = self._texts = 0

    def header(self) -> Header:
        """Reads the whole header."""
        if self._bytes(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin with 'GGUF'")
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"expected version 2 or 3, got {version}")
        tensors, pairs = self._number("Q"), self._number("Q")
        self._check_room(pairs * LEAST_PAIR + tensors * LEAST_TENSOR)
        metadata, arrays = dict[str, Any](), dict[str, int]()
        places: dict[str, tuple[int, int]] = {}
        for _ in range(pairs):
            start, key = self._at, self._text()
            if key in places:
                raise ValueError(f"the key {key[:80]!r} occurs twice")
            kind = self._number("I")
            if kind == ARRAY and key.endswith(BY_LAYER):
                metadata[key] = self._numbers()
            elif kind == ARRAY:
                arrays[key] = self._array()
            else:
                metadata[key] = self._value(kind)
            places[key] = start, self._at
        _check_numbers(metadata, len(self._data))
        return Header(metadata, arrays, places, self._places(tensors, metadata))

    def _places(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorPlace]:
        alignment = metadata.get(ALIGNMENT, LEAST_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT:
            raise ValueError(f"{ALIGNMENT} is {alignment!r}")
        places: dict[str, TensorPlace] = {}
        for _ in range(count):
            name = self._text()
            if name in places:
                raise ValueError(f"the tensor {name[:80]!r} occurs twice")
            places[name] = self._place(name)
        start = -(-self._at // alignment) * alignment
        sizes = sum(place.size for place in places.values())
        ends = [start + place.start + place.size for place in places.values()]
        if max([start + sizes, *ends]) > len(self._data) and sizes:
            raise ValueError("it is truncated, or its tensors are larger than the file")
        return {
            name: TensorPlace(x.shape, x.type_name, start + x.start, x.size)
            for name, x in places.items()
        }

    def _place(self, name: str) -> TensorPlace:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        dimensions = self._number("I")
        if not 0 < dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"{name[:80]!r} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        kind, start = GGMLQuantizationType(self._number("I")), self._number("Q")
        block, size = GGML_QUANT_SIZES[kind]
        if not math.prod(shape) or shape[-1] % block:
            raise ValueError(f"{name[:80]!r} has the shape {shape} in blocks of {block}")
        return TensorPlace(shape, kind.name, start, math.prod(shape) // block * size)

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind not in NUMBERS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self._number(NUMBERS[kind])

    def _numbers(self) -> list[Any]:
        """Reads an array with a number per layer."""
        kind, count = self._number("I"), self._number("Q")
        if kind not in NUMBERS or count > MOST_BLOCKS:
            raise ValueError(f"a number per layer has {count} values of type {kind}")
        return [self._number(NUMBERS[kind]) for _ in range(count)]

    def _array(self) -> int:
        """Skips an array and returns its length."""
        kind = self._number("I")
        count: int = self._number("Q")
        if kind in NUMBERS:
            self._pass(count * struct.calcsize(NUMBERS[kind]))
        elif kind == TEXT:
            self._check_room(count * 8)
            self._texts += count
            if self._texts > MOST_TEXTS:
                raise ValueError(f"its arrays have more than {MOST_TEXTS} texts")
            for _ in range(count):
                self._pass(self._number("Q"))
        else:
            raise ValueError(f"an array has values of type {kind}")
        return count

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode()

    def _number(self, letter: str) -> Any:
        size = struct.calcsize(letter)
        return struct.unpack(f"<{letter}", self._bytes(size))[0]

    def _bytes(self, count: int) -> bytes:
        self._pass(count)
        return self._data[self._at - count : self._at].tobytes()

    def _pass(self, count: int) -> None:
        self._check_room(count)
        self._at += count

    def _check_room(self, count: int) -> None:
        if count > len(self._data) - self._at:
            raise ValueError(f"it is truncated: {count} bytes are expected at {self._at}")


def _check_numbers(metadata: dict[str, Any], size: int) -> None:
    """Raises ValueError if the model would be much larger than its file."""
    for key, value in metadata.items():
        numbers = value if isinstance(value, list) else [value]
        if key.startswith(("general.", "tokenizer.")):
            continue
        is_count = key.endswith(("block_count", "head_count", "head_count_kv"))
        most = MOST_BLOCKS if is_count else max(8 * size, MOST_NUMBER)
        for number in numbers:
            if type(number) is int and not 0 <= number <= most:
                raise ValueError(f"{key[:80]!r} is {number}, expected at most {most}")
