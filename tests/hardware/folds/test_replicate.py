"""Drivers of many cells, copied: simulated netlists, and how many readers each copy has."""

from collections import Counter

import pytest

from chop.hardware.folds import replicate
from chop.hardware.folds.absorb import absorb_registers
from chop.hardware.folds.replicate import replicate_drivers
from tests.hardware import bench
from tests.hardware.costs.test_place import (
    check_netlist,
    module,
    multiplier_model,
    needs_yosys,
    register,
    synthesized_layer,
)
from tests.hardware.design.test_linear import EDGE, layer
from tests.hardware.folds.test_retime import cell, cells_of


def readers_of(netlist):
    """How many pins read each net."""
    found = Counter()
    for each in cells_of(netlist).values():
        for port, bits in each["connections"].items():
            found.update(bits if each["port_directions"][port] == "input" else ())
    return found


def most_readers(netlist):
    """Of a net that a register or a table drives."""
    readers, ports = readers_of(netlist), replicate.OUTPUTS
    drivers = [each for each in cells_of(netlist).values() if each["type"] in ports]
    return max(readers[each["connections"][ports[each["type"]]][0]] for each in drivers)


@pytest.mark.long
@needs_yosys
def test_a_netlist_of_copied_drivers_computes_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(replicate, "READERS", 4)
    _, netlist = synthesized_layer(layer(4, 9), bench.drawn(EDGE, 3, 9), 12, tmp_path)
    absorb_registers(netlist, "top")
    assert most_readers(netlist) > 4
    before = len(cells_of(netlist))
    count = replicate_drivers(netlist, "top")
    assert len(cells_of(netlist)) == before + count > before
    assert most_readers(netlist) == 4
    check_netlist(netlist, tmp_path, {"multiplier.v": multiplier_model()})


def fan(count):
    """A register, the table that it reads, and as many registers behind."""
    named = {f"r{k:02}": register(11, 100 + k) for k in range(count)}
    return module(
        {"q": register(10, 11), "t": cell("LUT4", A=11, B=11, C="0", D="0", Z=10), **named},
        [11, *(100 + k for k in range(count))],
    )


@pytest.mark.parametrize(("count", "copies"), [(14, 0), (15, 1), (30, 1), (31, 2)])
def test_readers_are_shared_out_by_name(count, copies):
    """The port of the module keeps the first driver."""
    netlist = fan(count)
    assert replicate_drivers(netlist, "top") == copies
    cells = cells_of(netlist)
    assert cells["q"]["connections"]["Q"] == [11] and most_readers(netlist) <= 16
    drivers = [cells[f"r{k:02}"]["connections"]["DI"][0] for k in range(count)]
    assert drivers == sorted(drivers) and len(set(drivers)) == copies + 1
    made = [each for name, each in cells.items() if "_COPY_" in name]
    assert len(made) == copies and all(each["connections"]["DI"] == [10] for each in made)


def test_a_driver_of_the_kinds_that_are_not_copied_stays():
    netlist = fan(40)
    netlist["modules"]["top"]["cells"]["q"]["type"] = "DP16KD"
    assert replicate_drivers(netlist, "top") == 0


def test_a_copy_counts_as_a_reader(monkeypatch):
    """Nine pins read a table, of which three copies are made, which read another table."""
    monkeypatch.setattr(replicate, "READERS", 3)
    behind = {f"r{k}": register(20, 30 + k) for k in range(9)}
    tables = {
        "t": cell("LUT4", A=10, B="0", C="0", D="0", Z=20),
        "u": cell("LUT4", A=10, B="0", C="0", D="0", Z=21),
        "v": cell("LUT4", A=9, B="0", C="0", D="0", Z=10),
    }
    netlist = module({**behind, **tables, "w": register(21, 50)}, [])
    assert replicate_drivers(netlist, "top") == 3
    assert most_readers(netlist) == 3
