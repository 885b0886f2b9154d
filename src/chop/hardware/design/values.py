"""Values of an integer graph on wires: a node's codes as a stream, or as numbers that never change.

Operators that only move codes need no circuit: what they do is applied to the places at which the
codes travel.
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
from chop.hardware.design.stream import Stream
from chop.nn.integer import Edge
from chop.nn.integer.mask import KeptKeys

Move = Callable[[Tensor], Tensor]
"""A tensor with its batch to the moved one."""
KEEP_SAMPLES = (
    "; keep the batch as the first dimension, as attention written by linear layers, view, "
    "transpose and scaled_dot_product_attention on (batch, heads, tokens, features) does"
)
KEPT = Edge.of(1.0, 0, 1)
"""Of an attention mask: the numbers 0 and 1."""


@dataclass(frozen=True, eq=False)
class Wire:
    """A stream and the name of its signals.

    Attributes:
        signal: `SIGNAL_data`, `SIGNAL_valid` and `SIGNAL_ready` of the top module.
        stream: what travels.
    """

    signal: str
    stream: Stream

    def unsqueezed(self, dim: int) -> Self:
        """The same with another dimension of one place, `dim` from the end."""
        positions = self.stream.positions.unsqueeze(dim)
        return replace(self, stream=replace(self.stream, positions=positions))


@dataclass(frozen=True, eq=False)
class Fixed:
    """Codes that are known when the circuit is made.

    Attributes:
        codes: int64, with or without a batch.
        edge: what they mean.
    """

    codes: Tensor
    edge: Edge

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        """int64: the codes of one sample, spread to its shape.

        Raises:
            ConfigError: samples differ, or the shapes do not fit.
        """
        batch = self.codes.size(0) if self.codes.dim() == len(shape) + 1 else 1
        try:
            spread = self.codes.expand(batch, *shape)
        except RuntimeError:
            sizes = tuple(self.codes.shape)
            raise ConfigError(f"a constant of shape {sizes} beside samples of {shape}") from None
        if bool((spread != spread[:1]).any()):
            raise ConfigError("a constant that differs between the samples of a batch")
        return spread[0]


@dataclass(frozen=True, eq=False)
class Kept:
    """An attention mask: numbers for the keys of a sample, (1, 1, keys), of which 0 hides one.

    Attributes:
        keys: how they become the mask of each query.
        value: the numbers.
    """

    keys: KeptKeys
    value: Wire | Fixed

    @classmethod
    def of(cls, keys: KeptKeys, value: Wire | None = None) -> Self:
        """A mask of a sample's numbers, (keys,); None where it hides keys of no sample."""
        if value is None:
            return cls(keys, Fixed(torch.ones(1, 1, 1, keys.keys, dtype=torch.int64), KEPT))
        places = value.stream.positions.view(1, 1, -1)
        return cls(keys, Wire(value.signal, replace(value.stream, positions=places)))


def moved(stream: Stream, batch: int, move: Move) -> Tensor:
    """Where the codes of a stream travel, after a layout operator: it may drop or repeat codes.

    Args:
        stream: before it.
        batch: of the graph; its sizes may be written into the operator.
        move: the operator.
    Returns: int64, shape of one sample of the result: places of its elements in the stream.
    Raises:
        ConfigError: it mixes samples.
    """
    starts = torch.arange(batch).view(-1, *[1] * len(stream.shape)) * stream.size
    found = move(stream.positions + starts)
    if not isinstance(found, Tensor):
        raise ConfigError("it gives no tensor")
    if not found.dim() or found.size(0) != batch:
        raise ConfigError(
            f"it does not keep the samples of a batch apart along the first dimension{KEEP_SAMPLES}"
        )
    starts = torch.arange(batch).view(-1, *[1] * (found.dim() - 1)) * stream.size
    if not torch.equal(found - starts, found[:1].expand_as(found)):
        raise ConfigError(f"it moves codes from one sample to another{KEEP_SAMPLES}")
    return found[0]


def joined(first: Stream, second: Stream, dim: int) -> Tensor:
    """Where codes travel when two streams are sent in turn, row by row, in any order of rows.

    Args:
        first: the one that is sent first.
        second: the other.
        dim: along which they are joined, counted from the end.
    Returns: int64, shape of one sample of the result.
    Raises:
        ConfigError: the streams have another order than that of the result.
    """
    outer = torch.Size(first.shape[: len(first.shape) + dim]).numel()
    parts, start, period = [], 0, (first.size + second.size) // outer
    turns = (first.positions // (first.size // outer)).reshape(outer, -1)[:, 0]
    for stream in (first, second):
        own = stream.size // outer
        turn = turns.view(*stream.shape[: len(stream.shape) + dim], *[1] * -dim)
        if bool((stream.positions // own != turn).any()):
            raise ConfigError("what it joins does not travel row by row, in one order of rows")
        parts.append(turn * period + start + stream.positions % own)
        start += own
    return torch.cat(parts, dim)


class Pieces(NamedTuple):
    """Codes that are kept of a stream: pieces of one length at one distance.

    Attributes:
        period: from the first code of a piece to that of the next one.
        first: how many codes are ahead of the first piece.
        size: of a piece.
    """

    period: int
    first: int
    size: int

    @classmethod
    def of(cls, stream: Stream, places: Tensor) -> Pieces:
        """The pieces of the codes at some places, int64.

        Raises:
            ConfigError: pieces differ, or a sample is no whole number of periods.
        """
        kept = places.flatten().sort().values
        first = int(kept[0])
        is_next = kept - first == torch.arange(len(kept))
        size = int(is_next.long().cumprod(0).sum())
        period = stream.size * size // len(kept)
        expected = first + torch.arange(len(kept)) // size * period + torch.arange(len(kept)) % size
        is_whole = len(kept) % size == 0 and stream.size * size % len(kept) == 0
        if not is_whole or not torch.equal(kept, expected):
            raise ConfigError("what it keeps of a stream does not travel in pieces of one length")
        return cls(period, first, size)


def part(stream: Stream, places: Tensor) -> Stream:
    """The stream of the codes at some places, with lanes such that they are whole beats.

    Args:
        stream: it is sent with these lanes, at most as many as it has now.
        places: int64: those that are kept.
    Raises:
        ConfigError: they do not travel in pieces of one length.
    """
    period, first, size = Pieces.of(stream, places)
    lanes = math.gcd(stream.lanes, period, first, size)
    kept = places // period * size + places % period - first
    return replace(stream, positions=kept, lanes=lanes)


def copied(stream: Stream, places: Tensor, run: int) -> Stream:
    """The stream that sends each `run` codes as often as they are among some places.

    Args:
        stream: it is sent with these lanes.
        places: int64, of each element of the result; all of the stream equally often.
        run: codes that are sent again as a whole.
    """
    flat, times = places.flatten(), places.numel() // stream.size
    copy = torch.empty_like(flat)
    copy[flat.argsort(stable=True)] = torch.arange(flat.numel()) % times
    found = (flat // run * times + copy) * run + flat % run
    return replace(stream, positions=found.view(places.shape))


def mover(node: fx.Node, module: nn.Module | None) -> Move:
    """What a layout operator does to the tensor that it reads."""

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
    """Several layout operators, the first one first."""
    return lambda tensor: reduce(lambda found, move: move(found), moves, tensor)
