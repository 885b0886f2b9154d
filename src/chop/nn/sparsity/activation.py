"""Activation pruning: zeroes a share of an operator's input."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, did_you_mean
from chop.kernels import drop, drop_lowest, lowest_magnitudes
from chop.nn.weight_cache import decoded_once
from chop.private.torch_api import is_transformed

METHODS = ("l1-norm", "random")
FINEST_SHARE = 10**6


class PruneActivation(nn.Module):
    """Zeroes the lowest share of its input; gradients flow through the remaining elements only.

    Args:
        sparsity: share of zeroed elements, 0 to below 1, of every input tensor; its rows compete
            with each other, so a row's result depends on the batch.
        method: `l1-norm` keeps the largest magnitudes; `random` keeps positions that depend only on
            `seed` and the number of elements, so that equal calls give equal results.
        seed: seed of `random`.
        threshold: keeps the magnitudes above it instead of a fixed share.

    Raises:
        ConfigError: if `sparsity` is out of range, or the method unknown.
    """

    def __init__(
        self,
        sparsity: float,
        method: str = "l1-norm",
        seed: int = 0,
        threshold: float | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= sparsity < 1:
            raise ConfigError(f"sparsity: expected 0 to below 1, got {sparsity}.")
        if method not in METHODS:
            raise ConfigError(f"method '{method}': {did_you_mean(method, METHODS)}")
        self.sparsity, self.method, self.seed = sparsity, method, seed
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the shape and dtype of `input`, any floating one."""
        flat = input.reshape(-1)
        # Plain PyTorch: programs are read without chop, and transforms differentiate in all ways.
        if torch.compiler.is_exporting() or is_transformed():
            return torch.where(self._dropped(flat), 0, flat).view(input.shape)
        if self.threshold is None and self.method == "l1-norm":
            return drop_lowest(flat, self._count(flat.shape[0])).view(input.shape)
        return drop(flat, self._dropped(flat)).view(input.shape)

    def _dropped(self, flat: Tensor) -> Tensor:
        """Returns a boolean mask, True for elements that become zero."""
        if self.threshold is not None:
            return flat.abs() <= self.threshold
        count = self._count(flat.shape[0])
        if self.method == "random":
            return self._drawn(flat, count)
        return lowest_magnitudes(flat, count)

    def _drawn(self, flat: Tensor, count: int) -> Tensor:
        """Returns the lowest of pseudo-random numbers, cached for inputs of the same size."""

        def mark() -> Tensor:
            return lowest_magnitudes(self._draw(flat), count)

        if torch.compiler.is_compiling() or is_transformed() or type(flat) is not Tensor:
            return mark()
        rule = flat.shape[0], count, self.seed, flat.device
        return decoded_once(self, "data_in", (), rule, mark)

    def _count(self, size: int) -> int:
        """Returns sparsity * size rounded to the nearest integer, also for symbolic sizes."""
        share = Fraction(self.sparsity).limit_denominator(FINEST_SHARE)
        return (2 * size * share.numerator + share.denominator) // (2 * share.denominator)

    def _draw(self, flat: Tensor) -> Tensor:
        """Returns pseudo-random integers: a hash of position and seed, for any compiler."""
        x = torch.arange(flat.shape[0], device=flat.device) + self.seed * 0x9E3779B1 % 2**32
        for _ in range(2):
            x = ((x >> 16) ^ x) * 0x45D9F3B & 0xFFFFFFFF
        return (x >> 16) ^ x

    def extra_repr(self) -> str:
        """Returns the settings."""
        text = f"sparsity={self.sparsity:g}, method={self.method}"
        return text if self.threshold is None else f"{text}, threshold={self.threshold:g}"
