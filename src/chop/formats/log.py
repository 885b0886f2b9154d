"""`log`: powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from chop.config import Range
from chop.formats.elements import Log2
from chop.formats.scaled import ElementFormat


@dataclass(frozen=True)
class Log(ElementFormat):
    """Signed powers of two.

    Values: s 2^E, with the sign s and -bias <= E <= 2^(width-1) - 1 - bias.
    Rounding: log2 |x| is rounded to the nearest integer, or x to the nearest value (`nearest`).
    Saturation: values beyond either end, including infinities, become the nearest end.
    Special values: without a zero code, zeros of either sign become +2^-bias. NaN stays NaN in
    `round` and is encoded as the lowest code.

    Attributes:
        width: bits per element, 2 to 32.
        exponent_bias: None for 2^(width-2) - 1, which puts 1 in the middle.
        nearest: `log` rounds in the log domain, `linear` to the nearest value, ties up.
        zero_code: makes the code of the smallest magnitude zero; values nearer to zero than to the
            next magnitude, in the same domain, become zero.

    Example:
        >>> import torch
        >>> Log(4, 3).round(torch.tensor([1.4, 1.42, -100.0, 0.0]))
        tensor([  1.0000,   2.0000, -16.0000,   0.1250])

    Source: Miyashita, Lee and Murmann 2016, arXiv:1603.01025, section 3.
    """

    name: ClassVar[str] = "log"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8),
        "exponent_bias": (3, 7, 15),
    }

    width: Annotated[int, Range(2, 32, "bits")]
    exponent_bias: Annotated[int | None, Range(-100, 256)] = None
    nearest: Literal["log", "linear"] = "log"
    zero_code: bool = False

    @property
    def element(self) -> Log2:
        """Powers of two."""
        bias = self.exponent_bias
        bias = 2 ** (self.width - 2) - 1 if bias is None else bias
        return Log2(self.width, bias, self.nearest, self.zero_code)
