"""Weights as HQQ and torchao round them, at the storage of `group_integer` in groups of 32.

Tried with hqq 0.2.8 and torchao 0.18. Either needs torch alone; hqq also imports termcolor.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Peer:
    """Another library's rounding.

    Attributes:
        name: in tables.
        needs: what it imports.
        overhead: bits that scales and zero points add to each weight.
        settings: as a table says them.
        round: a matrix (outputs, inputs) and a width, to the values that its codes stand for.
    """

    name: str
    needs: tuple[str, ...]
    overhead: float
    settings: str
    round: Callable[[Tensor, int], Tensor]

    @property
    def missing(self) -> str | None:
        """What a row says in place of numbers where a package is not there."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"not installed: pip install {' '.join(self.needs)}" if absent else None


def _hqq(weight: Tensor, width: int) -> Tensor:
    from hqq.core.quantize import Quantizer

    settings = {"group_size": 64, "axis": 1, "compute_dtype": torch.float32, "device": "cpu"}
    codes, meta = Quantizer.quantize(weight, nbits=width, **settings)
    for name in ("scale", "zero"):  # stored in 16 bits each
        meta[name] = meta[name].half().float()
    return Quantizer.dequantize(codes, meta).reshape(weight.shape)


def _torchao(weight: Tensor, width: int) -> Tensor:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    layer = nn.Linear(*weight.shape[::-1], bias=False)
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    config = IntxWeightOnlyConfig(
        weight_dtype=vars(torch)[f"int{width}"],
        granularity=PerGroup(32),
        scale_dtype=torch.bfloat16,
    )
    quantize_(layer, config)
    return layer.weight.dequantize().float()


PEERS = {
    peer.name: peer
    for peer in (
        Peer("HQQ", ("hqq", "termcolor"), 32 / 64, "groups of 64, scale and zero point", _hqq),
        Peer("torchao", ("torchao",), 16 / 32, "groups of 32, scale", _torchao),
    )
}
