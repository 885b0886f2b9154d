"""Values of an integer graph in a circuit: streams of a node's codes, or constants.

Operators that only move codes need no circuit. Their effect is applied to the stream positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.hardware.design.stream import OrderError, Stream
from chop.nn.integer import Edge
from chop.nn.integer.mask import KeptKeys

Move = Callable[[Tensor], Tensor]
"""Moves the elements of a tensor with a batch dimension."""
KEEP_SAMPLES = (
    "; the batch is the first dimension of inputs, and views and permutations may move it only as "
    "a whole, such as x.transpose(0, 1) ahead of an nn.MultiheadAttention with batch_first=False"
)
PROBED_SAMPLES = 2
"""Samples of a probe of an operator."""
MASK_EDGE = Edge.of(1.0, 0, 1)
"""Range of an attention mask: 0 and 1."""


@dataclass(frozen=True, eq=False)
class Wire:
    """A stream and its signal name.

    Attributes:
        signal: `SIGNAL_data`, `SIGNAL_valid` and `SIGNAL_ready` of the top module.
        stream: the stream.
        batch_dim: dimension of the batch in the graph's tensor, which the stream's shape omits.
    """

    signal: str
    stream: Stream
    batch_dim: int = 0

    def unsqueezed(self, dim: int) -> Self:
        """Returns the wire with an added dimension of size one, `dim` counted from the end."""
        positions = self.stream.positions.unsqueeze(dim)
        return replace(self, stream=replace(self.stream, positions=positions))

    def permuted(self, dims: Sequence[int]) -> Self:
        """Returns the wire with its dimensions in another order, as `torch.permute`."""
        positions = self.stream.positions.permute(tuple(dims))
        return replace(self, stream=replace(self.stream, positions=positions))


@dataclass(frozen=True, eq=False)
class Fixed:
    """Constant codes.

    Attributes:
        codes: int64, with or without a batch.
        edge: meaning of the codes.
        is_loadable: True if the codes are written at run time.
    """

    codes: Tensor
    edge: Edge
    is_loadable: bool = False

    def unsqueezed(self, rank: int) -> Self:
        """Returns the constant with dimensions of size one ahead, up to a rank."""
        ones = [1] * (rank - self.codes.dim())
        return replace(self, codes=self.codes.view(*ones, *self.codes.shape))

    def sample(self, shape: tuple[int, ...], batch_dim: int = 0) -> Tensor:
        """Returns the codes of one sample, int64, expanded to its shape.

        Args:
            shape: shape of a sample.
            batch_dim: dimension of the batch in the tensors that the codes broadcast to.
        Raises:
            ConfigError: if samples differ, or the shapes do not fit.
        """
        codes = self.unsqueezed(len(shape) + 1).codes.movedim(batch_dim, 0)
        try:
            spread = codes.expand(-1, *shape)
        except RuntimeError:
            sizes = tuple(self.codes.shape)
            raise ConfigError(
                f"a constant of shape {sizes} does not fit samples of {shape}"
            ) from None
        if bool((spread != spread[:1]).any()):
            raise ConfigError("a constant differs between the samples of a batch")
        return spread[0]


@dataclass(frozen=True, eq=False)
class Mask:
    """An attention mask of a sample's keys, (1, 1, keys), in which 0 hides a key.

    Attributes:
        keys: operator that expands it to the mask of each query.
        value: the mask stream; None if the mask does not depend on inputs.
    """

    keys: KeptKeys
    value: Wire | Fixed

    @classmethod
    def of(cls, keys: KeptKeys, value: Wire | None = None) -> Self:
        """Returns the mask of a sample's keys, (keys,); it is constant if `value` is None."""
        if value is None:
            return cls(keys, Fixed(torch.ones(1, 1, 1, keys.keys, dtype=torch.int64), MASK_EDGE))
        places = value.stream.positions.view(1, 1, -1)
        return cls(keys, replace(value, stream=replace(value.stream, positions=places)))


def moved(wire: Wire, batch: int, move: Move) -> tuple[Tensor, int]:
    """Returns the stream positions after a layout operator, which may drop or repeat codes.

    Args:
        wire: input.
        batch: batch size of the graph, since the operator may contain fixed sizes.
        move: the operator.
    Returns: stream positions of the elements of one result sample, int64; dimension of the batch.
    Raises:
        ConfigError: if it mixes samples.
    """
    # Every code of the batch has its own number, which reveals codes that change their sample.
    starts = torch.arange(batch) * wire.stream.size
    numbers = wire.stream.positions.unsqueeze(-1) + starts
    result = move(numbers.movedim(-1, wire.batch_dim).contiguous())
    if not isinstance(result, Tensor):
        raise ConfigError("it does not return a tensor")
    # A batch of one sample may be any dimension of size one.
    for dim in (dim for dim in range(result.dim()) if result.size(dim) == batch):
        own = result.movedim(dim, -1) - starts
        if torch.equal(own, own[..., :1].expand_as(own)):
            return own[..., 0], dim
    raise ConfigError(f"it does not keep the samples of a batch apart{KEEP_SAMPLES}")


def common_batch_dim(wires: Sequence[Wire]) -> int:
    """Returns the batch dimension of inputs, 0 without inputs.

    Raises:
        ConfigError: if it differs.
    """
    dims = {wire.batch_dim for wire in wires} or {0}
    if len(dims) > 1:
        listed = " and ".join(map(str, sorted(dims)))
        raise ConfigError(
            f"its inputs have the batch in dimensions {listed}, so that it mixes samples; "
            "transpose one of them in the model, or use nn.MultiheadAttention with batch_first=True"
        )
    return dims.pop()


def computes_by_sample(operator: nn.Module, wires: Sequence[Wire]) -> bool:
    """Returns whether a probe has the same result with the batch as the first dimension."""
    dim, generator = common_batch_dim(wires), torch.Generator().manual_seed(0)
    probes = [
        torch.randint(
            wire.stream.edge.low,
            wire.stream.edge.high + 1,
            (PROBED_SAMPLES, *wire.stream.shape),
            generator=generator,
        )
        for wire in wires
    ]
    try:
        expected = operator(*probes).movedim(0, dim)
        return torch.equal(operator(*(probe.movedim(0, dim) for probe in probes)), expected)
    except (RuntimeError, IndexError):  # sizes that do not fit, or a dimension fewer
        return False


def joined(first: Stream, second: Stream, dim: int) -> Tensor:
    """Returns the stream positions after concatenation of two streams, row by row in any row order.

    Args:
        first: stream that is sent first.
        second: the other stream.
        dim: dimension of the concatenation, counted from the end.
    Returns: int64, shape of one result sample.
    Raises:
        OrderError: if the streams' order differs from that of the result.
    """
    outer = torch.Size(first.shape[: len(first.shape) + dim]).numel()
    parts, start, period = [], 0, (first.size + second.size) // outer
    # Transfer order of the outer rows, which both inputs have to share.
    turns = (first.positions // (first.size // outer)).reshape(outer, -1)[:, 0]
    for stream in (first, second):
        own = stream.size // outer
        turn = turns.view(*stream.shape[: len(stream.shape) + dim], *[1] * -dim)
        if bool((stream.positions // own != turn).any()):
            raise OrderError("its inputs are not sent row by row in the same order of rows", {})
        parts.append(turn * period + start + stream.positions % own)
        start += own
    return torch.cat(parts, dim)


class Pieces(NamedTuple):
    """Selected codes of a stream: segments of equal length at equal distance.

    Attributes:
        period: distance between the starts of two segments, in codes.
        first: codes ahead of the first segment.
        size: codes of a segment.
    """

    period: int
    first: int
    size: int

    @classmethod
    def of(cls, stream: Stream, places: Tensor) -> Pieces:
        """Returns the segments that cover the positions, int64.

        Raises:
            ConfigError: if segments differ, or a sample is not a whole number of periods.
        """
        selected = places.flatten().sort().values
        first = int(selected[0])
        is_next = selected - first == torch.arange(len(selected))
        # The product of ones ends at the first gap, so the sum is the length of the first segment.
        size = int(is_next.long().cumprod(0).sum())
        period = stream.size * size // len(selected)
        expected = (
            first
            + torch.arange(len(selected)) // size * period
            + torch.arange(len(selected)) % size
        )
        is_whole = len(selected) % size == 0 and stream.size * size % len(selected) == 0
        if not is_whole or not torch.equal(selected, expected):
            raise ConfigError(
                "it selects elements that are not segments of one length in the stream"
            )
        return cls(period, first, size)


def part(stream: Stream, places: Tensor) -> Stream:
    """Returns the stream of the codes at some positions, with lanes that form whole beats.

    Args:
        stream: input stream; it is sent with these lanes, at most its present ones.
        places: int64 selected positions.
    Raises:
        ConfigError: if they do not form segments of one length.
    """
    period, first, size = Pieces.of(stream, places)
    # With these lanes a beat has only selected codes, or none.
    lanes = math.gcd(stream.lanes, period, first, size)
    positions = places // period * size + places % period - first
    return replace(stream, positions=positions, lanes=lanes)


def copied(stream: Stream, places: Tensor, run: int) -> Stream:
    """Returns the stream that repeats each run of `run` codes.

    Args:
        stream: input stream; it is sent with the same lanes.
        places: int64 position in the stream of each result element; all occur equally often.
        run: codes that are repeated together.
    """
    flat, times = places.flatten(), places.numel() // stream.size
    copy = torch.empty_like(flat)
    # The stable sort puts the copies of a code side by side in the order of the result, which
    # numbers them.
    copy[flat.argsort(stable=True)] = torch.arange(flat.numel()) % times
    positions = (flat // run * times + copy) * run + flat % run
    return replace(stream, positions=positions.view(places.shape))


def mover(node: fx.Node, module: nn.Module | None) -> Move:
    """Returns the tensor function of a layout operator."""

    def move(tensor: Tensor) -> Tensor:
        args = fx.node.map_arg(node.args, lambda _: tensor)
        kwargs = fx.node.map_arg(node.kwargs, lambda _: tensor)
        target: Any = module if module is not None else node.target
        if node.op == "call_method":
            target = getattr(Tensor, str(node.target))
        result: Tensor = target(*args, **kwargs)
        return result

    return move


def in_turn(moves: Sequence[Move]) -> Move:
    """Composes several layout operators, the first one first."""
    return lambda tensor: reduce(lambda moved, move: move(moved), moves, tensor)
