"""Circuits of constants, concatenations, selections and copies."""

import pytest
import torch

from chop.errors import ConfigError
from chop.hardware.design.emit import emit
from chop.hardware.design.plan import NO_LOAD, RTL, has_load_port
from chop.hardware.design.port import Port
from chop.hardware.design.stream import Stream
from chop.hardware.plans.order import concat_plan, constant_plan, copies_plan, select_plan
from chop.nn.integer import Edge
from tests.hardware.bench import Driven, check_interval, check_module, drawn, needs_tools

pytestmark = needs_tools
EDGE = Edge.of(0.5, -100, 90)


def run(module, plan, inputs, expected, folder=RTL):
    """Asserts that a planned circuit turns codes into the expected ones, in its time.

    Args:
        module: its name.
        plan: of the circuit.
        inputs: what is sent.
        expected: what has to leave.
        folder: of the module, where it is not that of the library.
    """
    sent = {}
    for k, (given, lanes) in enumerate(zip(inputs, plan.lanes, strict=True)):
        stream = given.stream.with_lanes(lanes)
        sent[Port.of(f"data_in_{k}", stream, True)] = stream.sent(given.codes)
    assert expected.shape[1:] == plan.out.shape
    sent[Port.of("data_out_0", plan.out, False)] = plan.out.sent(expected)
    files = {key: f"memory/{key.lower()}.hex" for key in plan.memories}
    memories = {files[key]: memory for key, memory in plan.memories.items()}
    tied = NO_LOAD if has_load_port(module) else {}
    parameters = {**plan.parameters, **files}
    runs = check_module(module, parameters, sent, memories, folder=folder, tied=tied)
    check_interval(runs["none"].ends["data_out_0"], plan.cycles)


@pytest.mark.parametrize(
    ("shape", "lanes"),
    [((17, 12), 1), ((17, 12), 12), ((10,), 5), ((1,), 1), ((3, 5), 3), ((2, 3, 7), 2)],
)
@pytest.mark.sampled(1)
def test_constant(shape, lanes):
    stream = Stream.in_order(shape, EDGE, lanes)
    codes = drawn(EDGE, *shape, samples=1).codes
    run("chop_constant", constant_plan(codes[0], stream), (), codes.expand(4, *shape))


def test_constant_in_another_order():
    codes = drawn(EDGE, 6, 2, samples=1).codes
    stream = Stream(torch.arange(12).view(2, 6).T, EDGE, 3)
    run("chop_constant", constant_plan(codes[0], stream), (), codes.expand(4, 6, 2))


@pytest.mark.parametrize(
    ("shapes", "dim", "lanes"),
    [
        (((17, 12), (17, 4)), -1, (4, 2)),
        (((1, 12), (16, 12)), -2, (3, 12)),
        (((10,), (3,)), -1, (1, 1)),
        (((2, 3, 4), (2, 1, 4)), -2, (4, 2)),
        (((1,), (1,)), -1, (1, 1)),
        (((3, 8), (3, 8)), -1, (8, 8)),
    ],
)
@pytest.mark.sampled(1)
def test_concatenation(shapes, dim, lanes):
    a = drawn(EDGE, *shapes[0], lanes=lanes[0])
    b = drawn(Edge.of(0.5, -7, 300), *shapes[1], seed=1, lanes=lanes[1])
    plan = concat_plan(a.stream, b.stream, dim)
    run("chop_concat", plan, (a, b), torch.cat((a.codes, b.codes), dim))


@pytest.mark.parametrize(
    ("shape", "index", "lanes"),
    [
        ((17, 12), (0,), 4),
        ((17, 12), (16,), 1),
        ((10,), (slice(2, 3),), 5),
        ((5, 7), (slice(1, 4),), 35),
        ((1,), (0,), 1),
        ((9, 6), (slice(2, 5),), 3),
    ],
)
@pytest.mark.sampled(1)
def test_selection(shape, index, lanes):
    given = drawn(EDGE, *shape, lanes=lanes)
    plan = select_plan(given.stream, given.stream.positions[index])
    run("chop_select", plan, (given,), given.codes[(slice(None), *index)])


@pytest.mark.parametrize(
    ("period", "first", "last"), [(12, 3, 8), (3, 0, 0), (3, 2, 2), (4, 0, 3), (5, 1, 3)]
)
@pytest.mark.sampled(1)
def test_selection_in_every_period(period, first, last):
    codes = drawn(EDGE, 6, period, 2).codes
    kept = codes[:, :, first : last + 1]
    ports = {
        Port("data_in_0", 2, 8, 6 * period, True): codes.reshape(-1, 2),
        Port("data_out_0", 2, 8, 6 * kept.size(2), False): kept.reshape(-1, 2),
    }
    parameters = {"W": 16, "PERIOD": period, "FIRST": first, "LAST": last}
    runs = check_module("chop_select", parameters, ports)
    check_interval(runs["none"].ends["data_out_0"], 6 * period)


def by_head(heads, rows, size, lanes, **more):
    """Codes (heads, rows, size) that travel row by row, each head by head."""
    places = torch.arange(heads * rows * size).view(rows, heads, size).transpose(0, 1)
    return drawn(EDGE, heads, rows, size, lanes=lanes, positions=places, **more)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kept", "lanes"), [(slice(3), 1), (slice(2, 6), 2), (slice(5, 6), 2)])
def test_halves_of_heads_are_selected_and_joined(kept, lanes):
    """As rotary embeddings do: pieces of each head in turn, whose rows have another order."""
    given = by_head(3, 5, 6, lanes)
    plan = select_plan(given.stream, given.stream.positions[..., kept])
    run("chop_select", plan, (given,), given.codes[..., kept])
    assert plan.out.beats * plan.parameters["PERIOD"] == plan.cycles * (
        plan.parameters["LAST"] - plan.parameters["FIRST"] + 1
    )
    other = by_head(3, 5, 4, 1, seed=1)
    part = Driven(plan.out, given.codes[..., kept])
    joined = concat_plan(part.stream, other.stream, -1)
    run("chop_concat", joined, (part, other), torch.cat((part.codes, other.codes), -1))


@pytest.mark.parametrize(
    ("heads", "rows", "size", "times", "lanes", "fold"),
    [(2, 3, 6, 2, 1, 99), (1, 4, 5, 3, 5, 99), (3, 2, 4, 4, 2, 24), (2, 2, 1, 2, 1, 99)],
)
@pytest.mark.sampled(1)
def test_copies_of_heads(heads, rows, size, times, lanes, fold):
    given = by_head(heads, rows, size, lanes)

    def repeated(x):
        return x.unsqueeze(-3).expand(*x.shape[:-2], times, -1, -1)

    plan = copies_plan(given.stream, repeated(given.stream.positions), fold)
    assert plan.cycles <= fold
    run("chop_copies", plan, (given,), repeated(given.codes))
    heads_in_turn = torch.arange(heads * times).view(heads, times)
    found = plan.out.positions[:, :, 0, 0] // size
    assert torch.equal(found, heads_in_turn)


def test_codes_that_are_kept_or_repeated_otherwise_are_refused():
    stream = Stream.in_order((4, 6), EDGE)
    with pytest.raises(ConfigError, match="not segments of one length"):
        select_plan(stream, stream.positions.flatten()[[0, 1, 2, 7, 8]])
    with pytest.raises(ConfigError, match="repeats some codes more often than others"):
        copies_plan(stream, torch.cat((stream.positions, stream.positions[:1])), 99)


@pytest.mark.parametrize(
    "other",
    [
        Edge.of(0.25, -8, 7),
        Edge.of(0.5, -8, 7, divisor=3),
        Edge(torch.tensor([0.5, 0.25], dtype=torch.float64), -1, -8, 7),
    ],
    ids=("step", "divisor", "channels"),
)
def test_streams_of_other_steps_are_not_joined(other):
    streams = [Stream.in_order((3, 2), edge) for edge in (Edge.of(0.5, -8, 7), other)]
    for first, second in (streams, streams[::-1]):
        with pytest.raises(ConfigError, match="inputs have different steps"):
            concat_plan(first, second, -1)


def test_a_fold_below_0_is_refused_wherever_it_comes_from():
    with pytest.raises(ConfigError, match="fold: expected 0 or more cycles, got -1"):
        emit(None, -1)
