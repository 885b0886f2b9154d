"""Ways to compute attention, and what each has to move and to compute.

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
    """One size of the problem.

    Attributes:
        batch: B.
        heads: H.
        tokens: T, of queries and of keys.
        head_size: D.
        dtype: name, of queries, keys, values and the result.
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
        """From the shape as text.

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
        """For titles and file names."""
        return f"{'x'.join(map(str, self.shape))}-{self.dtype}-{self.mask}"

    @property
    def needed_flops(self) -> int:
        """4 B H P D: two products over the P pairs of a query and a key that it may see.

        P is T^2, and T (T + 1) / 2 under a causal mask. What a padding mask leaves out depends on
        the data and is counted.
        """
        tokens = self.tokens
        pairs = tokens * (tokens + 1) // 2 if self.mask == "causal" else tokens**2
        return 4 * self.batch * self.heads * pairs * self.head_size

    def moved_bytes(self, way: str) -> int:
        """Bytes that an ideal cache for one operation would still read and write.

        With b bytes per number, N = B H T D numbers in each of Q, K, V and the result, and
        S = B H T^2 scores:

        - "fused": 4 N b + m: the three are read once, the result is written once, and no score
          leaves the chip.
        - "three kernels": (4 N + 4 S) b: the first product writes S, softmax reads and writes S,
          the second product reads S. With a mask (4 N + 6 S) b + m: the product starts from S
          copies of the mask, which are written and read.
        - "naive": (4 N + 6 S) b, and with a mask (4 N + 8 S) b + m: scaling, and adding the mask,
          each read and write S as well.

        m is what the mask takes: nothing for "none" and for "fused" with "causal", which needs no
        tensor; else B T numbers for "padding" and T^2 for "causal", b bytes each where they are
        added, 1 where they are boolean ("fused").
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
    """Q, K and V, (B, H, T, D) each, drawn from a normal distribution."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(case.shape, generator=draw).to(device, DTYPES[case.dtype]) for _ in "qkv"
    )
    return q, k, v


def kept_pairs(case: Case, device: str) -> Tensor | None:
    """True where a query sees a key: (B, 1, 1, T) for padding, (T, T) for causal, None for all.

    Row i of a batch of B ends after T - i T / 2B tokens, rounded down, and at least one.
    """
    tokens = torch.arange(case.tokens, device=device)
    if case.mask == "none":
        return None
    if case.mask == "causal":
        return tokens[:, None] >= tokens
    rows = torch.arange(1, case.batch + 1, device=device)
    lengths = (case.tokens - rows * case.tokens // (2 * case.batch)).clamp(min=1)
    return (tokens < lengths[:, None])[:, None, None, :]


def implementations(case: Case, kept: Tensor | None) -> dict[str, Attention]:
    """The variants: naive, in three kernels, and fused."""
    added = added_mask(kept, DTYPES[case.dtype])
    is_causal = case.mask == "causal"
    return {
        "naive": partial(naive_attention, added=added),
        "three kernels": partial(attention_in_three_kernels, added=added),
        "fused": partial(
            F.scaled_dot_product_attention,
            attn_mask=None if is_causal else kept,
            is_causal=is_causal,
        ),
    }


def naive_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(D) + mask) V, an operation at a time.

    Args:
        q: (B, H, T, D), floating point.
        k: (B, H, T, D).
        v: (B, H, T, D).
        added: the mask, 0 or minus infinity, broadcastable to (B, H, T, T).
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
    """The same; the first product scales its result and adds the mask itself.

    A mask of four dimensions is one per row of the batch, for all heads.
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


def chosen_backend(inputs: Sequence[Tensor], kept: Tensor | None, is_causal: bool) -> str:
    """Name of the kernel that torch takes for fused attention, such as "flash_attention"."""
    from torch.nn.attention import SDPBackend

    q, k, v = inputs
    number = attention_choice(q, k, v, None if is_causal else kept, is_causal)
    names = {backend.value: name for name, backend in SDPBackend.__members__.items()}
    return names[number].lower()


def added_mask(kept: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """0 where a pair is kept, and minus infinity where not."""
    if kept is None:
        return None
    zeros = torch.zeros(kept.shape, dtype=dtype, device=kept.device)
    return zeros.masked_fill(~kept, -math.inf)
