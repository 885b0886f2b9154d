"""`benchmarks/component_clocks.py`: the instance that is chosen, and the registers around it."""

from pathlib import Path

import pytest

from chop.hardware import tools
from chop.hardware.check.project import list_sources
from chop.hardware.design.plan import Memory

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
TABLE = {"LANES": 2, "OUT_W": 4, "IN_W": 3, "LOW": -4, "ENTRIES": 8}
WORDS = Memory((7, 1, 2, 3, 4, 5, 6, 15), 4)


@pytest.fixture
def clocks(monkeypatch):
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import component_clocks

    return component_clocks


def test_of_instances_the_most_frequent_is_placed_and_of_several_the_largest(clocks):
    skids = [(8, "a"), (30, "b"), (8, "c"), (12, "d"), (12, "e")]
    found = [clocks.Part("chop_skid", model, {"W": width}) for width, model in skids]
    fifos = [{"W": 8, "DEPTH": depth} for depth in (16, 4000)]
    found += [clocks.Part("chop_fifo", "a", parameters) for parameters in fifos]
    chosen = [(part.name, part.model, dict(part.parameters)) for part in clocks.commonest(found)]
    assert chosen == [
        ("chop_fifo", "a", fifos[0]),
        ("chop_fifo, block memory", "a", fifos[1]),
        ("chop_skid", "d", {"W": 12}),
    ]


@pytest.mark.sampled(1)
@pytest.mark.tools("verilator", "yosys")
@pytest.mark.parametrize(
    ("module", "parameters", "memories", "ports"),
    [
        (
            "chop_table",
            TABLE,
            {"TABLE_FILE": WORDS},
            {"data_in_0_i": 6, "data_in_0_valid_i": 1, "data_out_0_ready_i": 1}
            | {"data_in_0_ready_o": -1, "data_out_0_o": -8, "data_out_0_valid_o": -1},
        ),
        (
            "chop_fork",
            {"W": 5, "N": 3},
            {},
            {"data_in_0_i": 5, "data_in_0_valid_i": 1, "data_out_ready_i": 3}
            | {"data_in_0_ready_o": -1, "data_out_o": -5, "data_out_valid_o": -3},
        ),
    ],
    ids=["memory", "other_ports"],
)
def test_an_instance_stands_between_registers(
    module, parameters, memories, ports, tmp_path, clocks
):
    clocks.write_project(clocks.Part(module, "", parameters, memories), tmp_path)
    found = {pin.name: pin.bits if pin.is_input else -pin.bits for pin in clocks.pins(tmp_path)}
    assert found == ports
    sources = [path.relative_to(tmp_path) for path in list_sources(tmp_path)]
    assert tools.lint(sources, "top", folder=tmp_path) == ""
    assert tools.elaborate(sources, "top", tmp_path) == ""
    text = (tmp_path / "rtl" / "top.sv").read_text()
    bits = [sum(n for n in ports.values() if n > 0), -sum(n for n in ports.values() if n < 0)]
    assert f"[{bits[0] - 1}:0] entered_q;" in text and f"[{bits[1] - 1}:0] left," in text


def test_a_row_names_the_slowest_path_by_what_is_in_the_component(clocks):
    path = {"from": "chop_skid: left_q", "to": "left_q", "logic_ns": 1.25, "wire_ns": 0.5}
    used = {"DP16KD": {"used": 2, "available": 56}}
    placed = {"utilization": used, "critical_path": path, "frequency_mhz": 401.6}
    row = clocks.get_row(clocks.Part("chop_skid", "vit", {"W": 7, "OTHER": 2}), placed)
    assert row == {
        "component": "chop_skid",
        "of": "vit",
        "instance": "W 7",
        "multipliers": 0,
        "memories": 2,
        "clock": "402 MHz",
        "slowest path": "left_q to an output",
        "cells, wires": "1.2, 0.5 ns",
    }
