"""Sums of constant multiples of inputs as a graph of adders: no multiplier, and shared multiples.

The multiples of an input that several outputs need are computed once, from canonical signed digits
(Reitwiesner, "Binary arithmetic", Advances in Computers 1, 1960): digits -1, 0 and 1 with the
fewest nonzero ones. A multiplication by a power of two is a wire.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Literal, NamedTuple

LEVELS = 2
"""Adders between two registers: two of about 12 bits take less than 5 ns on ECP5."""
Kind = Literal["input", "constant", "sum", "difference", "reverse"]


class Node(NamedTuple):
    """Integer of a graph.

    Attributes:
        kind: an input, a constant, `first` + (`second` << `shift`), the difference of both, or the
            reverse difference.
        low: smallest value.
        high: largest value.
        level: adders on the longest path from an input.
        first: number of the first operand; of an input, its number.
        second: number of the second operand.
        shift: bits that the second operand is shifted by.
    """

    kind: Kind
    low: int
    high: int
    level: int = 0
    first: int = 0
    second: int = 0
    shift: int = 0

    @property
    def is_signed(self) -> bool:
        """Returns whether it may be negative."""
        return self.low < 0

    @property
    def width(self) -> int:
        """Bits, without a sign bit if it is never negative."""
        magnitudes = (self.high, ~self.low if self.is_signed else 0)
        return max(1, max(number.bit_length() for number in magnitudes) + self.is_signed)

    @property
    def is_adder(self) -> bool:
        """Returns whether it is computed from other nodes."""
        return self.kind not in ("input", "constant")

    @property
    def stage(self) -> int:
        """Number of the pipeline stage that computes it, from 1."""
        return max(-(-self.level // LEVELS), 1)


class Term(NamedTuple):
    """Multiple of a node: (-1 if `is_negative` else 1) * node << `shift`."""

    node: int
    shift: int = 0
    is_negative: bool = False

    def times(self, shift: int, is_negative: bool) -> Term:
        """Returns the term shifted further, and negated if `is_negative`."""
        return Term(self.node, self.shift + shift, self.is_negative != is_negative)


@dataclass(frozen=True, eq=False)
class AdderGraph:
    """Outputs (sum over i of x[i] w[o, i]) 2^s + b[o] as adders.

    Attributes:
        nodes: integers, operands before their readers; inputs first.
        outputs: for each output a positive term, or None for 0.
    """

    nodes: Sequence[Node]
    outputs: Sequence[Term]

    @cached_property
    def stages(self) -> int:
        """Cycles from the inputs to the outputs."""
        return max(self.nodes[term.node].stage for term in self.outputs)

    @cached_property
    def operands(self) -> frozenset[int]:
        """Nodes that adders read."""
        adders = [node for node in self.nodes if node.is_adder]
        return frozenset(number for node in adders for number in (node.first, node.second))

    @cached_property
    def delays(self) -> Sequence[int]:
        """Registers behind each node, as many as its last reader needs; 0 for constants."""
        delays = [0] * len(self.nodes)
        for node in self.nodes:
            for operand in (node.first, node.second) if node.is_adder else ():
                delays[operand] = max(delays[operand], node.stage - self.nodes[operand].stage)
        for term in self.outputs:
            behind = self.stages - self.nodes[term.node].stage + 1
            delays[term.node] = max(delays[term.node], behind)
        return [
            0 if node.kind == "constant" else delay
            for node, delay in zip(self.nodes, delays, strict=True)
        ]

    @property
    def adders(self) -> Iterator[int]:
        """Bits of each adder. Lower bits of a sum are wires where the second operand is shifted."""
        for node in self.nodes:
            if node.is_adder:
                first = self.nodes[node.first]
                is_free = node.kind == "sum" and not first.is_signed and first.width <= node.shift
                own = node.width - node.shift * (node.kind != "reverse")
                yield 0 if is_free else max(own, 0)

    @property
    def registers(self) -> int:
        """Bits of all registers."""
        return sum(n.width * delay for n, delay in zip(self.nodes, self.delays, strict=True))


def adder_graph(
    ranges: Sequence[tuple[int, int]],
    weights: Sequence[Sequence[int]],
    biases: Sequence[int],
    shift: int = 0,
) -> AdderGraph:
    """Builds the graph of a matrix-vector product with constant weights.

    Args:
        ranges: smallest and largest value of each input.
        weights: weights of each output.
        biases: bias of each output.
        shift: bits that sums are shifted to the left by, before the bias is added.
    """
    builder = _Builder([Node("input", *ends, first=k) for k, ends in enumerate(ranges)])
    columns = [builder.multiples(k, {abs(row[k]) for row in weights}) for k in range(len(ranges))]
    # Pairs of the same inputs recur in several outputs if there are few different weights.
    is_aligned = all(abs(weight) <= 1 for row in weights for weight in row)
    every = []
    for row, bias in zip(weights, biases, strict=True):
        terms = {
            k: columns[k][abs(weight)].times(shift, weight < 0)
            for k, weight in enumerate(row)
            if weight
        }
        summands = builder.aligned(terms) if is_aligned else list(terms.values())
        every.append([*summands, *builder.constant(bias)])
    # Splitting a multiple costs an adder, so it is only worth it for a whole stage.
    levels = max(-(-builder.fewest_levels(terms) // LEVELS) * LEVELS for terms in every)
    outputs = [builder.total(builder.within(terms, levels)) for terms in every]
    return _without_unused(AdderGraph(builder.nodes, outputs))


def signed_digits(number: int) -> list[Term]:
    """Returns the canonical signed digits of a positive number, as terms of node 0.

    >>> [(1 << d.shift) * (-1 if d.is_negative else 1) for d in signed_digits(23)]
    [-1, -8, 32]
    """
    digits, place = [], 0
    while number:
        if number & 1:
            # Two lowest bits of 11 are replaced by -1 and a carry.
            is_negative = number & 3 == 3
            digits.append(Term(0, place, is_negative))
            number += 1 if is_negative else -1
        number >>= 1
        place += 1
    return digits


def split_odd(number: int) -> tuple[int, int]:
    """Returns the odd part of a positive number and its trailing zeros.

    >>> split_odd(12), split_odd(7)
    ((3, 2), (7, 0))
    """
    shift = (number & -number).bit_length() - 1
    return number >> shift, shift


def _without_unused(graph: AdderGraph) -> AdderGraph:
    """Returns the graph without adders and constants that nothing reads."""
    is_read = [node.kind == "input" for node in graph.nodes]
    for term in graph.outputs:
        is_read[term.node] = True
    for number in reversed(range(len(graph.nodes))):
        node = graph.nodes[number]
        if is_read[number] and node.is_adder:
            is_read[node.first] = is_read[node.second] = True
    numbers = dict(zip((n for n, is_used in enumerate(is_read) if is_used), count()))
    nodes = [
        node._replace(first=numbers[node.first], second=numbers[node.second])
        if node.is_adder
        else node
        for node in (graph.nodes[number] for number in numbers)
    ]
    return AdderGraph(nodes, [term._replace(node=numbers[term.node]) for term in graph.outputs])


@dataclass(eq=False)
class _Builder:
    nodes: list[Node]
    known: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """Returns the number of a node, which is added if there is none like it."""
        if node not in self.known:
            self.known[node] = len(self.nodes)
            self.nodes.append(node)
        return self.known[node]

    def constant(self, number: int) -> list[Term]:
        """Returns the term of a constant; none for 0."""
        if not number:
            return []
        odd, shift = split_odd(abs(number))
        return [Term(self.add(Node("constant", odd, odd)), shift, number < 0)]

    def multiples(self, k: int, needed: set[int]) -> dict[int, Term]:
        """Returns multiples of input `k`, with as few adders as a greedy search finds."""
        known = {1: Term(k)}
        waiting = sorted({split_odd(m)[0] for m in needed if m}, key=_effort)
        for odd in waiting:
            self._multiple(k, odd, known)
        parts = {m: split_odd(m) for m in needed if m}
        return {m: known[odd].times(shift, False) for m, (odd, shift) in parts.items()}

    def _multiple(self, k: int, odd: int, known: dict[int, Term]) -> None:
        """Adds an odd multiple to the known ones, and those that it is made of."""
        if odd in known:
            return
        digits = signed_digits(odd)
        pair = _pair(odd, known, (len(digits) - 1).bit_length() - 1, self.nodes)
        if pair is None:
            # Halves of the digits, the lower one with as many as a full tree of adders takes.
            half = 1 << (len(digits) - 1).bit_length() - 1
            sums = [_value(digits[:half]), _value(digits[half:])]
            for number in sums:
                self._multiple(k, split_odd(abs(number))[0], known)
            pair = sums[0], sums[1]
        first, second = (_times(known, number) for number in pair)
        # Two multiples of one input do not reach their extremes independently.
        ends = odd * self.nodes[k].low, odd * self.nodes[k].high
        known[odd] = self.sum(first, second, is_last=True, ends=ends)

    def fewest_levels(self, terms: Sequence[Term]) -> int:
        """Returns the levels of a sum of terms if multiples with unused levels are split."""
        return (sum(map(self._leaves, terms)) - 1).bit_length() if terms else 0

    def within(self, terms: Sequence[Term], levels: int) -> list[Term]:
        """Returns terms whose sum takes at most `levels`; multiples are split where necessary."""
        summands, room = [], 1 << levels
        room -= sum(1 << self.nodes[term.node].level for term in terms)
        for term in terms:
            spare = (1 << self.nodes[term.node].level) - self._leaves(term)
            if room < 0 and spare:
                summands += self._operands(term)
                room += spare
            else:
                summands.append(term)
        return summands

    def _operands(self, term: Term) -> list[Term]:
        """Returns the terms that an adder sums."""
        node = self.nodes[term.node]
        first = Term(node.first, 0, node.kind == "reverse")
        second = Term(node.second, node.shift, node.kind == "difference")
        return [each.times(term.shift, term.is_negative) for each in (first, second)]

    def _leaves(self, term: Term) -> int:
        """Returns the leaves of a full tree of adders that a term takes if it may be split."""
        node = self.nodes[term.node]
        if not node.is_adder:
            return 1
        whole = 1 << node.level
        return min(whole, sum(1 << self.nodes[each.node].level for each in self._operands(term)))

    def aligned(self, terms: dict[int, Term]) -> list[Term]:
        """Sums terms in pairs of neighboring inputs, of pairs, and so on."""
        while len(terms) > 1:
            pairs: dict[int, Term] = {}
            for k, term in terms.items():
                pairs[k // 2] = self.sum(pairs[k // 2], term) if k // 2 in pairs else term
            terms = pairs
        return list(terms.values())

    def total(self, terms: Sequence[Term]) -> Term:
        """Sums terms with the fewest levels, always the two of the lowest levels."""
        if not terms:
            return Term(self.add(Node("constant", 0, 0)))
        heap = [(self.nodes[term.node].level, k, term) for k, term in enumerate(terms)]
        heapq.heapify(heap)
        number = len(heap)
        while len(heap) > 1:
            (_, _, first), (_, _, second) = heapq.heappop(heap), heapq.heappop(heap)
            term = self.sum(first, second, is_last=not heap)
            number += 1
            heapq.heappush(heap, (self.nodes[term.node].level, number, term))
        term = heap[0][2]
        return self._negated(term) if term.is_negative else term

    def _negated(self, term: Term) -> Term:
        """Returns the positive form of a negated term, from the operands of its node if it can."""
        number = self._opposite(term.node)
        if number is None:
            node = self.nodes[term.node]
            zero = self.add(Node("constant", 0, 0))
            opposite = Node("reverse", -node.high, -node.low, node.level + 1, term.node, zero)
            number = self.add(opposite)
        return Term(number, term.shift)

    def _opposite(self, number: int) -> int | None:
        """Returns a node with the negated value and the same level; None if there is none."""
        node = self.nodes[number]
        turned = node._replace(low=-node.high, high=-node.low)
        if node.kind == "constant":
            return self.add(turned)
        if node.kind in ("difference", "reverse"):
            kind: Kind = "reverse" if node.kind == "difference" else "difference"
            return self.add(turned._replace(kind=kind))
        if node.kind == "sum" and (first := self._opposite(node.first)) is not None:
            return self.add(turned._replace(kind="difference", first=first))
        if node.kind == "sum" and (second := self._opposite(node.second)) is not None:
            return self.add(turned._replace(kind="reverse", second=second))
        return None

    def sum(
        self,
        a: Term,
        b: Term,
        is_last: bool = False,
        ends: tuple[int, int] | None = None,
    ) -> Term:
        """Adds two terms.

        Args:
            a: a term.
            b: another one.
            is_last: the sum should not be negated, also if this takes a wider adder.
            ends: range of the sum. Default: both terms are independent.
        """
        # Low bits of the term with the smaller shift are those of the sum.
        a, b = sorted((a, b), key=lambda term: (term.shift, term.node))
        first, second, shift = self.nodes[a.node], self.nodes[b.node], b.shift - a.shift
        is_reverse = is_last and a.is_negative and not b.is_negative
        kind: Kind = "sum" if a.is_negative == b.is_negative else "difference"
        low, high = second.low << shift, second.high << shift
        if is_reverse:
            kind, low, high = "reverse", low - first.high, high - first.low
        elif kind == "sum":
            low, high = first.low + low, first.high + high
        else:
            low, high = first.low - high, first.high - low
        is_negative = a.is_negative and not is_reverse
        if ends is not None:
            low, high = ends if not is_negative else (-ends[1], -ends[0])
            low, high = low >> a.shift, high >> a.shift
        level = max(first.level, second.level) + 1
        number = self.add(Node(kind, low, high, level, a.node, b.node, shift))
        return Term(number, a.shift, is_negative)


def _times(known: dict[int, Term], number: int) -> Term:
    """Returns a multiple, whose odd part is known."""
    odd, shift = split_odd(abs(number))
    return known[odd].times(shift, number < 0)


def _value(digits: Sequence[Term]) -> int:
    return sum((-1 if d.is_negative else 1) << d.shift for d in digits)


def _effort(odd: int) -> tuple[int, int]:
    return len(signed_digits(odd)), odd


def _pair(
    odd: int, known: dict[int, Term], level: int, nodes: Sequence[Node]
) -> tuple[int, int] | None:
    """Returns two known multiples, shifted or negated, that add to `odd`; None if there are none.

    Args:
        odd: wanted multiple.
        known: known odd multiples.
        level: maximum adders on the path to both.
        nodes: nodes of the graph.
    """
    usable = [m for m, term in known.items() if nodes[term.node].level <= level]
    for m in usable:
        for shift in range(odd.bit_length() + 1):
            for number in (m << shift, -(m << shift)):
                rest = odd - number
                if rest and split_odd(abs(rest))[0] in usable:
                    return number, rest
    return None
