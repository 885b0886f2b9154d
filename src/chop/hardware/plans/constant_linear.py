"""Plan of linear layers whose weights are all used in every cycle, and hence are constants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from chop.hardware.design.adders import AdderGraph, Node, adder_graph
from chop.hardware.design.plan import ComponentPlan, Resources
from chop.hardware.design.stream import Rows, Stream
from chop.hardware.templates import render
from chop.nn.integer import IntegerLinear

MODULE = "chop_constant_linear"
"""First part of the names of the modules. A digest of the text follows."""
MOST_WEIGHTS = 16_384
"""Maximum number of weights. Adders for more would exceed the known devices."""


class _Source(NamedTuple):
    """Adders, and the SystemVerilog module that implements them."""

    graph: AdderGraph
    module: str
    text: str


def constant_plan(operator: IntegerLinear, read: Stream, rows: Rows) -> ComponentPlan | None:
    """Returns the plan of a layer without multipliers; None if it has too many weights.

    A product by a constant takes fewer lookup tables than the 260 to 540 that known devices have
    for each multiplier: 15 in a 16 x 16 layer of 6 bits, 25 of 8 bits and 83 of 16 bits.
    """
    weight, biases = operator.weight[:, rows.order.argsort()], operator.bias.flatten()
    if weight.numel() > MOST_WEIGHTS:
        return None
    ends, shift = (read.edge.low, read.edge.high), operator.shift
    offset = 0
    if operator.has_signs:
        # A code of 1 or -1 is 1 - 2 s with its sign bit s.
        biases = biases + (weight.sum(1) << shift)
        weight, ends, shift, offset = -weight, (0, 1), shift + 1, read.width - 1
    numbers = tuple(map(tuple, weight.tolist())), tuple(biases.tolist())
    source = _source(ends, *numbers, shift, read.width, offset, operator.out.bits)
    graph, outputs = source.graph, weight.size(0)
    positions = rows.places[..., None] * outputs + torch.arange(outputs)
    return ComponentPlan(
        parameters={},
        lanes=(rows.features,),
        out=Stream(positions, operator.out, outputs),
        cycles=rows.count,
        resources=Resources(
            constants=weight.numel(),
            sums=tuple(graph.adders),
            registers=graph.registers + graph.stages,
        ),
        holds=(1 / rows.count,),
        buffers=(0,),
        latency=graph.stages,
        module=source.module,
        source=source.text,
    )


@lru_cache(maxsize=64)
def _source(
    ends: tuple[int, int],
    weights: Sequence[Sequence[int]],
    biases: Sequence[int],
    shift: int,
    width: int,
    offset: int,
    out_width: int,
) -> _Source:
    """Returns the module of a layer.

    Args:
        ends: smallest and largest value of an input.
        weights: weights of each output.
        biases: bias of each output.
        shift: bits that sums are shifted to the left by.
        width: bits of a code.
        offset: lowest bit of a code that is read.
        out_width: bits of a result.
    """
    inputs = len(weights[0])
    graph = adder_graph([ends] * inputs, weights, biases, shift)
    wires = [*_inputs(graph, width, offset), *_adders(graph)]
    for number, term in enumerate(graph.outputs):
        node = graph.nodes[term.node]
        value = f"{out_width}'({_name(graph, term.node, graph.stages - node.stage + 1)})"
        value += f" << {term.shift}" * bool(term.shift)
        wires.append((f"data_out_0_o[{number * out_width} +: {out_width}]", value))
    values = {
        "inputs": inputs,
        "in_width": width,
        "outputs": len(weights),
        "out_width": out_width,
        "stages": graph.stages,
        "declarations": list(_declarations(graph)),
        "registers": list(_registers(graph)),
        "wires": wires,
        "unused": list(dict.fromkeys(_unused(graph, out_width))),
    }
    text = render("constant_linear.sv", module=MODULE, **values)
    # Layers with equal weights share a module.
    module = f"{MODULE}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return _Source(graph, module, text.replace(f"module {MODULE} ", f"module {module} "))


def _name(graph: AdderGraph, number: int, age: int) -> str:
    """Returns the signal of a node that is delayed by `age` cycles."""
    node = graph.nodes[number]
    if node.kind == "constant":
        sign = "s" if node.is_signed else ""
        return f"{node.width}'{sign}h{node.low & (1 << node.width) - 1:x}"
    return f"n{number}" + (f"_{age}_q" if age else "")


def _declarations(graph: AdderGraph) -> Iterator[str]:
    for number in _signals(graph):
        node, delay = graph.nodes[number], graph.delays[number]
        names = ", ".join(_name(graph, number, age) for age in range(delay + 1))
        yield f"logic {'signed ' * node.is_signed}[{node.width - 1}:0] {names};"


def _signals(graph: AdderGraph) -> list[int]:
    """Returns the nodes that are not constants and that something reads."""
    numbers = range(len(graph.nodes))
    return [k for k in numbers if graph.delays[k] or _is_signal(graph, k)]


def _is_signal(graph: AdderGraph, number: int) -> bool:
    return number in graph.operands and graph.nodes[number].kind != "constant"


def _inputs(graph: AdderGraph, width: int, offset: int) -> Iterator[tuple[str, str]]:
    for number in _signals(graph):
        node = graph.nodes[number]
        if node.kind == "input":
            first = node.first * width + offset
            yield f"n{number}", f"data_in_0_i[{first} +: {node.width}]"


def _adders(graph: AdderGraph) -> Iterator[tuple[str, str]]:
    for number, node in enumerate(graph.nodes):
        if node.is_adder:
            yield f"n{number}", _sum(graph, node)


def _sum(graph: AdderGraph, node: Node) -> str:
    """Returns the expression of an adder."""
    ages = [node.stage - graph.nodes[operand].stage for operand in (node.first, node.second)]
    first, second = (node.first, ages[0]), (node.second, ages[1])
    width, shift = node.width, node.shift
    if node.kind == "reverse":
        shifted = _wide(graph, *second, width) + f" << {shift}" * bool(shift)
        return f"({shifted}) - {_wide(graph, *first, width)}"
    sign, high = "+" if node.kind == "sum" else "-", width - shift
    if not shift:
        return f"{_wide(graph, *first, width)} {sign} {_wide(graph, *second, width)}"
    # The lowest bits of the first operand are those of the sum, or all of them, such as those of
    # 0 << 2 + 0, or of -5 + (1 << 4).
    if high <= 0:
        return _lower(graph, *first, width)
    upper = f"{_upper(graph, *first, shift, high)} {sign} {_wide(graph, *second, high)}"
    return f"{{{upper}, {_lower(graph, *first, shift)}}}"


def _wide(graph: AdderGraph, number: int, age: int, bits: int) -> str:
    """Returns the lowest bits of a node, which is extended if it has fewer."""
    node = graph.nodes[number]
    if node.kind == "constant":
        return f"{bits}'h{node.low & (1 << bits) - 1:x}"
    wide = f"{bits}'({_name(graph, number, age)})"
    # Yosys merges signed sums into compressors, which take more lookup tables than adders.
    return f"$unsigned({wide})" if node.is_signed else wide


def _upper(graph: AdderGraph, number: int, age: int, shift: int, bits: int) -> str:
    """Returns a node without its `shift` lowest bits, in `bits` bits."""
    node, name = graph.nodes[number], _name(graph, number, age)
    if node.kind == "constant":
        return f"{bits}'h{node.low >> shift & (1 << bits) - 1:x}"
    if shift >= node.width:
        return f"{{{bits}{{{name}[{node.width - 1}]}}}}" if node.is_signed else f"{bits}'h0"
    part = f"{name}[{node.width - 1}:{shift}]"
    return f"$unsigned({bits}'($signed({part})))" if node.is_signed else f"{bits}'({part})"


def _lower(graph: AdderGraph, number: int, age: int, bits: int) -> str:
    """Returns the lowest bits of a node."""
    node = graph.nodes[number]
    if node.kind == "constant" or bits >= node.width:
        return _wide(graph, number, age, bits)
    return f"{_name(graph, number, age)}[{bits - 1}:0]"


def _unused(graph: AdderGraph, out_width: int) -> Iterator[str]:
    """Yields signals whose highest bits a reader may not need, because they equal its sign."""
    for term in graph.outputs:
        node = graph.nodes[term.node]
        if node.width + term.shift > out_width and node.kind != "constant":
            yield _name(graph, term.node, graph.stages - node.stage + 1)
    for node in graph.nodes:
        if node.is_adder:
            for number, bits in ((node.first, node.width), (node.second, node.width - node.shift)):
                operand = graph.nodes[number]
                if operand.width > bits and operand.kind != "constant":
                    yield _name(graph, number, node.stage - operand.stage)


def _registers(graph: AdderGraph) -> Iterator[tuple[str, str]]:
    for number, delay in enumerate(graph.delays):
        for age in range(delay):
            yield _name(graph, number, age + 1), _name(graph, number, age)
