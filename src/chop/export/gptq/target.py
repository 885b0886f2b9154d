"""GPTQ: folders of safetensors, made for vLLM, SGLang and GPTQModel, and read back by chop alone.

The layout is that of `chop.export.gptq.reader`, in format `gptq`: integers without zero points,
which are those in the middle of the codes, with one number of bits and one size of groups for all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.export.coded import CodedWeight
from chop.export.foreign.loading import load
from chop.export.foreign.stored import WORD, words_packed
from chop.export.gptq.reader import METHOD, READER, WIDTHS
from chop.export.packed_folder import FolderKind, float_layers, refusals, write_folder
from chop.export.packed_model import get_runner, get_weights
from chop.export.target import Runner, Target
from chop.formats.elements import Fixed

ROW = -1
"""The size of a group that is a row."""
HELD = (
    "It holds linear layers in integers of 2, 3, 4 or 8 bits with a scale for a group of a row or "
    "for a row (group_integer:width=4, mxint:width=8), all in one format, with float inputs; "
    "choose one for the modules above, or leave them float."
)


@dataclass(frozen=True)
class Scheme:
    """How a weight is stored.

    Attributes:
        bits: of a code.
        group_size: inputs that share a scale, or -1 for all.
        format: as GPTQModel calls it.
    """

    bits: int
    group_size: int
    format: str = METHOD

    def tensors(self, weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
        """By the end of their names."""
        codes = weight.integers.long() + 2 ** (self.bits - 1)
        scales = weight.steps.expand(weight.rows, -1).t().half().contiguous()
        # Format gptq stores zero points less one.
        zeros = torch.full((len(scales), weight.rows), 2 ** (self.bits - 1) - 1)
        return {
            "qweight": words_packed(codes, self.bits).t().contiguous(),
            "qzeros": words_packed(zeros, self.bits),
            "scales": scales,
            "g_idx": torch.arange(weight.columns, dtype=torch.int32) // weight.group,
        }

    def __str__(self) -> str:
        of = "rows" if self.group_size == ROW else f"groups of {self.group_size}"
        return f"{self.bits} bits in {of}"


def get_scheme(weight: CodedWeight, dtype: torch.dtype) -> Scheme | str:
    """Returns how a weight is stored, or the reason that it cannot be."""
    element = weight.element
    if not isinstance(element, Fixed) or element.code != "twos_complement":
        return "GPTQ has no layout for its elements and scales"
    if element.width not in WIDTHS:
        return f"its codes have {element.width} bits, and not 2, 3, 4 or 8"
    if weight.rows % WORD or weight.columns % WORD:
        return f"it has {weight.columns} inputs and {weight.rows} outputs, no multiples of {WORD}"
    if weight.columns % weight.group:
        return f"{weight.columns} columns are no multiple of its groups of {weight.group}"
    steps = weight.steps
    if bool((steps.half().double() != steps).any()):
        return "its scales are no numbers of float16"
    return Scheme(element.width, weight.group if weight.groups > 1 else ROW)


def _refused(schemes: Mapping[str, Scheme]) -> dict[str, str]:
    """Modules in another scheme than most."""
    if not schemes:
        return {}
    common = Counter(schemes.values()).most_common(1)[0][0]
    others = {path: scheme for path, scheme in schemes.items() if scheme != common}
    return {path: f"it has {x}, and others {common}" for path, x in others.items()}


def quantization_config(model: nn.Module, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """What `config.json` says of modules.

    Args:
        model: with packed layers.
        schemes: by path of a packed layer, all the same.
    """
    scheme = next(iter(schemes.values()))
    head, floats = _unpacked(model, schemes)
    settings = {
        "quant_method": METHOD,
        "bits": scheme.bits,
        "group_size": scheme.group_size,
        "desc_act": False,
        "sym": True,
        "lm_head": head in schemes,
        "checkpoint_format": scheme.format,
        "pack_dtype": "int32",
    }
    skipped: dict[str, Any] = {f"-:{re.escape(path)}$": {} for path in floats}
    return settings | ({"dynamic": skipped} if skipped else {})


def _unpacked(model: Any, schemes: Mapping[str, Scheme]) -> tuple[str | None, list[str]]:
    """The head, which is float unless it is said to be packed, and other layers that stay float."""
    embeddings = model.get_output_embeddings()
    head = next((path for path, x in model.named_modules() if x is embeddings), None)
    return head, [path for path in float_layers(model, schemes) if path != head]


def _notes(schemes: Mapping[str, Scheme], model: Any) -> list[str]:
    """What a reader of the folder would not expect."""
    head, floats = _unpacked(model, schemes)
    notes = [f"engines have to skip layers that stay float: {', '.join(floats)}"] if floats else []
    if head in schemes:
        notes.append("the head is packed, which vLLM and GPTQModel read and others may not")
    return notes


def read(path: Path) -> Runner:
    """The model of a folder, as chop reads it: transformers needs GPTQModel and a GPU for it."""
    return get_runner(load(READER, path))


KIND = FolderKind(METHOD, HELD, get_scheme, quantization_config, _notes, _refused)

write = partial(write_folder, KIND)

TARGET = Target(
    name=METHOD,
    engines="vLLM, SGLang, GPTQModel",
    takes="mxint, group_integer, scale_integer, integer of 2, 3, 4 or 8 bits in weights",
    library="chop",
    extra="",
    suffix="",
    write=write,
    read=read,
    refusals=partial(refusals, KIND),
    formats=(
        *(f"group_integer:width={bits}" for bits in WIDTHS),
        *("mxint:width=4", "mxint:width=8"),
    ),
    weights=lambda path: get_weights(load(READER, path)),
    is_timed=False,
)
