"""Order, lanes and layout of streams."""

import re

import pytest
import torch

from chop.errors import ConfigError
from chop.hardware.design.lanes import divisors, fewest_lanes, matrix_lanes
from chop.hardware.design.plan import Memory
from chop.hardware.design.stream import Stream
from chop.hardware.design.values import (
    Fixed,
    Wire,
    common_batch_dim,
    computes_by_sample,
    joined,
    moved,
    part,
)
from chop.nn.integer import Edge, IntegerAdd, IntegerSum
from tests.subcases import subcases

EDGE = Edge.of(0.5, -8, 7)
CODES = torch.arange(2 * 3 * 4).view(2, 3, 4)


def channels_last(c, h, w):
    return torch.arange(c * h * w).view(h, w, c).permute(2, 0, 1).contiguous()


@pytest.mark.parametrize("positions", [torch.arange(12).view(3, 4), torch.arange(12).view(4, 3).T])
@pytest.mark.parametrize("lanes", [1, 2, 6, 12])
def test_what_is_sent_is_received(positions, lanes):
    stream = Stream(positions, EDGE, lanes)
    beats = stream.sent(CODES)
    assert beats.shape == (2 * 12 // lanes, lanes)
    assert torch.equal(stream.received(beats), CODES)
    assert (stream.beats, stream.width, stream.bits) == (12 // lanes, 4, 4 * lanes)


def test_places_are_those_of_the_beats():
    stream = Stream(torch.arange(12).view(4, 3).T.contiguous(), EDGE, 3)
    assert stream.sent(CODES)[1].tolist() == [1, 5, 9]
    with pytest.raises(ConfigError, match="5 lanes do not divide the 12 codes"):
        stream.with_lanes(5)


def test_rows_may_come_in_any_order_with_their_features_in_one():
    # Heads that were moved ahead of tokens: rows come token by token.
    stream = Stream.in_order((5, 2, 3), EDGE)
    heads = Stream(stream.positions.transpose(0, 1), EDGE, 1).rows()
    assert (heads.count, heads.features, heads.order.tolist()) == (10, 3, [0, 1, 2])
    assert heads.places[1].tolist() == [1, 3, 5, 7, 9]
    flat = Stream(channels_last(2, 2, 2).flatten(), EDGE, 1).rows()
    assert (flat.count, flat.order.tolist()) == (1, [0, 2, 4, 6, 1, 3, 5, 7])
    assert Stream.in_order((5, 2, 3), EDGE).rows(2).features == 6


def test_rows_that_are_interrupted_are_refused():
    across = Stream(torch.arange(12).view(4, 3).T, EDGE, 1)
    with pytest.raises(ConfigError, match="rows of 4 elements are interleaved"):
        across.rows()


ROWS = Stream.in_order((5, 6), EDGE)


def test_layouts_move_places():
    image = Wire("image", Stream(channels_last(2, 3, 3), EDGE, 1))
    tokens, dim = moved(image, 4, lambda x: x.flatten(2).transpose(1, 2))
    assert torch.equal(tokens, torch.arange(18).view(9, 2)) and dim == 0
    rows = Wire("rows", ROWS)
    heads, _ = moved(rows, 4, lambda x: x.view(4, 5, -1, 3).transpose(1, 2))
    assert heads.shape == (2, 5, 3) and heads[1, 0].tolist() == [3, 4, 5]
    first, _ = moved(rows, 4, lambda x: x[:, 0])
    assert torch.equal(first, torch.arange(6))
    twice, _ = moved(rows, 4, lambda x: x.repeat(1, 2, 1))
    assert torch.equal(twice, torch.arange(30).view(5, 6).repeat(2, 1))


@pytest.mark.parametrize("batch", [1, 4])
def test_layouts_may_move_the_whole_batch(batch):
    places, dim = moved(Wire("rows", ROWS), batch, lambda x: x.permute(1, 2, 0))
    assert torch.equal(places, ROWS.positions) and dim == 2
    back, dim = moved(Wire("rows", ROWS, 2), batch, lambda x: x[1:3].permute(2, 1, 0))
    assert torch.equal(back, ROWS.positions[1:3].T) and dim == 0


def test_operators_behind_a_moved_batch_compute_each_sample_alone():
    ahead, behind = (IntegerSum(EDGE, (5, 3, 6), [dim], True) for dim in (-3, -1))
    rows, first = Wire("rows", ROWS, 1), Wire("rows", ROWS)
    assert computes_by_sample(behind, [rows]) and not computes_by_sample(ahead, [rows])
    assert computes_by_sample(IntegerAdd(EDGE, EDGE), [rows, rows])
    assert common_batch_dim([rows, rows]) == 1 and common_batch_dim([]) == 0
    with pytest.raises(ConfigError, match="in dimensions 0 and 1, so that it mixes samples"):
        common_batch_dim([rows, first])


@pytest.mark.parametrize(
    "move, message",
    [
        (lambda x: x.flatten(), "keep the samples of a batch apart"),
        (lambda x: x.flip(0), "keep the samples of a batch apart"),
        (lambda x: x.view(4, 6, 5)[[0, 0, 1, 2]], "x.transpose(0, 1) ahead of an nn.Multihead"),
        (lambda x: x.sum(), "keep the samples of a batch apart"),
    ],
)
def test_layouts_across_samples_are_refused(move, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        moved(Wire("rows", ROWS), 4, move)


@pytest.mark.parametrize("dim", [-1, -2])
def test_joined_streams_send_each_in_turn(dim):
    shapes = ((4, 2), (4, 6)) if dim == -1 else ((1, 6), (4, 6))
    first, second = (Stream.in_order(shape, EDGE) for shape in shapes)
    codes = [torch.randint(-8, 8, (3, *shape)) for shape in shapes]
    places = joined(first, second, dim)
    result = Stream(places, EDGE, 1)
    turns = 1 if dim == -2 else 4
    parts = [c.reshape(3, turns, -1) for c in codes]
    expected = torch.cat(parts, -1).reshape(-1, 1)
    assert torch.equal(result.sent(torch.cat(codes, dim)), expected)


def test_streams_in_another_order_are_not_joined():
    first = Stream(torch.arange(6).view(3, 2).T, EDGE, 1)
    with pytest.raises(ConfigError, match="row by row in the same order"):
        joined(first, first, -1)


def test_a_part_of_a_stream_is_whole_beats():
    stream = Stream.in_order((5, 6), EDGE, 6)
    row = part(stream, stream.positions[2])
    assert (row.lanes, row.positions.tolist()) == (6, [0, 1, 2, 3, 4, 5])
    assert part(stream, stream.positions[1, 2:4]).lanes == 2
    assert part(stream, stream.positions[1, 1:4]).lanes == 1
    column = part(stream, stream.positions[:, 0])
    assert (column.lanes, column.positions.tolist()) == (1, [0, 1, 2, 3, 4])
    for size, places in ((30, [0, 1, 3]), (30, [0, 1, 3, 4]), (7, [0, 1, 3, 4])):
        with pytest.raises(ConfigError, match="segments"):
            part(Stream.in_order((size,), EDGE), torch.tensor(places))


def test_constants_are_spread_to_a_sample():
    row = Fixed(torch.arange(3), EDGE)
    assert torch.equal(row.sample((2, 3)), torch.arange(3).expand(2, 3))
    batch = Fixed(torch.arange(6).view(1, 2, 3).expand(4, 2, 3), EDGE)
    assert torch.equal(batch.sample((2, 3)), torch.arange(6).view(2, 3))
    with pytest.raises(ConfigError, match="differs between the samples"):
        Fixed(torch.arange(12).view(2, 2, 3), EDGE).sample((2, 3))
    with pytest.raises(ConfigError, match=r"shape \(5,\) does not fit samples of \(2, 3\)"):
        Fixed(torch.arange(5), EDGE).sample((2, 3))
    # With the batch in dimension 1 a constant of shape (2, 3) has a value for each sample.
    tokens = Fixed(torch.arange(6).view(2, 1, 3), EDGE)
    assert torch.equal(tokens.sample((2, 3), 1), torch.arange(6).view(2, 3))
    with pytest.raises(ConfigError, match="differs between the samples"):
        Fixed(torch.arange(6).view(2, 3), EDGE).sample((2, 3), 1)


def test_words_of_memories_have_lane_0_in_the_lowest_bits():
    memory = Memory.of([[-1, 2, 3], [0, -8, 7]], 4)
    assert memory.words == (0x32F, 0x780) and (memory.width, memory.bits) == (12, 24)
    assert memory.hex() == "32f\n780\n"
    assert Memory.of([[1, 0, 1]], 1).hex() == "5\n"


@subcases("rows, k, m", [(1, 64, 32), (17, 48, 192), (17, 48, 48), (16, 4, 10)])
@subcases("fold", [1, 100, 5000, 10**9])
def test_lanes_divide_and_are_the_fewest_that_reach_the_fold(rows, k, m, fold):
    lanes = matrix_lanes(rows, k, m, fold, sent=4)
    assert k % lanes.inputs == 0 and m % lanes.outputs == 0

    def cycles(pair):
        return rows * (k // pair[0]) * (m // pair[1])

    reaching = [(i, o) for i in divisors(k) for o in divisors(m) if cycles((i, o)) <= fold]
    if reaching:
        assert cycles(lanes) <= fold
        assert lanes.inputs * lanes.outputs == min(i * o for i, o in reaching)
    else:
        assert tuple(lanes) == (k, m)


def test_lanes_whose_conversion_is_too_slow_are_left_out():
    # From 4 lanes to 3 a stream goes by way of 1, and 12 codes take 12 cycles.
    assert matrix_lanes(1, 12, 12, 12, sent=4) == (3, 4)
    assert matrix_lanes(2, 12, 6, 12, sent=4) == (4, 3)
    assert fewest_lanes(48, 10) == 6
    assert fewest_lanes(48, 10, sent=4) == 8
