"""Streams in another order: counters of addresses, and the circuit, against numpy."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chop.errors import ConfigError
from chop.hardware.design.plan import RTL
from chop.hardware.design.stream import Stream
from chop.hardware.plans.reorder import ZERO, Loops, reorder_plan
from chop.nn.integer import Call, Edge, IntegerInterpolate, IntegerOptions, IntegerPad
from tests.hardware.bench import check, drawn, needs_tools
from tests.hardware.design.test_order import run
from tests.hardware.design.test_pool import image
from tests.hardware.own_bench import passes_own_bench

EDGE = Edge.of(0.5, -100, 90)
IMAGE = np.arange(5 * 4 * 3).reshape(5, 4, 3)
ORDERS = {
    "permuted": IMAGE.transpose(2, 0, 1),
    "transposed": IMAGE.transpose(1, 0, 2),
    "upsampled": IMAGE.repeat(2, 0).repeat(2, 1),
    "padded": np.pad(IMAGE, ((1, 2), (0, 1), (0, 0)), constant_values=ZERO),
    "part": IMAGE[:, 1:3, 1],
    "broadcast": np.broadcast_to(np.arange(60), (3, 60)),
    "one": np.zeros(1, np.int64),
}


def visited(loops):
    """The addresses of nested loops, one by one, as a program would run them."""
    found = [(loops.base, True)]
    for loop in loops.loops[::-1]:
        found = [
            (address + k * loop.step, inside and loop.first <= k <= loop.last)
            for address, inside in found
            for k in range(loop.count)
        ]
    return [address if inside else ZERO for address, inside in found]


@pytest.mark.parametrize("name", ORDERS)
def test_counters_visit_the_addresses(name):
    order = torch.from_numpy(ORDERS[name].copy()).flatten()
    assert visited(Loops.of(order)) == order.tolist()


def test_an_order_without_loops_is_refused():
    with pytest.raises(ConfigError, match="no nest of 6 loops"):
        Loops.of(torch.tensor([0, 3, 1, 2, 4, 6, 5]))


def test_frames_are_as_small_as_the_order_allows():
    rows = Stream.in_order((6, 4), EDGE, 4)
    places = rows.positions.view(6, 2, 2).transpose(1, 2).flatten(1)
    plan = reorder_plan(rows, places, rows.positions, 24)
    assert (plan.parameters["WORDS"], plan.cycles) == (4, 24)
    whole = reorder_plan(rows, rows.positions.T, torch.arange(24).view(4, 6), 24)
    assert whole.parameters["WORDS"] == 24
    assert whole.resources.memory_bits == 2 * 24 * 8


@pytest.mark.parametrize(
    ("name", "lanes"), [("permuted", 1), ("padded", 3), ("transposed", 3), ("part", 1)]
)
@needs_tools
@pytest.mark.sampled(1)
def test_the_circuit_sends_the_order(name, lanes):
    given = drawn(EDGE, 5, 4, 3, lanes=lanes)
    places = torch.from_numpy(ORDERS[name].copy())
    wanted = torch.arange(places.numel()).view(places.shape)
    plan = reorder_plan(given.stream, places, wanted, 20)
    assert plan.out.lanes == lanes
    flat = F.pad(given.codes.flatten(1), (0, 1))
    run("chop_reorder", plan, (given,), flat[:, places])


def own(name, folder, **more):
    """Runs the circuit of an order of three samples on the independent bench."""
    stream = Stream.in_order((5, 4, 3), EDGE)
    places = torch.from_numpy(ORDERS[name].copy())
    wanted = torch.arange(places.numel()).view(places.shape)
    plan = reorder_plan(stream, places, wanted, 1)
    lanes, width = plan.out.lanes, plan.out.width
    samples = np.random.default_rng(0).integers(0, 200, (3, 61))
    samples[:, 60] = 0
    left = samples[:, ORDERS[name].flatten()]

    def beats(codes):
        weights = 1 << width * np.arange(lanes, dtype=object)
        return width * lanes, (codes.reshape(-1, lanes).astype(object) @ weights).tolist()

    sent = beats(samples[:, :60])
    return passes_own_bench("chop_reorder", plan.parameters, sent, beats(left), folder, **more)


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "one"])
@pytest.mark.tools("iverilog")
@pytest.mark.sampled(3)
def test_stalls_resets_and_unknown_data_change_nothing(name, tmp_path):
    assert own(name, tmp_path) == "PASS"


@pytest.mark.tools("iverilog")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inside_q[1] ? word_q : '0", "word_q"),
        ("!full_q[write_bank_q]", "1'b1"),
        (
            "valid_q  <= rst_ni ? {valid_q[STAGES-2:0], is_read} : '0",
            "valid_q <= {valid_q[STAGES-2:0], is_read}",
        ),
        ("full_q <= '0;", ""),
    ],
    ids=("zeros", "overwritten", "beats_of_a_reset", "banks_of_a_reset"),
)
@pytest.mark.sampled(2)
def test_the_bench_finds_planted_faults(old, new, tmp_path):
    text = (RTL / "chop_reorder.sv").read_text()
    assert text.count(old) == 1
    (tmp_path / "chop_reorder.sv").write_text(text.replace(old, new))
    assert own("padded", tmp_path, source=tmp_path) != "PASS"


PADS = [
    ((2, 4, 3), [1, 2, 1, 0]),
    ((2, 4, 3), [-1, 0, 0, 2]),
    ((3, 5), [2, 1]),
    ((3, 5), [0, 0, 1, 1]),
]


@pytest.mark.parametrize(("shape", "pad"), PADS)
@needs_tools
@pytest.mark.sampled(1)
def test_padding(shape, pad):
    call = Call([(5, *shape)], {"pad": pad})
    operator = IntegerPad.from_quantized(None, [EDGE], IntegerOptions(), call)
    given = image(EDGE, *shape)
    assert torch.equal(operator(given.codes), F.pad(given.codes, pad))
    check(operator, given, fold=1)


@needs_tools
@pytest.mark.long
def test_upsampling():
    call = Call([(5, 2, 3, 2)], {"scale_factor": 2, "mode": "nearest"})
    operator = IntegerInterpolate.from_quantized(None, [EDGE], IntegerOptions(), call)
    given = image(EDGE, 2, 3, 2)
    expected = F.interpolate(given.codes.double(), scale_factor=2).long()
    assert torch.equal(operator(given.codes), expected)
    check(operator, given, fold=1)


@pytest.mark.tools("iverilog")
@pytest.mark.parametrize("times", [1, 5])
def test_a_frame_of_one_beat_is_repeated(times, tmp_path):
    beats = [3, 200, 0, 77]
    left = [beat for beat in beats for _ in range(times)]
    parameters = {"W": 8, "WORDS": 1, "COUNT_0": times, "STEP_0": 0}
    assert passes_own_bench("chop_reorder", parameters, (8, beats), (8, left), tmp_path) == "PASS"
