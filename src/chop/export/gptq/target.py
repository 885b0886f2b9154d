"""GPTQ target: safetensors folders for vLLM, SGLang and GPTQModel, tested with chop's reader only.

The layout is that of `chop.export.gptq.reader`, in format `gptq`. Weights are integers without zero
points (stored as the middle code), with the same bits and group size in all layers.
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
from chop.export.file_names import float_layers, list_targets
from chop.export.foreign.expressions import EXPRESSION
from chop.export.foreign.loading import load
from chop.export.foreign.stored import WORD, words_packed
from chop.export.gptq.reader import METHOD, READER, WIDTHS
from chop.export.packed_folder import FolderKind, refusals, write_folder
from chop.export.packed_model import get_runner, get_weights
from chop.export.target import Runner, Target
from chop.formats.elements import Fixed

ROW = -1
"""Group size that means a whole row."""
HELD = (
    "Choose one integer format of 2, 3, 4 or 8 bits with a scale per group or row, such as "
    "group_integer:width=4 or mxint:width=8, for all these linear layers, with float inputs; or "
    "keep them in float."
)


@dataclass(frozen=True)
class Scheme:
    """Storage scheme of a weight.

    Attributes:
        bits: bits of a code.
        group_size: inputs that share a scale, or -1 for all.
        format: GPTQModel's name of the format.
    """

    bits: int
    group_size: int
    format: str = METHOD

    def tensors(self, weight: CodedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
        """Returns the tensors by name suffix."""
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
    """Returns the storage scheme of a weight, or the reason why it has none."""
    element = weight.element
    if not isinstance(element, Fixed) or element.code != "twos_complement":
        return "GPTQ does not support its elements and scales"
    if element.width not in WIDTHS:
        return f"its codes have {element.width} bits instead of 2, 3, 4 or 8"
    if weight.rows % WORD or weight.columns % WORD:
        return f"its {weight.columns} inputs and {weight.rows} outputs are not multiples of {WORD}"
    if weight.columns % weight.group:
        return f"{weight.columns} columns are not a multiple of the group size {weight.group}"
    steps = weight.steps
    if bool((steps.half().double() != steps).any()):
        return "its scales are not float16 numbers"
    return Scheme(element.width, weight.group if weight.groups > 1 else ROW)


def _refused(schemes: Mapping[str, Scheme]) -> dict[str, str]:
    """Returns the modules with another scheme than most, and the reasons."""
    if not schemes:
        return {}
    common = Counter(schemes.values()).most_common(1)[0][0]
    others = {path: scheme for path, scheme in schemes.items() if scheme != common}
    return {path: f"it has {x}, but most modules have {common}" for path, x in others.items()}


def quantization_config(model: nn.Module, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Returns the `quantization_config` of a model.

    Args:
        model: model with packed layers.
        schemes: identical schemes by path of a packed layer.
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
    patterns = (
        x.removeprefix(EXPRESSION) if x.startswith(EXPRESSION) else f"{re.escape(x)}$"
        for x in floats
    )
    skipped: dict[str, Any] = {f"-:{pattern}": {} for pattern in patterns}
    return settings | ({"dynamic": skipped} if skipped else {})


def _unpacked(model: Any, schemes: Mapping[str, Scheme]) -> tuple[str | None, list[str]]:
    """Returns the unpacked head, which is float by default, and other float layers."""
    embeddings = model.get_output_embeddings()
    head = next((path for path, x in model.named_modules() if x is embeddings), None)
    return head, list_targets(path for path in float_layers(model, schemes) if path != head)


def _notes(schemes: Mapping[str, Scheme], model: Any) -> list[str]:
    """Returns notes for users of the folder."""
    head, floats = _unpacked(model, schemes)
    notes = [f"engines must skip the float layers {', '.join(floats)}"] if floats else []
    if head in schemes:
        notes.append("the head is packed, which vLLM and GPTQModel support; other engines may not")
    return notes


def read(path: Path) -> Runner:
    """Loads the model of a folder with chop, because transformers needs GPTQModel and a GPU."""
    return get_runner(load(READER, path))


KIND = FolderKind(METHOD, HELD, get_scheme, quantization_config, _notes, _refused)

write = partial(write_folder, KIND)

TARGET = Target(
    name=METHOD,
    engines="vLLM, SGLang, GPTQModel",
    takes="weights in mxint, group_integer, scale_integer, integer of 2, 3, 4 or 8 bits",
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
