"""Decoders as other libraries round them, on rows that are given.

Tried with auto-round 0.16.1 and llm-compressor 0.14.0.1. They need packages of their own, in a
folder that `PYTHONPATH` names: `pip install --no-deps --target FOLDER auto-round accelerate
py-cpuinfo llmcompressor loguru`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]
"""Of linear layers, by path."""


@dataclass(frozen=True)
class Integers:
    """Symmetric integers with a scale of 16 bits for each group of a row.

    Attributes:
        width: bits of each.
        group_size: weights of a group.
    """

    width: int
    group_size: int

    @property
    def bits(self) -> float:
        """Stored, of a weight."""
        return self.width + 16 / self.group_size

    def __str__(self) -> str:
        return f"{self.width} bits, groups of {self.group_size}"


@dataclass(frozen=True)
class Learning:
    """What a peer learns from.

    Attributes:
        rows: (rows, tokens), int64.
        steps: for each block.
        batch_size: rows of a step.
    """

    rows: Tensor
    steps: int
    batch_size: int


@dataclass(frozen=True)
class RoundingPeer:
    """Another library's rounding of a decoder.

    Attributes:
        needs: what it imports.
        round: a decoder of its own, which it may change, its tokenizer, the grid and the rows, to
            the rounded weights.
    """

    needs: tuple[str, ...]
    round: Callable[[Any, Any, Integers, Learning], Weights]

    @property
    def missing(self) -> list[str]:
        """What is not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def _weights(model: nn.Module) -> Weights:
    layers = ((path, x) for path, x in model.named_modules() if isinstance(x, nn.Linear))
    return {path: layer.weight.detach() for path, layer in layers}


def _auto_round(
    model: Any, tokenizer: Any, grid: Integers, learning: Learning, **settings: bool
) -> Weights:
    from auto_round import AutoRound

    rows = [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in learning.rows]
    tuned = AutoRound(
        model,
        tokenizer,
        bits=grid.width,
        group_size=grid.group_size,
        sym=True,
        iters=learning.steps,
        batch_size=learning.batch_size,
        nsamples=len(rows),
        seqlen=learning.rows.shape[1],
        dataset=torch.utils.data.DataLoader(rows, batch_size=learning.batch_size),
        device_map="cpu",
        **{"enable_torch_compile": False, **settings},
    ).quantize()
    return _weights(tuned[0] if isinstance(tuned, tuple) else tuned)


def _llm_compressor(model: Any, tokenizer: Any, grid: Integers, learning: Learning) -> Weights:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier

    weights = QuantizationArgs(
        num_bits=grid.width, group_size=grid.group_size, strategy="group", symmetric=True
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    rows = {
        "input_ids": learning.rows.tolist(),
        "attention_mask": torch.ones_like(learning.rows).tolist(),
    }
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=Dataset.from_dict(rows),
        recipe=GPTQModifier(config_groups={"all": scheme}, ignore=["lm_head"]),
        num_calibration_samples=len(learning.rows),
        max_seq_length=learning.rows.shape[1],
    )
    return _weights(model)


AUTO_ROUND = ("auto_round", "accelerate", "cpuinfo")
ROUNDING_PEERS = {
    "auto-round": RoundingPeer(AUTO_ROUND, _auto_round),
    "auto-round, float32": RoundingPeer(AUTO_ROUND, partial(_auto_round, amp=False)),
    "auto-round, compiled": RoundingPeer(
        AUTO_ROUND, partial(_auto_round, amp=False, enable_torch_compile=True)
    ),
    "auto-round, extended": RoundingPeer(
        AUTO_ROUND, partial(_auto_round, amp=False, enable_alg_ext=True)
    ),
    "llm-compressor GPTQ": RoundingPeer(("llmcompressor", "loguru"), _llm_compressor),
}
