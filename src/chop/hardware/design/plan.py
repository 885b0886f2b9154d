"""Row types of the component table: parameters, streams and resources of an operator's circuit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from chop.hardware.design.products import by_constant, cut, soft_levels
from chop.hardware.design.stream import Stream
from chop.ir.ops import Kind
from chop.nn.integer import IntegerOperator
from chop.nn.integer.mask import KeptKeys

RTL = Path(__file__).parents[1] / "rtl"
NO_LOAD = {"load_i": "57'b0"}
"""Connection of a module with loadable memories in a circuit that loads none of them."""
_LOAD_PORT = re.compile(r"^\s*input\b[^\n/]*\bload_i\b", re.MULTILINE)
IN_PLACE = 1 - 2.0**-20
"""Share of a sample, in `ComponentPlan.holds`, that stands for a whole sample without room for the
next one.
"""
DIRECT = -1
"""Depth of an input without a buffer. Its component passes `ready` on to its producer."""
WIDEST_SUM = 62
"""Maximum bits of a sum, which int64 holds."""


@dataclass(frozen=True)
class Site:
    """An operator and its surroundings in a graph.

    Attributes:
        operator: operator of `chop.nn.integer`, the specification.
        inputs: input streams with the lanes of their producers.
        fold: maximum cycles per sample. The operator gets the fewest lanes within this limit, or
            its fastest form if it cannot reach it.
        mask_keys: for a softmax with a mask as the last input, the operator that expands the mask
            of a sample's keys.
        is_soft: products are built from lookup tables, if the circuit supports it.
    """

    operator: nn.Module
    inputs: Sequence[Stream]
    fold: int
    mask_keys: KeptKeys | None = None
    is_soft: bool = False

    def alone(self, fold: int, is_soft: bool = False) -> Site:
        """Returns the site with its own fold and with lanes independent of the producers' lanes."""
        inputs = [each.with_lanes(1) for each in self.inputs]
        return replace(self, inputs=inputs, fold=fold, is_soft=is_soft)

    def soft(self, a: int, b: int) -> int:
        """Returns SOFT of `chop_multiplier` for factors of `a` and `b` bits."""
        return soft_levels(a, b) if self.is_soft else 0


@dataclass(frozen=True)
class Memory:
    """Contents of a memory, which is read-only unless it is loadable.

    Attributes:
        words: non-negative words of `width` bits, in two's complement if signed.
        width: width in bits.
        copies: copies in a component, to read several words per cycle.
        is_loadable: True if the words are written at run time.
    """

    words: tuple[int, ...]
    width: int
    copies: int = 1
    is_loadable: bool = False

    @property
    def bits(self) -> int:
        """Size in bits of all copies."""
        return len(self.words) * self.width * self.copies

    def hex(self) -> str:
        """Text for `$readmemh`, one line per word."""
        digits = -(-self.width // 4)
        return "".join(f"{word:0{digits}x}\n" for word in self.words)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], width: int) -> Memory:
        """Builds words of several codes.

        Args:
            rows: codes of each word, lane 0, in the lowest bits, first.
            width: bits of one code.
        """
        mask = (1 << width) - 1
        words = tuple(
            sum((code & mask) << lane * width for lane, code in enumerate(row)) for row in rows
        )
        return cls(words, width * len(rows[0]))

    @classmethod
    def from_codes(cls, codes: Tensor, width: int) -> Memory:
        """Builds words of several codes from a tensor, much faster than `of` for large memories.

        Args:
            codes: int64 (words, lanes).
            width: bits of one code.
        """
        lanes = codes.size(1)
        # The sum below has to fit int64; Python integers have no limit.
        if width * lanes > WIDEST_SUM:
            return cls.of(codes.tolist(), width)
        places = torch.arange(lanes) * width
        words = ((codes & (1 << width) - 1) << places).sum(1)
        return cls(tuple(words.tolist()), width * lanes)


@dataclass(frozen=True)
class Resources:
    """Resources of a component by structure. `chop.hardware.costs.synth` measures them.

    Attributes:
        multipliers: number of multipliers, by the widths of both factors in bits.
        memory_bits: bits of read-write memories. Read-only memories are in the plan's `memories`.
        scalings: number of products by a constant, by bits of the factor and the constant.
        positive_scalings: number of those with a signed factor that is never negative.
        is_soft: products are `chop_multiplier` built from lookup tables on any device.
        constants: number of products by constants that are made of shifts and adders.
        sums: bits of each of these adders.
        registers: bits of the registers behind them.
    """

    multipliers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    memory_bits: int = 0
    scalings: Mapping[tuple[int, int], int] = field(default_factory=dict)
    positive_scalings: Mapping[tuple[int, int], int] = field(default_factory=dict)
    is_soft: bool = False
    constants: int = 0
    sums: Sequence[int] = ()
    registers: int = 0

    @property
    def products(self) -> int:
        """Number of products of all kinds."""
        every = (self.multipliers, self.scalings, self.positive_scalings)
        return sum(sum(counts.values()) for counts in every)

    @property
    def parts(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Number of products after splitting wide factors, by the widths of their factors."""
        for (a, b), count in self.multipliers.items():
            yield from (((x, y), count) for x in cut(a) for y in cut(b))
        for (width, factor), count in self.scalings.items():
            yield from ((widths, count) for widths in by_constant(width, factor))
        # If both factors are positive, no multiplier needs their signs.
        for (width, factor), count in self.positive_scalings.items():
            yield from (((a - 1, b - 1), count) for a, b in by_constant(width, factor))


@dataclass(frozen=True)
class ComponentPlan:
    """An operator as an instance of its component.

    Attributes:
        parameters: module parameters by name.
        lanes: required lanes of each input. A converter is inserted if its producer differs.
        out: output stream.
        cycles: cycles between two samples without stalls.
        memories: contents of memories, by the parameter with the file name. The parameter of the
            address of a loadable memory has BASE instead of FILE in its name.
        resources: resources of one instance, without read-only memories.
        holds: for each input, the share of a sample that is consumed, and stored inside, before the
            first output. 1 means a whole sample and room for the next one, such as for an operand
            of a product. More than 1 means that several samples are in the pipeline at a time.
        needs: for each input, int64 (output beats,): the last input beat that each output beat
            depends on, if `holds` does not determine it.
        buffers: for each input, the beats of a FIFO ahead of it; 0 for none but a skid buffer, and
            `DIRECT` for wires only.
        module: SystemVerilog module, if it is not the one in the component's row.
        source: text of that module, if it is written for this instance.
        latency: cycles from the last input beat that a result depends on to the result, in addition
            to `holds`.
        leaves: returns the cycles in which the beats of a single sample leave an empty component,
            without `latency`, from the cycles in which those of its only input arrive; None if
            `cycles`, `holds` and `needs` determine them.
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
    source: str = ""
    latency: int = 1
    leaves: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Component:
    """A row of the component table: the circuit of a class of operators.

    Attributes:
        operator: operator class.
        module: SystemVerilog module in `folder/MODULE.sv`. Modules that it instantiates are in the
            same folder or in the library.
        plan: returns parameters, memories, cycles and resources of an operator.
        folder: folder of the source.
        spatial: number of trailing dimensions that a window slides over. The host sends an image
            with its channels last.
        is_broadcast: a constant operand is expanded to the order of the other operand.
        kind: color class in the diagram.
    """

    operator: type[nn.Module]
    module: str
    plan: Callable[[Site], ComponentPlan]
    folder: Path = RTL
    spatial: int = 0
    is_broadcast: bool = False
    kind: Kind = Kind.OTHER

    def planned(self, site: Site) -> ComponentPlan:
        """Returns the plan of an operator, whose memories are loadable if its numbers are.

        A module without the input `load_i` has fixed memories.
        """
        plan, operator = self.plan(site), site.operator
        is_loadable = isinstance(operator, IntegerOperator) and operator.is_loadable
        if not (
            is_loadable and has_load_port(plan.module or self.module, self.folder, plan.source)
        ):
            return plan
        pairs = plan.memories.items()
        return replace(plan, memories={k: replace(each, is_loadable=True) for k, each in pairs})


def has_load_port(module: str, folder: Path = RTL, source: str = "") -> bool:
    """Returns whether a module has the input `load_i`, which writes its loadable memories.

    Args:
        module: module name.
        folder: folder searched before the library.
        source: text of the module, if it is in no folder.
    """
    return bool(_LOAD_PORT.search(source)) if source else _has_load_port(module, folder)


@lru_cache(maxsize=512)
def _has_load_port(module: str, folder: Path) -> bool:
    paths = (home / f"{module}.sv" for home in (folder, RTL))
    path = next((path for path in paths if path.is_file()), None)
    return path is not None and bool(_LOAD_PORT.search(path.read_text()))
