"""Estimates of `chop.hardware.costs.estimate` for designs, beside the counts of Yosys.

Each design is emitted with two folds and synthesized for ECP5 (`synth_ecp5`, whole; registers that
placement moves into multipliers and memories are not counted) and for 7-series devices
(`synth_xilinx`, read-only memories estimated; in `xc7-nodsp` products are made of lookup tables). A
count is kept by the digest of the sources and memories: a run that was stopped goes on, and a
changed circuit is counted again.

python benchmarks/hardware_estimates.py [--designs mlp conv] [--families ecp5] [--out FOLDER]

Writes `FOLDER/table.md`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop import MaseGraph, passes
from chop.actions.emit.lower import lower_workload
from chop.actions.emit.lower_settings import LoweringConfig
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.formats import Binary, Integer, MXInt, QuantSpec, Ternary
from chop.hardware.check.project import describe_project, write_design
from chop.hardware.costs.devices import ECP5, RESOURCES, XC7
from chop.hardware.costs.estimate import design_usage
from chop.hardware.costs.synth import TOTAL, synthesize
from chop.hardware.design.design import Design
from chop.hardware.design.emit import emit
from chop.hardware.folds.absorb import absorb_registers
from chop.hardware.integer_form import integer_form
from chop.hardware.tools import read_command, run, tool_path
from chop.ir.graph import MaseGraph as Graph
from chop.ir.ops import quantizable_operators
from chop.quantization.named_operators import present_operators
from chop.runs.journal import Journal
from chop.workloads.load import workload_for

SECONDS = 3600
FAMILIES = {"ecp5": ECP5, "xc7": XC7, "xc7-nodsp": replace(XC7, dsp_width=0)}
CELLS = {
    "lut": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4},
    "ff": {"TRELLIS_FF": 1},
    "dsp": {"MULT18X18D": 1},
    "bram": {"DP16KD": 1},
}
"""Cells of ECP5 that take a resource, and how many of it."""
INTEGER = QuantSpec.uniform(Integer(8, 5))
BARS = {"lut": 0.2, "ff": 0.2, "dsp": 0, "bram": 1}
"""Most that an estimate may differ: a share, and of multipliers and memories a number."""


class Attention(nn.Module):
    """An attention of two heads, as the vision transformer's: 17 tokens of 24 features."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(24, 24) for _ in range(3))
        self.out = nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, 17, 24)."""
        heads = [
            f(x).view(-1, 17, 2, 12).transpose(1, 2) for f in (self.query, self.key, self.value)
        ]
        found = nn.functional.scaled_dot_product_attention(*heads)
        return self.out(found.transpose(1, 2).reshape(-1, 17, 24))


class GroupedAttention(nn.Module):
    """A causal attention of four heads of queries and two of keys, with rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(24, 24), nn.Linear(24, 24)
        self.key, self.value = nn.Linear(24, 12), nn.Linear(24, 12)
        angles = torch.arange(8)[:, None] / 100.0 ** (torch.arange(3) / 3)
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), -1))
        self.register_buffer("sin", torch.cat((angles.sin(), angles.sin()), -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, 8, 24)."""
        query, key, value = (
            f(x).view(-1, 8, n, 6).transpose(1, 2)
            for f, n in ((self.query, 4), (self.key, 2), (self.value, 2))
        )
        key, value = (
            x[:, :, None].expand(-1, 2, 2, 8, 6).reshape(-1, 4, 8, 6)
            for x in (self.turned(key), value)
        )
        found = nn.functional.scaled_dot_product_attention(
            self.turned(query), key, value, is_causal=True
        )
        return self.out(found.transpose(1, 2).reshape(-1, 8, 24))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Each pair of features turned by the angle of its place."""
        return x * self.cos + torch.cat((-x[..., 3:], x[..., :3]), -1) * self.sin


class Means(nn.Module):
    """The mean of what seven tokens are after a ReLU, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, 7, 24)."""
        return self.out(x.relu().mean(1))


def drawn_norm() -> nn.Module:
    """A layer norm with weights and biases that are not all the same."""
    norm = nn.LayerNorm(48)
    nn.init.normal_(norm.weight, 1, 0.3)
    nn.init.normal_(norm.bias, 0, 0.3)
    return norm


def blocks_of_two_sizes() -> nn.Module:
    """Two layers with a ReLU between; a block of features of the first is 2^-4 of the other one."""
    first = nn.Linear(48, 64)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter[32:] *= 2.0**-4
    return nn.Sequential(first, nn.ReLU(), nn.Linear(64, 8))


Made = tuple[Callable[[], nn.Module], tuple[int, ...], QuantSpec, tuple[int, int]]
LAYERS: dict[str, Made] = {
    "linear 8 bits": (lambda: nn.Linear(48, 24), (48,), INTEGER, (36, 288)),
    "linear 4 bits": (
        lambda: nn.Linear(48, 24),
        (48,),
        QuantSpec(Integer(4, 2), Integer(4, 5), Integer(8, 5)),
        (36, 288),
    ),
    "linear MXINT8": (
        lambda: nn.Linear(64, 8),
        (64,),
        QuantSpec(MXInt(8), MXInt(8), Integer(8, 5)),
        (8, 32),
    ),
    "MLP MXINT8": (
        blocks_of_two_sizes,
        (48,),
        QuantSpec.uniform(MXInt(8)),
        (24, 96),
    ),
    "linear ternary": (
        lambda: nn.Linear(32, 16),
        (32,),
        QuantSpec(Integer(8, 5), Ternary(), Integer(8, 5)),
        (8, 64),
    ),
    "linear signs": (
        lambda: nn.Linear(32, 16),
        (32,),
        QuantSpec(Binary(bipolar=True), Binary(bipolar=True), Integer(8, 5)),
        (8, 64),
    ),
    "conv 3 x 3": (lambda: nn.Conv2d(4, 8, 3, padding=1), (4, 8, 8), INTEGER, (600, 2400)),
    "conv of several taps": (
        lambda: nn.Conv2d(1, 8, 3, padding=1),
        (1, 8, 8),
        INTEGER,
        (64, 192),
    ),
    "depthwise 3 x 3": (
        lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
        (8, 8, 8),
        INTEGER,
        (1200, 4800),
    ),
    "max pool": (lambda: nn.MaxPool2d(2), (16, 8, 8), INTEGER, (2000, 500)),
    "average pool": (lambda: nn.AvgPool2d(2), (16, 8, 8), INTEGER, (2000, 500)),
    "layer norm": (drawn_norm, (17, 48), INTEGER, (204, 816)),
    "softmax": (lambda: nn.Softmax(-1), (4, 17), INTEGER, (68, 680)),
    "gelu": (lambda: nn.GELU(), (17, 24), INTEGER, (68, 408)),
    "attention": (Attention, (17, 24), INTEGER, (2000, 10000)),
    "mean of 7": (Means, (7, 24), INTEGER, (24, 168)),
    "rotary attention": (GroupedAttention, (8, 24), INTEGER, (600, 4608)),
}
"""By name: the module, the shape of a sample, formats, and two folds."""
TRAINED = {"mlp": (128, 32), "cnn": (2000, 576), "vit": (13872, 3468)}
DESIGNS = (*TRAINED, *LAYERS)


def main() -> None:
    """Counts every design that was not counted, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--designs", nargs="+", default=DESIGNS, choices=DESIGNS)
    parser.add_argument("--families", nargs="+", default=["ecp5", "xc7"], choices=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=Path("runs/hardware-estimates"))
    given = parser.parse_args()
    journal, rows = Journal(given.out / "journal.jsonl"), []
    for name in given.designs:
        mg, folds = graph_of(name)
        for fold in folds:
            design = emit(mg, fold)
            for family in given.families:
                counted = count(design, family, journal)
                rows.append(get_row(name, fold, design, family, counted))
                print(rows[-1], flush=True)
                write_text(given.out / "table.md", markdown_table(rows) + "\n")


def graph_of(name: str) -> tuple[Graph, tuple[int, int]]:
    """The graph of integers of a design, and its folds."""
    if name in TRAINED:
        config = LoweringConfig(model=name)
        return lower_workload(workload_for(config, None), config, 16).integer, TRAINED[name]
    make, shape, formats, folds = LAYERS[name]
    return layer_graph(make, shape, formats), folds


def layer_graph(make: Callable[[], nn.Module], shape: tuple[int, ...], formats: QuantSpec) -> Graph:
    """The graph of integers of a module with drawn weights, whose samples have a shape."""
    torch.manual_seed(0)
    mg = MaseGraph(nn.Sequential(make()).eval(), dummy_in={"input": torch.randn(2, *shape)})
    present = present_operators(mg, quantizable_operators())
    rules = {kind: {"config": formats} for kind in present}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    return integer_form(quantized)


def count(design: Design, family: str, journal: Journal) -> dict[str, int]:
    """What Yosys counts, by resource."""
    digest = hashlib.sha256(json.dumps(dict(design.files), sort_keys=True).encode()).hexdigest()
    known = journal.find({"family": family, "design": digest})
    if known is None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_design(design, folder)
            is_ecp5 = family == "ecp5"
            sources = sorted(folder.glob("rtl/*.sv"))
            found = count_ecp5(folder, sources) if is_ecp5 else _count_xc7(design, folder, family)
        known = journal.add({"family": family, "design": digest}, found)
    return known


def count_ecp5(folder: Path, sources: Sequence[Path], top: str = "top") -> dict[str, int]:
    """Returns the resources that Yosys' `synth_ecp5` counts of Verilog files."""
    script = f"{read_command(sources)}; synth_ecp5 -top {top} -json netlist.json"
    run([tool_path("yosys"), "-q", "-p", script], folder, SECONDS).check_returncode()
    netlist = json.loads((folder / "netlist.json").read_bytes())
    absorb_registers(netlist, top)
    cells = Counter(cell["type"] for cell in netlist["modules"][top]["cells"].values())
    return {
        name: sum(units * cells[kind] for kind, units in kinds.items())
        for name, kinds in CELLS.items()
    }


def _count_xc7(design: Design, folder: Path, family: str) -> dict[str, int]:
    has_multipliers = FAMILIES[family].has_multipliers
    return taken(synthesize(folder, describe_project(design), SECONDS, has_multipliers))


def taken(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What a whole design takes, by resource, with read-only memories: of rows of `synthesize`."""
    (whole,) = [row for row in rows if row["module"] == TOTAL]
    return {
        "lut": whole["lut"] + whole["lutram"] + whole["rom_lut"],
        "ff": whole["ff"] + whole["rom_ff"],
        "dsp": whole["dsp"],
        "bram": whole["ramb18"] + whole["rom_ramb18"],
    }


def get_row(
    name: str, fold: int, design: Design, family: str, counted: Mapping[str, int]
) -> dict[str, Any]:
    """A line of the table; what is beyond its bar is marked."""
    usage = design_usage(design.netlist, design.connections, FAMILIES[family])
    row: dict[str, Any] = {"design": f"{name}, fold {fold}", "family": family}
    for resource in RESOURCES:
        said, found = getattr(usage, resource), counted[resource]
        share = resource in ("lut", "ff")
        error = (said - found) / max(found, 1) if share else said - found
        text = f"{said:,} of {found:,}" + (f" ({error:+.0%})" if share else "")
        row[resource] = f"**{text}**" if abs(error) > BARS[resource] else text
    return row


if __name__ == "__main__":
    main()
