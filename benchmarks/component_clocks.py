"""The clock that each component reaches alone on a device, and the path that bounds it.

Of each component the instance that is there most often, and of these the largest, is taken from
the built-in cnn and vit and from layers of operators that they lack; FIFOs of lookup tables and of
block memories, and norms with and without a mean, are apart. It stands between registers, which
one pin fills and another empties: a design without them has more signals than a device has pins.
Each is placed and routed with one seed. A result is kept by the digest of sources and memories: a
run that was stopped goes on, and a changed component is placed again.

python benchmarks/component_clocks.py [--components chop_softmax] [--out FOLDER]

Writes `FOLDER/table.md`.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hardware_estimates import INTEGER, Made, graph_of, layer_graph
from torch import nn

from chop.base.files import make_folder, write_text
from chop.base.files.documents import parse_json
from chop.base.tables import markdown_table
from chop.hardware.check.project import Project, list_sources
from chop.hardware.costs.devices import DEVICES, ECP5
from chop.hardware.costs.estimate import Usage, module_usage
from chop.hardware.costs.place import place, tool_versions
from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.connect import FIFO, connect
from chop.hardware.design.netlist import netlist
from chop.hardware.design.plan import RTL, Memory, Site
from chop.hardware.design.stream import Stream
from chop.hardware.design.verilog import instance, sources
from chop.hardware.tools import read_command, run, tool_path
from chop.ir.graph import MaseGraph
from chop.nn.integer import Edge, IntegerEmbedding
from chop.runs.journal import Journal

SECONDS = 300
TOP, PROBE = "top", "probe"
SHOWN = (
    *("LANES", "IN_LANES", "OUT_LANES", "FEATURES", "IN_FEATURES", "OUT_FEATURES", "COUNT"),
    *("KERNEL_Y", "W", "IN_W", "IN_0_W", "IN_1_W", "WEIGHT_W", "OUT_W", "DEPTH", "N", "BEATS"),
    *("LATENCY", "TIMES", "PERIOD"),
)
"""Parameters that the table has, where a component has them."""
REGISTERS = {"entered_q": "an input", "left_q": "an output"}
"""Of the harness, in the words of the component."""
MODELS = (
    *("cnn", "vit", "linear MXINT8", "linear ternary"),
    *("depthwise 3 x 3", "mean of 7", "rotary attention", "max pool", "average pool"),
)
"""Of `hardware_estimates`, with the first fold of each."""
MORE: dict[str, Made] = {
    "RMS norm": (lambda: nn.RMSNorm(128), (16, 128), INTEGER, (24_000, 2048)),
}
WORDS, WIDTH, TOKENS, TEXT_FOLD = 365, 128, 16, 24_000
"""Of the embedding: gpt-tiny's, as docs/guide/circuit.md emits it."""


@dataclass(frozen=True)
class Part:
    """An instance that is placed alone.

    Attributes:
        module: SystemVerilog module.
        model: that it is of.
        parameters: of the module, without files.
        memories: by the parameter that takes the file's name.
        folder: of its source.
    """

    module: str
    model: str
    parameters: Mapping[str, int | str]
    memories: Mapping[str, Memory] = field(default_factory=dict)
    folder: Path = RTL

    @property
    def name(self) -> str:
        """The row of the table that it is of."""
        if self.module == FIFO and self.usage.bram:
            return f"{self.module}, block memory"
        if self.parameters.get("CENTERED") == 0:
            return f"{self.module} without a mean (RMS)"
        return self.module

    @property
    def usage(self) -> Usage:
        """What it takes, as estimated without products and read-only memories."""
        return module_usage(self.module, self.parameters, ECP5)


def main() -> None:
    """Places a component after another, and writes the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--components", nargs="+", help="modules; default, all that are found")
    parser.add_argument("--device", default="ecp5-45", choices=[n for n in DEVICES if "ecp5" in n])
    parser.add_argument("--out", type=Path, default=Path("runs/component-clocks"))
    given = parser.parse_args()
    journal, rows = Journal(given.out / "journal.jsonl"), []
    for part in commonest(parts()):
        if part.module in (given.components or [part.module]):
            rows.append(get_row(part, measure(part, given.device, journal)))
            print(rows[-1], flush=True)
            write_text(given.out / "table.md", markdown_table(rows) + "\n")


def parts() -> Iterator[Part]:
    """Every component and everything between components in the designs."""
    for model in MODELS:
        mg, folds = graph_of(model)
        yield from _parts_of(model, mg, folds[0])
    for model, (make, shape, formats, folds) in MORE.items():
        yield from _parts_of(model, layer_graph(make, shape, formats), folds[0])
    torch.manual_seed(0)
    table = IntegerEmbedding(torch.randint(-128, 128, (WORDS, WIDTH)), 0.5)
    stream = Stream.in_order((TOKENS,), Edge.of(1.0, 0, WORDS - 1))
    row = COMPONENTS["IntegerEmbedding"]
    plan = row.plan(Site(table, [stream], TEXT_FOLD))
    yield Part(row.module, "embedding", plan.parameters, plan.memories)
    yield Part("chop_credits", "requantize", {"W": 8, "LATENCY": 6})


def _parts_of(model: str, mg: MaseGraph, fold: int) -> Iterator[Part]:
    made = netlist(mg, fold)
    for each in made.instances:
        plan = each.plan
        yield Part(each.module, model, plan.parameters, plan.memories, each.folder)
    for link in connect(made).links:
        yield Part(link.module, model, link.parameters)


def commonest(found: Iterable[Part]) -> list[Part]:
    """One part for each row of the table, in their order.

    Args:
        found: all that there are; the most frequent parameters are taken, of several the largest.
    """
    by_row: dict[str, list[Part]] = defaultdict(list)
    for part in found:
        by_row[part.name].append(part)
    return [_commonest(by_row[name]) for name in sorted(by_row)]


def _commonest(alike: Sequence[Part]) -> Part:
    times = Counter(tuple(part.parameters.items()) for part in alike)
    return max(alike, key=lambda part: (times[tuple(part.parameters.items())], part.usage.lut))


def measure(part: Part, device: str, journal: Journal) -> dict[str, Any]:
    """Result of `chop.hardware.costs.place.place` for a part between registers."""
    router = DEVICES[device].router
    assert router is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(part, folder)
        key = {"device": device, "files": _digest(folder), "tools": tool_versions(router)}
        known = journal.find(key)
        if known is None:
            placed = place(folder, Project(TOP, (), (), 1, {}), device, 1, 1)
            known = journal.add(key, placed)
    return known


def _digest(folder: Path) -> str:
    files = [*list_sources(folder), *sorted((folder / "memory").iterdir())]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def get_row(part: Part, placed: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    used, path = placed["utilization"], placed["critical_path"]
    shown = [f"{key} {part.parameters[key]}" for key in SHOWN if key in part.parameters]
    # The instance is named after its module; what is outside of it are the registers around.
    ends = [
        REGISTERS.get(path[end], path[end].removeprefix(f"{part.module}: "))
        for end in ("from", "to")
    ]
    return {
        "component": part.name,
        "of": part.model,
        "instance": ", ".join(shown),
        "multipliers": used.get("MULT18X18D", {}).get("used", 0),
        "memories": used.get("DP16KD", {}).get("used", 0),
        "clock": f"{placed['frequency_mhz']:.0f} MHz",
        "slowest path": " to ".join(ends),
        "cells, wires": f"{path['logic_ns']:.1f}, {path['wire_ns']:.1f} ns",
    }


def write_project(part: Part, folder: Path) -> None:
    """Writes the project of one instance between registers: `rtl/*.sv` and `memory/*.hex`."""
    files = {key: f"memory/{key.lower()}.hex" for key in part.memories}
    parameters = {**part.parameters, **files}
    for path in (folder / "rtl", folder / "memory"):
        make_folder(path)
    for key, memory in part.memories.items():
        write_text(folder / files[key], memory.hex())
    probe = f"module {PROBE};\n{instance(part.module, 'u_part', parameters, {})}endmodule\n"
    for file, source in sources(probe, part.folder).items():
        write_text(folder / "rtl" / file, source.read_text())
    write_text(folder / f"{PROBE}.sv", probe)
    text = harness(part.module, parameters, pins(folder))
    write_text(folder / "rtl" / f"{TOP}.sv", text)


@dataclass(frozen=True)
class Pin:
    """A port of a module, with its bits."""

    name: str
    bits: int
    is_input: bool


def pins(folder: Path) -> list[Pin]:
    """The ports of the instance in `probe.sv`, clock and reset left out, as Yosys elaborates it."""
    paths = [Path(f"{PROBE}.sv"), *(path.relative_to(folder) for path in list_sources(folder))]
    script = f"{read_command(paths)}; hierarchy -top {PROBE}; proc; write_json ports.json"
    run([tool_path("yosys"), "-q", "-p", script], folder, SECONDS).check_returncode()
    modules = parse_json((folder / "ports.json").read_bytes())["modules"]
    (cell,) = modules[PROBE]["cells"].values()
    return [
        Pin(name, len(port["bits"]), port["direction"] == "input")
        for name, port in modules[cell["type"]]["ports"].items()
        if name not in ("clk_i", "rst_ni")
    ]


def harness(module: str, parameters: Mapping[str, int | str], ports: Sequence[Pin]) -> str:
    """A module with an instance whose every signal starts or ends at a register.

    As in a design of `chop emit` the reset comes from its pin, and registers around the instance
    have an enable, so that no multiplier and no block memory takes them.
    """
    sizes = {True: 0, False: 0}
    signals = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
    for port in ports:
        bus = "entered_q" if port.is_input else "left"
        signals[port.name] = f"{bus}[{sizes[port.is_input]} +: {port.bits}]"
        sizes[port.is_input] += port.bits
    ahead, back = sizes[True], sizes[False]
    return f"""module {TOP} (input logic clk_i, rst_ni, in_i, moves_i, shows_i, output logic out_o);
  logic [{ahead - 1}:0] entered_q;
  logic [{back - 1}:0] left, left_q, shown_q;

{instance(module, f"u_{module}", parameters, signals)}
  assign out_o = shown_q[0];
  always_ff @(posedge clk_i) begin
    if (moves_i) begin
      entered_q <= {ahead}'({{entered_q, in_i}});
      left_q    <= left;
    end
    shown_q <= shows_i ? left_q : shown_q >> 1;
  end
endmodule
"""


if __name__ == "__main__":
    main()
