"""Weight memory of a packed model: theoretical, by layers, and measured."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.base.files.temporary import scratch_folder
from chop.bench.peak_memory import peak_bytes, resident_bytes
from chop.bench.record import format_bytes
from chop.bench.subprocess import in_subprocess
from chop.formats import Float, NumberFormat, QuantSpec
from chop.ir.graph import MaseGraph, dummy_inputs
from chop.ir.parameters import count_stored_parameters
from chop.nn.quantized import QuantLinear
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    pack_transform_pass,
    quantize_transform_pass,
)
from chop.private.modules import own_parameters
from chop.studies.decoding import FORMATS

FLOAT_BITS, SCALE_BITS = 32, 8
COUNTED = ("elements", "float_bytes", "bytes")
TOKENS = 32
"""Tokens of the test text, small compared with the weights."""
NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
DEMO, SMALL = (512, 2048, 6, 8, 8192), (32, 64, 1, 2, 500)
WARM_UP = "warm-up"


@dataclass(frozen=True)
class MemoryRow:
    """Memory of a model with linear weights in one format.

    Attributes:
        format: "float" or one of `FORMATS`.
        bits: theoretical bits of a packed weight, including its share of the scale.
        predicted_bytes: predicted size of all parameters, from the layers and the formats' bits.
        file_bytes: size of the saved tensors.
        loaded_bytes: growth of a new process's resident set when it loads the file, or memory from
            the GPU's allocator.
        called_bytes: peak during a call with a short text, measured in the same way.
    """

    format: str
    bits: float
    predicted_bytes: int
    file_bytes: int
    loaded_bytes: int | None
    called_bytes: int | None


@dataclass(frozen=True)
class KindRow:
    """Memory of one kind of parameters, as float and packed.

    Attributes:
        kind: kind of layer and parameter.
        elements: number of elements.
        float_bytes: size in float32.
        bytes: size in the format.
    """

    kind: str
    elements: int
    float_bytes: int
    bytes: int

    def formatted(self) -> dict[str, Any]:
        """Formats the row for a table."""
        return {
            "parameters": self.kind,
            "numbers": f"{self.elements:,}",
            "float": format_bytes(self.float_bytes),
            "packed": format_bytes(self.bytes),
            "saved": f"{1 - self.bytes / self.float_bytes:.1%}",
        }


def format_memory(rows: Sequence[MemoryRow]) -> list[dict[str, Any]]:
    """Formats memory measurements with their savings relative to the float model."""
    first = rows[0]

    def change(own: int | None, base: int | None) -> str | None:
        if own is None or not base or own == base:
            return format_bytes(own)
        share = 1 - own / base
        percent = f"{share:.1%} saved" if share > 0 else f"{-share:.1%} more"
        return f"{format_bytes(own)} ({percent})"

    return [
        {
            "weights": row.format,
            "theory, per weight": _formula(row),
            "predicted before loading": change(row.predicted_bytes, first.predicted_bytes),
            "in the file": change(row.file_bytes, first.file_bytes),
            "in memory": change(row.loaded_bytes, first.loaded_bytes),
            "peak in a call": change(row.called_bytes, first.called_bytes),
        }
        for row in rows
    ]


def _formula(row: MemoryRow) -> str:
    """Formats the savings 1 - (w + 8 / block) / 32 of codes of w bits with 8-bit scales."""
    if row.format not in FORMATS:
        return f"{FLOAT_BITS} bits"
    number_format = FORMATS[row.format]
    bits = f"{number_format.width} + {SCALE_BITS}/{number_format.block_size}"
    saved = 1 - row.bits / FLOAT_BITS
    return f"1 - ({bits})/{FLOAT_BITS} = {saved:.1%} saved, {row.bits:.4g} bits"


def get_total(kinds: Sequence[KindRow]) -> KindRow:
    """Returns the total of all kinds, whose savings depend on the share of packed weights."""
    sums = (sum(getattr(kind, name) for kind in kinds) for name in COUNTED)
    packed = kinds[0].float_bytes / sum(kind.float_bytes for kind in kinds)
    return KindRow(f"all ({packed:.1%} of the bytes are packed)", *sums)


def demo_model(sizes: tuple[int, ...] = DEMO) -> nn.Module:
    """Returns a random BERT with 6 layers of width 512 and 8,192 tokens, 24 million weights."""
    from transformers import BertConfig, BertForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fields: dict[str, Any] = dict(zip(NAMES, sizes, strict=True))
        model: nn.Module = BertForSequenceClassification(BertConfig(**fields))
        return model.eval()


def predicted(model: nn.Module, number_format: NumberFormat) -> list[KindRow]:
    """Predicts the size of parameters with linear weights in a format.

    Nothing is computed, so models on the "meta" device are supported.

    Args:
        model: model. Shared parameters count once.
        number_format: format of linear weights. Other parameters stay unchanged.
    Returns: rows by kind of parameters: linear weights first, then the rest by module class.
    """
    owners = {id(p): m for m in model.modules() for p in m.parameters(recurse=False)}
    taken = count_stored_parameters(_quantized(model, number_format))
    kinds: dict[str, list[tuple[int, int, int]]] = {}
    for stored in taken:
        is_weight = stored.operand == "weight" and not stored.format.is_identity
        owner = type(owners[id(stored.value)]).__name__
        kind = "Linear weights" if is_weight else f"{owner}, float"
        elements, size = stored.value.numel(), stored.value.nbytes
        kinds.setdefault(kind, []).append((elements, size, round(stored.bits * elements / 8)))
    rows = [KindRow(kind, *map(sum, zip(*sizes, strict=True))) for kind, sizes in kinds.items()]
    return sorted(rows, key=lambda row: (row.kind != "Linear weights", -row.bytes))


def _quantized(model: nn.Module, number_format: NumberFormat) -> nn.Module:
    """Returns a copy with the same parameters and quantized linear weights."""
    root = nn.Module()
    for place, module in enumerate(m for m in model.modules() if own_parameters(m)):
        if type(module) is nn.Linear:
            twin: nn.Module = QuantLinear.from_float(module, QuantSpec(weight=number_format))
        else:
            twin = nn.Module()
            own_parameters(twin).update(own_parameters(module))
        root.add_module(str(place), twin)
    return root


def measure_memory(
    model: nn.Module, names: Sequence[str], device: str
) -> tuple[list[MemoryRow], list[KindRow]]:
    """Packs, saves and loads a model in each format, and measures its memory.

    Args:
        model: Hugging Face model, or a model whose inputs follow from its first layer.
        names: names from `FORMATS`.
        device: "cuda" measures the GPU allocator, others the resident set of a new process.
    Returns: a row for float and for each format, and savings of the first format by kind.
    """
    from safetensors.torch import save_file

    mg = _graph(model)
    inputs = {n: x for n, x in dummy_inputs(model, None, 1, TOKENS).items() if n in _names(mg)}
    kinds = {name: predicted(model, FORMATS[name]) for name in names}
    rows = []
    with scratch_folder("memory") as folder:
        save_file({name: x.contiguous() for name, x in inputs.items()}, folder / "inputs")
        _packed(_graph(demo_model(SMALL)), names[0]).export(folder / WARM_UP)
        for name in ("float", *names):
            _packed(mg, name).export(folder / name)
            measured = _measured(folder, name, device)
            chosen = kinds.get(name)
            bits = FORMATS[name].bits() if chosen else FLOAT_BITS
            by_kind = kinds[names[0]]
            size = sum(k.bytes for k in chosen) if chosen else sum(k.float_bytes for k in by_kind)
            file_bytes = (folder / name).with_suffix(".pt").stat().st_size
            rows.append(MemoryRow(name, bits, size, file_bytes, *measured))
    return rows, kinds[names[0]]


def _graph(model: nn.Module) -> MaseGraph:
    mg, _ = init_metadata_analysis_pass(MaseGraph(model))
    return add_common_metadata_analysis_pass(mg)[0]


def _names(mg: MaseGraph) -> set[str]:
    return {node.name for node in mg.nodes if node.op == "placeholder"}


def _packed(mg: MaseGraph, name: str) -> MaseGraph:
    if name not in FORMATS:
        return mg
    config = {"config": {"weight": FORMATS[name]}}
    quantized, _ = quantize_transform_pass(mg, {"by": "type", "linear": config})
    return pack_transform_pass(quantized, {"silent": True})[0]


def _measured(folder: Path, name: str, device: str) -> tuple[int | None, int | None]:
    if torch.device(device).type == "cuda":
        return tuple(_allocated_by(str(folder), name, device))  # type: ignore[return-value]
    return tuple(in_subprocess(resident_by, str(folder), name))


def resident_by(folder: str, name: str) -> list[int | None]:
    """Returns the growth of this process's resident set after loading, and its peak in a call."""
    from safetensors.torch import load_file

    inputs = load_file(Path(folder) / "inputs")
    _warm_up(Path(folder))
    before = resident_bytes()
    mg = MaseGraph.from_checkpoint(Path(folder) / name)
    gc.collect()
    loaded = resident_bytes()
    with torch.inference_mode():
        extra = peak_bytes(lambda: mg.model(**inputs), torch.device("cpu"))
    if before is None or loaded is None:
        return [None, None]
    return [loaded - before, None if extra is None else loaded + extra - before]


def _allocated_by(folder: str, name: str, device: str) -> list[int | None]:
    """Returns the GPU memory allocated for a checkpoint, and its peak in a call."""
    from safetensors.torch import load_file

    inputs = {key: x.to(device) for key, x in load_file(Path(folder) / "inputs").items()}
    before = torch.cuda.memory_allocated(device)
    mg = MaseGraph.from_checkpoint(Path(folder) / name)
    mg.model.to(device)
    loaded = torch.cuda.memory_allocated(device) - before
    with torch.inference_mode():
        extra = peak_bytes(lambda: mg.model(**inputs), torch.device(device))
    return [loaded, None if extra is None else loaded + extra]


def _warm_up(folder: Path) -> None:
    """Loads modules, libraries and kernels that any packed model needs."""
    small = MaseGraph.from_checkpoint(folder / WARM_UP)
    with torch.inference_mode():
        small.model(**{name: torch.ones(1, TOKENS, dtype=torch.long) for name in _names(small)})
    x, number_format = torch.ones(512, 512), FORMATS["mxint8"]
    packed = number_format.encode(x)
    parts = (packed.codes, packed.scales, None, [512, 512], number_format.key)
    torch.ops.chop.decode(*parts, x.dtype)
    torch.ops.chop.packed_linear(x[:TOKENS], Float().key, *parts, None, False)
    nn.functional.linear(x, x)
