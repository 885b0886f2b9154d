"""Files of GGUF byte by byte, so that they can say anything."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

UINT32, FLOAT32, TEXT, ARRAY, UINT64 = 4, 6, 8, 9, 10
F32, Q8_0 = 0, 8
ALIGNMENT = 32


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A text, or one that says that it has another length."""
    plain = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(plain) if length is None else length) + plain


def value(kind: int, content: Any) -> bytes:
    """A value with its type."""
    letters = {UINT32: "I", FLOAT32: "f", UINT64: "Q"}
    plain = text(content) if kind == TEXT else struct.pack(f"<{letters[kind]}", content)
    return struct.pack("<I", kind) + plain


def array(kind: int, count: int, content: bytes) -> bytes:
    """An array that says that it has so many values."""
    return struct.pack("<IIQ", ARRAY, kind, count) + content


@dataclass
class Tensor:
    """A tensor, its shape the rows first."""

    shape: tuple[int, ...]
    kind: int
    data: bytes
    offset: int | None = None
    dimensions: int | None = None


@dataclass
class Gguf:
    """A file, to be changed before it is written."""

    pairs: list[tuple[bytes, bytes]] = field(default_factory=list)
    tensors: list[tuple[str, Tensor]] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    counts: tuple[int, int] | None = None

    def set(self, key: str, plain: bytes) -> None:
        """Changes the value of a key, or adds it."""
        self.pairs = [pair for pair in self.pairs if pair[0] != text(key)]
        self.pairs.append((text(key), plain))

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return next(one for other, one in self.tensors if other == name)

    def content(self) -> bytes:
        """The bytes of the file."""
        counts = self.counts or (len(self.tensors), len(self.pairs))
        head = self.magic + struct.pack("<IQQ", self.version, *counts)
        head += b"".join(key + plain for key, plain in self.pairs)
        data = b""
        for name, one in self.tensors:
            offset = len(data) if one.offset is None else one.offset
            dimensions = len(one.shape) if one.dimensions is None else one.dimensions
            head += text(name) + struct.pack("<I", dimensions)
            head += struct.pack(f"<{len(one.shape)}Q", *reversed(one.shape))
            head += struct.pack("<IQ", one.kind, offset)
            data += one.data + bytes(-len(one.data) % ALIGNMENT)
        return head + bytes(-len(head) % ALIGNMENT) + data


def llama(hidden: int = 64, inner: int = 96, tokens: int = 96, heads: int = 4) -> Gguf:
    """A Llama of one layer with weights in Q8_0."""
    draw = np.random.default_rng(0)

    def coded(rows: int, columns: int) -> Tensor:
        blocks = np.zeros((rows, columns // 32, 34), np.uint8)
        blocks[..., :2] = np.array([0.01], np.float16).view(np.uint8)
        blocks[..., 2:] = draw.integers(0, 256, (rows, columns // 32, 32), np.uint8)
        return Tensor((rows, columns), Q8_0, blocks.tobytes())

    ones = Tensor((hidden,), F32, np.ones(hidden, np.float32).tobytes())
    shapes = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (hidden, hidden)),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (inner, hidden)),
        "ffn_down": (hidden, inner),
    }
    numbers = {
        "context_length": 64,
        "embedding_length": hidden,
        "block_count": 1,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "vocab_size": tokens,
        "rope.dimension_count": hidden // heads,
    }
    found = Gguf()
    found.set("general.architecture", value(TEXT, "llama"))
    for key, number in numbers.items():
        found.set(f"llama.{key}", value(UINT32, number))
    found.set("llama.attention.layer_norm_rms_epsilon", value(FLOAT32, 1e-6))
    found.set("llama.rope.freq_base", value(FLOAT32, 1e4))
    found.tensors = [
        ("token_embd.weight", coded(tokens, hidden)),
        ("output_norm.weight", ones),
        ("output.weight", coded(tokens, hidden)),
        *((f"blk.0.{name}.weight", coded(*shape)) for name, shape in shapes.items()),
        *((f"blk.0.{name}.weight", ones) for name in ("attn_norm", "ffn_norm")),
    ]
    return found
