"""Token store: keys or values of a layer, older tokens in codes, the first and newest as they came.

Shapes: B texts, H heads, T tokens, D numbers of a head; N blocks of G tokens each.
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
"""What the numbers of a group have in common: a group lies along the other one."""
MIN_BLOCK = 32
"""Tokens that are encoded at once, at least: a few cost as much time as these."""


class Codes(NamedTuple):
    """Blocks of tokens as a format stores them; each block by itself.

    Attributes:
        codes: uint8 (B, N, bytes).
        scales: float32 or uint8 (B, N, count), or None.
        tensor_scales: float32 (B, N, 1), or None.
    """

    codes: Tensor
    scales: Tensor | None = None
    tensor_scales: Tensor | None = None

    def map(self, function: Callable[..., Tensor], *others: Codes) -> Codes:
        """The function of each tensor that is there."""
        together = zip(self, *others, strict=True)
        return Codes(*(None if x[0] is None else function(*x) for x in together))  # type: ignore[arg-type]

    @property
    def blocks(self) -> int:
        """N."""
        return self.codes.size(1)

    @property
    def size_bytes(self) -> int:
        """Of all."""
        return sum(x.nbytes for x in self if x is not None)


@dataclass(frozen=True)
class StoreRule:
    """How tokens are stored.

    Attributes:
        number_format: of older tokens; the identity format leaves all as they came.
        per: `channel`: groups are tokens of one channel; `token`: channels of one token.
        residual_length: so many of the newest tokens stay as they came, at least.
        block: G, tokens that leave that window together.
        sink_length: so many of the first tokens stay as they came.
        is_rotated: whether the numbers of each head are rounded after a Hadamard transform, of the
            largest power of two that divides them, and transformed back when they are decoded.

    Raises:
        ConfigError: the format needs data to be complete.
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
                f"cache format {label}: it is fitted to samples, and a cache has none before its "
                "tokens; give its fields as numbers, or take group_integer, which scales groups."
            )
        layout = self.number_format.layout()
        scaling = None if layout is None else layout.scaling
        if isinstance(scaling, StaticScale) and scaling.spans_tensor:
            raise ConfigError(
                f"cache format {label}: its scales are of a tensor of one size, and a cache grows; "
                "give one scale, or none."
            )

    def shape(self, heads: int, size: int) -> tuple[int, int, int]:
        """Of a block, as it is encoded."""
        return (heads, size, self.block) if self.per == "channel" else (heads, self.block, size)

    def turned(self, blocks: Tensor) -> Tensor:
        """Blocks (..., G, D) as they are encoded, and back."""
        return blocks.transpose(-1, -2) if self.per == "channel" else blocks

    def encode(self, tokens: Tensor) -> Codes:
        """The codes of tokens.

        Args:
            tokens: (B, H, N G, D), floating; rounded as float32 numbers, or as float64 ones.
        """
        texts, heads, count, size = tokens.shape
        exact = self._rotated(tokens.to(_exact(tokens.dtype)))
        parts = exact.view(texts, heads, count // self.block, self.block, size).transpose(1, 2)
        blocks = self.turned(parts).flatten(0, 1).contiguous()
        found = (
            [encode_in_parts(self.number_format, blocks)]
            if _is_separable(self.number_format, tuple(blocks.shape))
            else [self.number_format.encode(block) for block in blocks]
        )
        lead = (texts, count // self.block)
        stored = ([x.codes for x in found], [x.scales for x in found])
        return Codes(*(_stacked(x, lead) for x in (*stored, [x.tensor_scale for x in found])))  # type: ignore[arg-type]

    def decode(self, codes: Codes, heads: int, size: int, dtype: torch.dtype) -> Tensor:
        """The tokens (B, H, N, G, D) of codes, in the dtype in which they were rounded.

        Args:
            codes: of `encode`.
            heads: H.
            size: D.
            dtype: of the tokens that were encoded.
        """
        texts, count = codes.codes.shape[:2]
        shape, key, exact = self.shape(heads, size), self.number_format.key, _exact(dtype)
        if _is_separable(self.number_format, (texts * count, *shape)):
            flat = codes.map(lambda x: x.reshape(-1))
            y = torch.ops.chop.decode(*flat, [texts * count, *shape], key, exact)
        else:
            y = torch.stack([self._decode(codes, i, shape, exact) for i in range(texts * count)])
        return self._rotated(self.turned(y.view(texts, count, *shape)).transpose(1, 2))

    def _rotated(self, tokens: Tensor) -> Tensor:
        """Tokens (..., D) times a matrix that is its own inverse: Sylvester's is symmetric."""
        size = tokens.size(-1)
        return hadamard_transform(tokens, size & -size) if self.is_rotated else tokens

    def _decode(self, codes: Codes, index: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        block = codes.map(lambda x: x.flatten(0, 1)[index])
        factor = None if block.tensor_scales is None else block.tensor_scales.view(())
        stored = Encoded(block.codes, torch.Size(shape), dtype, block.scales, factor)
        return self.number_format.decode(stored)


@functools.lru_cache(maxsize=1024)
def _is_separable(number_format: NumberFormat, shape: tuple[int, ...]) -> bool:
    """Whether blocks along the first axis are encoded as each would be by itself.

    It is asked for each layer and token, and the same for all layers.
    """
    layout = number_format.layout()
    if layout is None or isinstance(layout.element.threshold, Threshold):
        return False
    if not number_format.is_row_separable(shape):
        return False
    if layout.scaling is None:
        return True
    # Channels are heads of a block, and blocks of all blocks.
    of_each = shape[0] * layout.groups.count(shape[1:])
    return not layout.scaling.spans_tensor and layout.groups.count(shape) == of_each


def get_block(number_format: NumberFormat, per: Per) -> int:
    """Tokens of whole groups, at least `MIN_BLOCK` of them; 1 where nothing is rounded."""
    if number_format.is_identity or not number_format.is_fitted:
        return 1
    layout = number_format.layout()
    groups = None if layout is None or per == "token" else layout.groups
    group = groups.sizes[-1] if isinstance(groups, Blocks) else 1
    return group * -(-MIN_BLOCK // group)


class TokenStore:
    """Keys, or values, of one layer: the first tokens, codes of those that follow, the newest.

    Args:
        rule: how they are stored.
    """

    def __init__(self, rule: StoreRule) -> None:
        self.rule = rule
        self.sinks: Tensor | None = None
        self.codes: Codes | None = None
        self.window: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens that are held."""
        return self._coded + sum(x.size(-2) for x in self._as_they_came)

    @property
    def size_bytes(self) -> int:
        """Of codes, scales, and the tokens that are as they came."""
        of_codes = 0 if self.codes is None else self.codes.size_bytes
        return of_codes + sum(x.nbytes for x in self._as_they_came)

    @property
    def float_bytes(self) -> int:
        """What all tokens would take as they came."""
        if self.window is None:
            return 0
        texts, heads, _, size = self.window.shape
        return texts * heads * self.length * size * self.window.itemsize

    def append(self, new: Tensor) -> Tensor:
        """Stores new tokens, and gives the ones before, as they are stored, followed by the new.

        Args:
            new: (B, H, new tokens, D). What is stored has no gradient.
        Returns: (B, H, T, D).
        """
        if self.window is None or self.sinks is None:
            self.window = self.sinks = new[:, :, :0].detach().clone()
        newest = torch.cat((self.window, new), -2)
        every, kept = self._joined(newest), newest.detach()
        missing = min(self.rule.sink_length - self.sinks.size(-2), kept.size(-2))
        if missing > 0:
            self.sinks = torch.cat((self.sinks, kept[:, :, :missing]), -2)
            kept = kept[:, :, missing:]
        block, residual = self.rule.block, self.rule.residual_length
        leaving = max(kept.size(-2) - residual, 0) // block * block
        if self.rule.number_format.is_identity or not kept.numel():
            leaving = 0
        if leaving:
            self._store(self.rule.encode(kept[:, :, :leaving]))
        # Not a view, which would hold all tokens of the call.
        self.window = kept[:, :, leaving:].clone() if leaving or missing > 0 else kept
        return every

    def tokens(self) -> Tensor | None:
        """All tokens (B, H, T, D) as they are stored; None before the first."""
        return None if self.window is None else self._joined(self.window)

    def crop(self, count: int) -> None:
        """Forgets the newest tokens. Those before them that leave a block get into the window."""
        if self.window is None or self.sinks is None or count <= 0:
            return
        beyond = count - self.window.size(-2)
        if beyond <= 0:
            self.window = self.window[:, :, :-count]
            return
        first, left = self.sinks.size(-2), max(self._coded - beyond, 0)
        whole, rest = left // self.rule.block, left % self.rule.block
        every = self._joined(self.window)
        self.window = every[:, :, first + left - rest : first + left].clone()
        self.sinks = self.sinks[:, :, : max(first + self._coded - beyond, 0)]
        self._keep(0, whole)

    def keep_newest(self, count: int) -> None:
        """Forgets the oldest tokens: whole blocks of them, as long as `count` are left.

        The rule has no sinks.
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
    def _as_they_came(self) -> list[Tensor]:
        return [x for x in (self.sinks, self.window) if x is not None]

    @property
    def _coded(self) -> int:
        return 0 if self.codes is None else self.codes.blocks * self.rule.block

    def _keep(self, first: int, end: int | None = None) -> None:
        if self.codes is not None:
            self.codes = self.codes.map(lambda x: x[:, first:end].clone())
            self.codes = self.codes if self.codes.blocks else None

    def _store(self, codes: Codes) -> None:
        old = self.codes
        self.codes = codes if old is None else old.map(lambda *x: torch.cat(x, 1), codes)

    def _joined(self, newest: Tensor) -> Tensor:
        """All tokens (B, H, T, D), of which those after the codes are given."""
        assert self.sinks is not None
        if self.codes is None:
            return torch.cat((self.sinks, newest), -2)
        texts, heads, first, size = self.sinks.shape
        end, dtype = first + self._coded, self.sinks.dtype
        decoded = self.rule.decode(self.codes, heads, size, dtype)
        every = newest.new_empty((texts, heads, end + newest.size(-2), size))
        every[:, :, :first] = self.sinks
        # One pass over the past: it is turned, converted and put in its place by the same copy.
        target = every[:, :, first:end].view(decoded.shape)
        target.copy_(cast(decoded, dtype) if dtype == torch.float16 else decoded)
        every[:, :, end:] = newest
        return every


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which tokens are rounded: kernels decode float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _stacked(parts: Sequence[Tensor | None], lead: tuple[int, int]) -> Tensor | None:
    found = [x.reshape(-1) for x in parts if x is not None]
    if not found:
        return None
    joined = torch.cat(found)
    return joined.view(*lead, joined.numel() // (lead[0] * lead[1]))
