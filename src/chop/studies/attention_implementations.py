"""Implementations of attention, with their data movement and operation counts.

Shapes: B rows of a batch, H heads, T tokens, D numbers of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.private.torch_api import attention_choice
from chop.studies.settings import ATTENTION_SHAPE, parse_shape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MASKS = ("none", "padding", "causal")
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """Problem size of an attention.

    Attributes:
        batch: B.
        heads: H.
        tokens: T, the number of queries and of keys.
        head_size: D.
        dtype: dtype name of queries, keys, values and the result.
        mask: one of `MASKS`.
    """

    batch: int
    heads: int
    tokens: int
    head_size: int
    dtype: str
    mask: str

    @classmethod
    def parse(cls, shape: str, dtype: str, mask: str) -> Case:
        """Parses a shape such as "1x12x128x64".

        >>> Case.parse("1x12x128x64", "float32", "none").tokens
        128
        """
        batch, heads, tokens, head_size = parse_shape(shape, *ATTENTION_SHAPE)
        return cls(batch, heads, tokens, head_size, dtype, mask)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, T, D)."""
        return self.batch, self.heads, self.tokens, self.head_size

    @property
    def name(self) -> str:
        """Name in titles and file names."""
        return f"{'x'.join(map(str, self.shape))}-{self.dtype}-{self.mask}"

    @property
    def needed_flops(self) -> int:
        """Required operations, 4 B H P D: two products over the P unmasked query-key pairs.

        P is T^2, or T (T + 1) / 2 with a causal mask. Pairs hidden by a padding mask depend on the
        data and are counted.
        """
        tokens = self.tokens
        pairs = tokens * (tokens + 1) // 2 if self.mask == "causal" else tokens**2
        return 4 * self.batch * self.heads * pairs * self.head_size

    def moved_bytes(self, way: str) -> int:
        """Returns the bytes read and written with an ideal cache within each operation.

        With b bytes per number, N = B H T D numbers in each of Q, K, V and the result, and
        S = B H T^2 scores:

        - "fused": 4 N b + m: each input is read once, the result is written once, and scores stay
          on the chip.
        - "three kernels": (4 N + 4 S) b: the first product writes S, softmax reads and writes S,
          the second product reads S. With a mask, (4 N + 6 S) b + m: the product starts from S
          copies of the mask, which are written and read.
        - "naive": (4 N + 6 S) b, and with a mask (4 N + 8 S) b + m: scaling and adding the mask
          each read and write S as well.

        m is the size of the mask: 0 for "none" and for "fused" with "causal", which needs no
        tensor; else B T numbers for "padding" and T^2 for "causal", with b bytes each if they are
        added, or 1 if they are boolean ("fused").
        """
        size = DTYPES[self.dtype].itemsize
        inputs = math.prod(self.shape)
        scores = self.batch * self.heads * self.tokens**2
        masked = self.mask != "none"
        trips = {"fused": 0, "three kernels": 4 + 2 * masked, "naive": 6 + 2 * masked}[way]
        return (4 * inputs + trips * scores) * size + self._mask_bytes(way == "fused", size)

    def _mask_bytes(self, is_fused: bool, size: int) -> int:
        if self.mask == "none" or (self.mask == "causal" and is_fused):
            return 0
        rows = self.batch if self.mask == "padding" else self.tokens
        return rows * self.tokens * (1 if is_fused else size)


def random_inputs(case: Case, seed: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns Q, K and V, (B, H, T, D) each, from a normal distribution."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(case.shape, generator=draw).to(device, DTYPES[case.dtype]) for _ in "qkv"
    )
    return q, k, v


def visible_pairs(case: Case, device: str) -> Tensor | None:
    """Returns the mask of visible keys: (B, 1, 1, T) for padding, (T, T) for causal, or None.

    Row i of a batch of B has T - i T / 2B tokens, rounded down, and at least one.
    """
    tokens = torch.arange(case.tokens, device=device)
    if case.mask == "none":
        return None
    if case.mask == "causal":
        return tokens[:, None] >= tokens
    rows = torch.arange(1, case.batch + 1, device=device)
    lengths = (case.tokens - rows * case.tokens // (2 * case.batch)).clamp(min=1)
    return (tokens < lengths[:, None])[:, None, None, :]


def implementations(case: Case, visible: Tensor | None) -> dict[str, Attention]:
    """Returns the implementations: naive, three kernels, and fused."""
    added = added_mask(visible, DTYPES[case.dtype])
    is_causal = case.mask == "causal"
    return {
        "naive": partial(naive_attention, added=added),
        "three kernels": partial(attention_in_three_kernels, added=added),
        "fused": partial(
            F.scaled_dot_product_attention,
            attn_mask=None if is_causal else visible,
            is_causal=is_causal,
        ),
    }


def naive_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None = None) -> Tensor:
    """Computes softmax(Q K^T / sqrt(D) + mask) V with one operation at a time.

    Args:
        q: (B, H, T, D), floating point.
        k: (B, H, T, D).
        v: (B, H, T, D).
        added: additive mask, 0 or minus infinity, broadcastable to (B, H, T, T).
    Returns: (B, H, T, D).
    Source: Vaswani et al. 2017, "Attention is all you need", equation 1.
    """
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores = scores / math.sqrt(q.shape[-1])
    if added is not None:
        scores = scores + added
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def attention_in_three_kernels(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None = None
) -> Tensor:
    """Computes attention in three kernels; the first product includes the scale and the mask.

    A mask of four dimensions is one per row of the batch, shared by all heads.
    """
    queries, keys, values = (x.flatten(0, 1) for x in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    if added is None:
        base, beta = q.new_zeros(()), 0.0
    else:
        per_row = added.expand(-1, q.shape[1], -1, -1).flatten(0, 1) if added.dim() == 4 else added
        base, beta = per_row, 1.0
    scores = torch.baddbmm(base, queries, keys.transpose(1, 2), beta=beta, alpha=scale)
    return torch.bmm(torch.softmax(scores, dim=-1), values).view(q.shape)


def chosen_backend(inputs: Sequence[Tensor], visible: Tensor | None, is_causal: bool) -> str:
    """Returns the name of torch's kernel for fused attention, such as "flash_attention"."""
    from torch.nn.attention import SDPBackend

    q, k, v = inputs
    number = attention_choice(q, k, v, None if is_causal else visible, is_causal)
    names = {backend.value: name for name, backend in SDPBackend.__members__.items()}
    return names[number].lower()


def added_mask(visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Returns an additive mask: 0 for visible pairs, minus infinity for hidden ones."""
    if visible is None:
        return None
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill(~visible, -math.inf)
