"""Changes of files of GGUF that make them ask for anything."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.export.gguf import gguf_bytes as g

BIG = 2**40


def key(name: str, kind: int, content: Any) -> Callable[[g.Gguf], Any]:
    return lambda file: file.set(name, g.value(kind, content))


def place(name: str, **entries: Any) -> Callable[[g.Gguf], Any]:
    def change(file: g.Gguf) -> None:
        for entry, x in entries.items():
            setattr(file.tensor(name), entry, x)

    return change


def renamed(name: str, other: str) -> Callable[[g.Gguf], None]:
    def change(file: g.Gguf) -> None:
        file.tensors = [(other if x == name else x, one) for x, one in file.tensors]

    return change


def on_one_another(file: g.Gguf) -> None:
    """Many large tensors in the same bytes."""
    data = bytes(2**22)
    file.tensors += [
        (f"x{i}", g.Tensor((2**20,), g.F32, data if not i else b"", offset=0)) for i in range(2000)
    ]


def nan_scale(file: g.Gguf) -> None:
    one = file.tensor("blk.0.ffn_up.weight")
    one.data = struct.pack("<e", float("nan")) + one.data[2:]


UP = "blk.0.ffn_up.weight"


def nvfp4(scale: g.Tensor | None, of_block: int = 56) -> Callable[[g.Gguf], None]:
    """A tensor with two levels of scales."""

    def change(file: g.Gguf) -> None:
        one, blocks = file.tensor(UP), np.zeros((96, 1, 36), np.uint8)
        blocks[..., :4] = of_block
        one.kind, one.data = 40, blocks.tobytes()
        if scale is not None:
            file.tensors.append(("blk.0.ffn_up.scale", scale))

    return change


def floats(*values: float) -> g.Tensor:
    return g.Tensor((len(values),), g.F32, struct.pack(f"<{len(values)}f", *values))


FILES: dict[str, Callable[[g.Gguf], Any]] = {
    "magic": lambda file: setattr(file, "magic", b"PK\x03\x04"),
    "version-99": lambda file: setattr(file, "version", 99),
    "version-1": lambda file: setattr(file, "version", 1),
    "big-endian": lambda file: setattr(file, "version", 3 << 24),
    "tensors": lambda file: setattr(file, "counts", (2**63, len(file.pairs))),
    "pairs": lambda file: setattr(file, "counts", (1, 2**63)),
    "long-key": lambda file: file.pairs.append((g.text("a", 2**60), b"")),
    "long-text": lambda file: file.set("a", struct.pack("<I", g.TEXT) + g.text("a", 2**60)),
    "long-array": lambda file: file.set("a", g.array(0, 2**60, b"")),
    "long-texts": lambda file: file.set("a", g.array(g.TEXT, 2**60, b"")),
    "texts-short": lambda file: file.set("a", g.array(g.TEXT, 2**16, bytes(2**10))),
    "arrays": lambda file: file.set("a", g.array(g.ARRAY, 2**20, g.array(g.ARRAY, 1, b"") * 100)),
    "array-of-nothing": lambda file: file.set("a", g.array(77, 2**60, b"")),
    "type": lambda file: file.set("a", struct.pack("<I", 77)),
    "key-twice": lambda file: file.pairs.append(file.pairs[0]),
    "key-bytes": lambda file: file.pairs.append((g.text(b"\xff\xfe"), g.value(g.UINT32, 1))),
    "tensor-twice": lambda file: file.tensors.append(file.tensors[0]),
    "dimensions": place(UP, dimensions=2**31),
    "no-dimensions": place(UP, shape=(), dimensions=0),
    "huge-shape": place(UP, shape=(BIG, BIG)),
    "zero-shape": place(UP, shape=(0, 64)),
    "ragged": place(UP, shape=(96, 33)),
    "turned": place(UP, shape=(64, 96)),
    "kind": place(UP, kind=10**6),
    "kind-small": place(UP, kind=24, data=bytes(96 * 64)),
    "offset": place(UP, offset=2**62),
    "on-one-another": on_one_another,
    "alignment-0": key("general.alignment", g.UINT32, 0),
    "alignment-big": key("general.alignment", g.UINT32, 2**31),
    "alignment-text": key("general.alignment", g.TEXT, "32"),
    "architecture": key("general.architecture", g.TEXT, "../../x"),
    "architecture-number": key("general.architecture", g.UINT32, 5),
    "architecture-gpt2": key("general.architecture", g.TEXT, "gpt2"),
    "layers": key("llama.block_count", g.UINT32, 10**9),
    "layers-of-no-tensors": key("llama.block_count", g.UINT32, 5000),
    "split": key("split.count", g.UINT32, 2),
    "heads-by-layer": lambda file: file.set(
        "llama.attention.head_count_kv", g.array(g.UINT32, 1, bytes([4, 0, 0, 0]))
    ),
    "two-layers": key("llama.block_count", g.UINT32, 2),
    "no-layers": key("llama.block_count", g.UINT32, 0),
    "hidden": key("llama.embedding_length", g.UINT64, BIG),
    "hidden-64-bits": key("llama.embedding_length", g.UINT64, 2**64 - 1),
    "hidden-text": key("llama.embedding_length", g.TEXT, "64"),
    "hidden-float": key("llama.embedding_length", g.FLOAT32, 64.5),
    "inner": key("llama.feed_forward_length", g.UINT32, 2**26),
    "tokens": key("llama.vocab_size", g.UINT32, 2**31),
    "heads-0": key("llama.attention.head_count", g.UINT32, 0),
    "heads-5": key("llama.attention.head_count", g.UINT32, 5),
    "rope": key("llama.rope.scaling.type", g.TEXT, "longrope"),
    "rope-linear": key("llama.rope.scaling.type", g.TEXT, "linear"),
    "rope-unread": key("llama.rope.scaling.yarn_log_multiplier", g.FLOAT32, 1.0),
    "rope-zero": key("llama.rope.scale_linear", g.FLOAT32, 0.0),
    "rope-theta-text": key("llama.rope.freq_base", g.TEXT, "x"),
    "rope-theta-nan": key("llama.rope.freq_base", g.FLOAT32, float("nan")),
    "rope-deep": key("chop.rope_parameters", g.TEXT, '{"a":' * 50_000),
    "rope-list": key("chop.rope_parameters", g.TEXT, "[1]"),
    "rope-unknown": key("chop.rope_parameters", g.TEXT, '{"rope_type": "x"}'),
    "divisors": lambda file: file.tensors.append(
        ("rope_freqs.weight", g.Tensor((8,), g.F32, bytes(32)))
    ),
    "no-place": renamed(UP, "blk.0.ffn_upper.weight"),
    "spare": lambda file: file.tensors.append(("x", g.Tensor((2,), g.F32, bytes(8)))),
    "layer-9": lambda file: file.tensors.append(("blk.9.ffn_up.weight", file.tensor(UP))),
    "nan-scale": nan_scale,
    "nan-values": place(UP, kind=20, data=np.full((96, 2, 18), 255, np.uint8).tobytes()),
    "q5-nan": place(UP, kind=6, data=np.full((96, 2, 22), 255, np.uint8).tobytes()),
    "q5-1-nan": place(UP, kind=7, data=np.full((96, 2, 24), 255, np.uint8).tobytes()),
    "q3-k-ragged": place(UP, kind=11, data=np.zeros((96, 110), np.uint8).tobytes()),
    "nvfp4-nan": nvfp4(None, 127),
    "nvfp4-scale-nan": nvfp4(floats(float("nan"))),
    "nvfp4-scale-zero": nvfp4(floats(0.0)),
    "nvfp4-scales": nvfp4(floats(1.0, 2.0)),
    "nvfp4-scale-q8": nvfp4(g.Tensor((32,), g.Q8_0, bytes(34))),
    "scale-of-q8": lambda file: file.tensors.append(("blk.0.ffn_up.scale", floats(1.0))),
    "gemma-none": key("general.architecture", g.TEXT, "gemma2"),
    "mxfp4-nan": place(UP, kind=39, data=np.full((96, 2, 17), 255, np.uint8).tobytes()),
}
