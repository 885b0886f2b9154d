"""Times of operators and collectives by hand."""

from __future__ import annotations

import pytest

from chop.distributed.collectives import Sent
from chop.distributed.planning import Machine
from chop.errors import PlanError

GATHER, SUM, SCATTER, ALL = (
    "all_gather_into_tensor",
    "all_reduce",
    "reduce_scatter_tensor",
    "all_to_all_single",
)


def machine(**changed) -> Machine:
    given = {
        "mesh": (2, 4),
        "flops": 1e3,
        "memory_bandwidth": 100.0,
        "bandwidth": (10.0, 50.0),
        "latency": (0.5, 0.25),
    }
    return Machine.of(**{**given, **changed})


def test_an_operator_takes_the_longer_of_arithmetic_and_memory():
    assert machine().seconds(5e3, 100) == 5.0
    assert machine().seconds(5e2, 100) == 1.0
    assert machine().seconds(0, 0) == 0.0


@pytest.mark.parametrize(
    ("operation", "axis", "seconds"),
    [
        (GATHER, 0, 1 * (0.5 + 80 / 10)),  # each process gives its own chunk on
        (GATHER, 1, 3 * (0.25 + 80 / 50)),
        (SUM, 0, 2 * 1 * (0.5 + 80 / 2 / 10)),
        (SUM, 1, 2 * 3 * (0.25 + 80 / 4 / 50)),
        (SCATTER, 1, 3 * (0.25 + 80 / 4 / 50)),
        (ALL, 1, 3 * (0.25 + 80 / 4 / 50)),
        (SUM, None, 2 * 7 * (0.5 + 80 / 8 / 10)),  # the slowest link decides
    ],
)
def test_a_ring_takes_a_round_less_than_it_has_processes(
    operation: str, axis: int | None, seconds: float
):
    sent = Sent(operation, 80, axis)
    assert machine().get_seconds([sent]) == pytest.approx(seconds)
    assert machine().get_seconds([sent] * 3) == pytest.approx(3 * seconds)


def test_nothing_is_sent_along_an_axis_of_one_process():
    assert machine(mesh=(1, 4)).get_seconds([Sent(SUM, 80, 0)]) == 0
    assert machine().get_seconds([]) == 0


def test_one_number_is_that_of_all_axes_and_another_mesh_keeps_them():
    found = machine(bandwidth=7.0, latency=0)
    assert (found.bandwidth, found.latency, found.memory_bytes) == ((7.0, 7.0), (0, 0), None)
    larger = machine(memory_bytes=9).on((2, 8))
    assert (larger.mesh, larger.bandwidth, larger.memory_bytes) == ((2, 8), (10.0, 50.0), 9)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"flops": 0}, "flops: expected a number above 0, got 0"),
        ({"flops": "fast"}, "flops: expected a number above 0, got 'fast'"),
        ({"memory_bandwidth": -1.0}, "memory_bandwidth: expected a number above 0"),
        ({"bandwidth": 0.0}, "bandwidth: expected a number above 0"),
        ({"bandwidth": True}, "bandwidth: expected a number above 0, got True"),
        ({"bandwidth": (1.0, float("nan"))}, "bandwidth: expected a number above 0, got nan"),
        ({"latency": (0.0, -1e-6)}, "latency: expected a number 0 or more"),
        ({"bandwidth": (1.0,)}, "one for each of the 2 axes of the mesh 2x4, got 1"),
        ({"latency": (1.0, 1.0, 1.0)}, "one for each of the 2 axes of the mesh 2x4, got 3"),
    ],
)
def test_numbers_that_no_machine_has_are_refused(changed: dict, message: str):
    with pytest.raises(PlanError, match=message):
        machine(**changed)
