"""Rows of the component table: what a circuit of one operator is made of, takes and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from chop.hardware.design.products import by_constant, cut, soft_levels
from chop.hardware.design.stream import Stream
from chop.ir.ops import Kind
from chop.nn.integer.mask import KeptKeys

RTL = Path(__file__).parents[1] / "rtl"
WIDEST_SUM = 62
"""Bits of a word that int64 holds."""


@dataclass(frozen=True)
class Site:
    """Where an operator stands in a graph.

    Attributes:
        operator: of `chop.nn.integer`: the specification.
        inputs: the streams that it reads, with the lanes that their producers send.
        fold: most cycles that it may take for a sample. Its lanes are the fewest that reach this;
            an operator that cannot reach it has its fastest form.
        kept: of a softmax that reads a mask, its last input: how the keys of a sample become it.
        is_soft: its products are made of lookup tables, where the circuit knows how.
    """

    operator: nn.Module
    inputs: Sequence[Stream]
    fold: int
    kept: KeptKeys | None = None
    is_soft: bool = False

    def alone(self, fold: int, is_soft: bool = False) -> Site:
        """The same with a fold of its own, whose lanes do not depend on those of producers."""
        inputs = [each.with_lanes(1) for each in self.inputs]
        return replace(self, inputs=inputs, fold=fold, is_soft=is_soft)

    def soft(self, a: int, b: int) -> int:
        """SOFT of `chop_multiplier` for factors of so many bits."""
        return soft_levels(a, b) if self.is_soft else 0


@dataclass(frozen=True)
class Memory:
    """Contents of a read-only memory.

    Attributes:
        words: of `width` bits, non-negative: two's complement where they are signed.
        width: in bits.
        copies: that a component has, to read as many words in a cycle.
    """

    words: tuple[int, ...]
    width: int
    copies: int = 1

    @property
    def bits(self) -> int:
        """Size in bits, of all copies."""
        return len(self.words) * self.width * self.copies

    def hex(self) -> str:
        """The text that `$readmemh` reads, a line for each word."""
        digits = -(-self.width // 4)
        return "".join(f"{word:0{digits}x}\n" for word in self.words)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], width: int) -> Memory:
        """Words of several codes.

        Args:
            rows: for each word its codes, that of lane 0, in the lowest bits, first.
            width: of one code in bits.
        """
        mask = (1 << width) - 1
        words = tuple(
            sum((code & mask) << lane * width for lane, code in enumerate(row)) for row in rows
        )
        return cls(words, width * len(rows[0]))

    @classmethod
    def of_codes(cls, codes: Tensor, width: int) -> Memory:
        """The same of large memories, in a fraction of the time.

        Args:
            codes: int64 (words, lanes).
            width: of one code in bits.
        """
        lanes = codes.size(1)
        if width * lanes > WIDEST_SUM:
            return cls.of(codes.tolist(), width)
        places = torch.arange(lanes) * width
        words = ((codes & (1 << width) - 1) << places).sum(1)
        return cls(tuple(words.tolist()), width * lanes)


@dataclass(frozen=True)
class Resources:
    """Resources of a component by its structure; `chop.hardware.costs.synth` measures them.

    Attributes:
        multipliers: widths in bits of the two factors, and how many such multipliers.
        memory_bits: of read-write memories; read-only ones are the plan's `memories`.
        scalings: products by a constant: bits of the factor and the constant, and how many.
        positive_scalings: the same of factors that have a sign, which is always 0.
        is_soft: products are `chop_multiplier` of lookup tables, whatever the device has.
    """

    multipliers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    memory_bits: int = 0
    scalings: Mapping[tuple[int, int], int] = field(default_factory=dict)
    positive_scalings: Mapping[tuple[int, int], int] = field(default_factory=dict)
    is_soft: bool = False

    @property
    def products(self) -> int:
        """Of all kinds."""
        every = (self.multipliers, self.scalings, self.positive_scalings)
        return sum(sum(counts.values()) for counts in every)

    @property
    def parts(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Widths of the factors of products as they are cut, and how many such products."""
        for (a, b), count in self.multipliers.items():
            yield from (((x, y), count) for x in cut(a) for y in cut(b))
        for (width, factor), count in self.scalings.items():
            yield from ((widths, count) for widths in by_constant(width, factor))
        # Where both factors are positive, no multiplier has their signs.
        for (width, factor), count in self.positive_scalings.items():
            yield from (((a - 1, b - 1), count) for a, b in by_constant(width, factor))


@dataclass(frozen=True)
class ComponentPlan:
    """An operator as an instance of its component.

    Attributes:
        parameters: of the module, by name.
        lanes: that each input must have; a converter is put where its producer sends others.
        out: the stream that leaves.
        cycles: between two samples when nothing stalls.
        memories: contents of read-only memories, by the parameter that takes the file's name.
        resources: of one instance, without read-only memories.
        holds: for each input the share of a sample that has to be taken in before the first output
            can leave; 1 where all of it has, as of an operand of a product; more than 1 where
            several samples are in a pipeline at a time. What is held is stored inside.
        needs: for each input, int64 (beats out,), the last beat that each beat out needs, where
            `holds` does not tell.
        buffers: for each input the beats of a FIFO wanted ahead of it, 0 for none.
        module: SystemVerilog module where it is not the one of the component's row.
        latency: cycles from the last beat that a result needs to the result, beside what `holds`
            says.
    """

    parameters: Mapping[str, int | str]
    lanes: tuple[int, ...]
    out: Stream
    cycles: int
    memories: Mapping[str, Memory] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    holds: tuple[float, ...] = ()
    needs: tuple[Tensor, ...] = ()
    buffers: tuple[int, ...] = ()
    module: str = ""
    latency: int = 1


@dataclass(frozen=True)
class Component:
    """A row: the circuit of one class of operators.

    Attributes:
        operator: class of the operators.
        module: SystemVerilog module in `folder/MODULE.sv`. Modules that it instantiates are
            found in the same folder, or in the library.
        plan: parameters, memories, cycles and resources of an operator.
        folder: of the source.
        spatial: how many trailing dimensions it slides over: an image that the host sends to it
            has its channels last.
        is_broadcast: a constant operand is spread to the order of the other operand.
        kind: what it is drawn as.
    """

    operator: type[nn.Module]
    module: str
    plan: Callable[[Site], ComponentPlan]
    folder: Path = RTL
    spatial: int = 0
    is_broadcast: bool = False
    kind: Kind = Kind.OTHER
