"""Token store of keys or values: older tokens as codes, the first and newest ones as floats.

Shapes: B texts, H heads, T tokens, D head dimension; N blocks of G tokens each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Encoded, NumberFormat
from chop.formats.groups import Blocks
from chop.formats.reference import cast
from chop.formats.scaling import StaticScale
from chop.formats.statistic import Threshold
from chop.kernels.hadamard import hadamard_transform
from chop.nn.packed.encoding import encode_in_parts

Per = Literal["channel", "token"]
"""Scale granularity: a group spans the other dimension."""
MIN_BLOCK = 32
"""Minimum number of tokens encoded at once; encoding fewer takes as long."""


class Codes(NamedTuple):
    """Encoded blocks of tokens, each independent of the others.

    Attributes:
        codes: uint8 (B, N, bytes).
        scales: float32 or uint8 (B, N, count), or None.
        tensor_scales: float32 (B, N, 1), or None.
    """

    codes: Tensor
    scales: Tensor | None = None
    tensor_scales: Tensor | None = None

    def map(self, function: Callable[..., Tensor], *others: Codes) -> Codes:
        """Applies a function to each tensor."""
        together = zip(self, *others, strict=True)
        return Codes(*(None if x[0] is None else function(*x) for x in together))  # type: ignore[arg-type]

    @property
    def blocks(self) -> int:
        """Number of blocks N."""
        return self.codes.size(1)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(x.nbytes for x in self if x is not None)


@dataclass(frozen=True)
class StoreRule:
    """Storage rule of tokens.

    Attributes:
        number_format: format of older tokens; the identity format stores all unchanged.
        per: `channel` groups the tokens of a channel; `token` groups the channels of a token.
        residual_length: minimum number of newest tokens stored unchanged.
        block: G, number of tokens that leave that window together.
        sink_length: number of first tokens stored unchanged.
        is_rotated: round the numbers of each head after a Hadamard transform, of the largest power
            of two that divides them. Decoding inverts it.

    Raises:
        ConfigError: if the format needs calibration.
    """

    number_format: NumberFormat
    per: Per
    residual_length: int
    block: int
    sink_length: int = 0
    is_rotated: bool = False

    def __post_init__(self) -> None:
        label = self.number_format.label
        if not self.number_format.is_fitted:
            raise ConfigError(
                f"cache format {label}: it is calibrated on samples, and a new cache has no "
                "samples; specify its fields as numbers, or use group_integer, which scales groups."
            )
        layout = self.number_format.layout()
        scaling = None if layout is None else layout.scaling
        if isinstance(scaling, StaticScale) and scaling.spans_tensor:
            raise ConfigError(
                f"cache format {label}: its scales fit a tensor of one size, and a cache grows; "
                "specify one scale, or none."
            )

    def shape(self, heads: int, size: int) -> tuple[int, int, int]:
        """Returns the shape of a block in the layout for encoding."""
        return (heads, size, self.block) if self.per == "channel" else (heads, self.block, size)

    def swap_layout(self, blocks: Tensor) -> Tensor:
        """Converts blocks (..., G, D) to the layout for encoding and back."""
        return blocks.transpose(-1, -2) if self.per == "channel" else blocks

    def encode(self, tokens: Tensor) -> Codes:
        """Encodes tokens.

        Args:
            tokens: (B, H, N G, D), floating; rounded as float32 or float64 numbers.
        """
        texts, heads, count, size = tokens.shape
        exact = self._rotated(tokens.to(_rounding_dtype(tokens.dtype)))
        parts = exact.view(texts, heads, count // self.block, self.block, size).transpose(1, 2)
        blocks = self.swap_layout(parts).flatten(0, 1).contiguous()
        encoded = (
            [encode_in_parts(self.number_format, blocks)]
            if _is_separable(self.number_format, tuple(blocks.shape))
            else [self.number_format.encode(block) for block in blocks]
        )
        lead = (texts, count // self.block)
        stored = ([x.codes for x in encoded], [x.scales for x in encoded])
        return Codes(*(_stacked(x, lead) for x in (*stored, [x.tensor_scale for x in encoded])))  # type: ignore[arg-type]

    def decode(self, codes: Codes, heads: int, size: int, dtype: torch.dtype) -> Tensor:
        """Decodes tokens (B, H, N, G, D) in the dtype in which they were rounded.

        Args:
            codes: from `encode`.
            heads: H.
            size: D.
            dtype: dtype of the tokens before encoding.
        """
        texts, count = codes.codes.shape[:2]
        shape, key, exact = self.shape(heads, size), self.number_format.key, _rounding_dtype(dtype)
        if _is_separable(self.number_format, (texts * count, *shape)):
            flat = codes.map(lambda x: x.reshape(-1))
            y = torch.ops.chop.decode(*flat, [texts * count, *shape], key, exact)
        else:
            y = torch.stack([self._decode(codes, i, shape, exact) for i in range(texts * count)])
        return self._rotated(self.swap_layout(y.view(texts, count, *shape)).transpose(1, 2))

    def _rotated(self, tokens: Tensor) -> Tensor:
        """Multiplies tokens (..., D) by a Hadamard matrix that is its own inverse."""
        size = tokens.size(-1)
        return hadamard_transform(tokens, size & -size) if self.is_rotated else tokens

    def _decode(self, codes: Codes, index: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        block = codes.map(lambda x: x.flatten(0, 1)[index])
        factor = None if block.tensor_scales is None else block.tensor_scales.view(())
        stored = Encoded(block.codes, torch.Size(shape), dtype, block.scales, factor)
        return self.number_format.decode(stored)


@functools.lru_cache(maxsize=1024)
def _is_separable(number_format: NumberFormat, shape: tuple[int, ...]) -> bool:
    """Returns whether blocks along the first axis are encoded independently.

    The result is cached, since each layer and token asks for it.
    """
    layout = number_format.layout()
    if layout is None or isinstance(layout.element.threshold, Threshold):
        return False
    if not number_format.is_row_separable(shape):
        return False
    if layout.scaling is None:
        return True
    # The first axis counts as channels: heads in one block, blocks in several.
    separate_count = shape[0] * layout.groups.count(shape[1:])
    return not layout.scaling.spans_tensor and layout.groups.count(shape) == separate_count


def get_block(number_format: NumberFormat, per: Per) -> int:
    """Returns the block size: whole groups, at least `MIN_BLOCK` tokens; 1 without rounding."""
    if number_format.is_identity or not number_format.is_fitted:
        return 1
    layout = number_format.layout()
    groups = None if layout is None or per == "token" else layout.groups
    group = groups.sizes[-1] if isinstance(groups, Blocks) else 1
    return group * -(-MIN_BLOCK // group)


class TokenStore:
    """Keys or values of one layer: first tokens, codes, and newest tokens.

    Args:
        rule: storage rule.
    """

    def __init__(self, rule: StoreRule) -> None:
        self.rule = rule
        self.sinks: Tensor | None = None
        self.codes: Codes | None = None
        self.window: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of stored tokens."""
        return self._coded_length + sum(x.size(-2) for x in self._unrounded)

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, scales and unrounded tokens."""
        code_bytes = 0 if self.codes is None else self.codes.size_bytes
        return code_bytes + sum(x.nbytes for x in self._unrounded)

    @property
    def float_bytes(self) -> int:
        """Bytes that all tokens would take as floats."""
        if self.window is None:
            return 0
        texts, heads, _, size = self.window.shape
        return texts * heads * self.length * size * self.window.itemsize

    def append(self, new: Tensor) -> Tensor:
        """Stores new tokens; returns the earlier ones as stored, followed by the new ones.

        Args:
            new: (B, H, new tokens, D). Stored tokens have no gradient.
        Returns: (B, H, T, D).
        """
        if self.window is None or self.sinks is None:
            self.window = self.sinks = new[:, :, :0].detach().clone()
        newest = torch.cat((self.window, new), -2)
        every, stored = self._joined(newest), newest.detach()
        missing = min(self.rule.sink_length - self.sinks.size(-2), stored.size(-2))
        if missing > 0:
            self.sinks = torch.cat((self.sinks, stored[:, :, :missing]), -2)
            stored = stored[:, :, missing:]
        block, residual = self.rule.block, self.rule.residual_length
        # Only whole blocks beyond the residual window are encoded.
        leaving = max(stored.size(-2) - residual, 0) // block * block
        if self.rule.number_format.is_identity or not stored.numel():
            leaving = 0
        if leaving:
            self._store(self.rule.encode(stored[:, :, :leaving]))
        # Not a view, which would retain all tokens of the call.
        self.window = stored[:, :, leaving:].clone() if leaving or missing > 0 else stored
        return every

    def tokens(self) -> Tensor | None:
        """Returns all tokens (B, H, T, D) as they are stored; None if the store is empty."""
        return None if self.window is None else self._joined(self.window)

    def crop(self, count: int) -> None:
        """Removes the newest tokens. Earlier tokens of a broken block move to the window."""
        if self.window is None or self.sinks is None or count <= 0:
            return
        beyond = count - self.window.size(-2)
        if beyond <= 0:
            self.window = self.window[:, :, :-count]
            return
        first, remaining = self.sinks.size(-2), max(self._coded_length - beyond, 0)
        whole, rest = remaining // self.rule.block, remaining % self.rule.block
        every = self._joined(self.window)  # a partial block is decoded into the window
        self.window = every[:, :, first + remaining - rest : first + remaining].clone()
        self.sinks = self.sinks[:, :, : max(first + self._coded_length - beyond, 0)]
        self._keep(0, whole)

    def keep_newest(self, count: int) -> None:
        """Removes the oldest tokens, in whole blocks, and retains at least `count`.

        The rule must not have sinks.
        """
        blocks = max(self.length - count, 0) // self.rule.block
        coded = 0 if self.codes is None else min(self.codes.blocks, blocks)
        if coded:
            self._keep(coded)
        if self.window is not None and blocks > coded:
            self.window = self.window[:, :, (blocks - coded) * self.rule.block :].clone()

    def map(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replaces every tensor by a function of it."""
        self.codes = None if self.codes is None else self.codes.map(function)
        self.sinks = None if self.sinks is None else function(self.sinks)
        self.window = None if self.window is None else function(self.window)

    @property
    def _unrounded(self) -> list[Tensor]:
        return [x for x in (self.sinks, self.window) if x is not None]

    @property
    def _coded_length(self) -> int:
        return 0 if self.codes is None else self.codes.blocks * self.rule.block

    def _keep(self, first: int, end: int | None = None) -> None:
        if self.codes is not None:
            self.codes = self.codes.map(lambda x: x[:, first:end].clone())
            self.codes = self.codes if self.codes.blocks else None

    def _store(self, codes: Codes) -> None:
        old = self.codes
        self.codes = codes if old is None else old.map(lambda *x: torch.cat(x, 1), codes)

    def _joined(self, newest: Tensor) -> Tensor:
        """Returns all tokens (B, H, T, D), given those after the codes."""
        assert self.sinks is not None
        if self.codes is None:
            return torch.cat((self.sinks, newest), -2)
        texts, heads, first, size = self.sinks.shape
        end, dtype = first + self._coded_length, self.sinks.dtype
        decoded = self.rule.decode(self.codes, heads, size, dtype)
        every = newest.new_empty((texts, heads, end + newest.size(-2), size))
        every[:, :, :first] = self.sinks
        # One pass over the past: it is turned, converted and put in its place by the same copy.
        target = every[:, :, first:end].view(decoded.shape)
        target.copy_(cast(decoded, dtype) if dtype == torch.float16 else decoded)
        every[:, :, end:] = newest
        return every


def _rounding_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which tokens are rounded; kernels decode to float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _stacked(parts: Sequence[Tensor | None], lead: tuple[int, int]) -> Tensor | None:
    flat = [x.reshape(-1) for x in parts if x is not None]
    if not flat:
        return None
    joined = torch.cat(flat)
    return joined.view(*lead, joined.numel() // (lead[0] * lead[1]))
