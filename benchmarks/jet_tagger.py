"""The jet tagger of the LHC literature at one sample per cycle: lookup tables, latency, equality.

The network has 16 inputs, layers of 64, 32, 32 and 5 features with ReLU between them (Duarte et
al., "Fast inference of deep neural networks in FPGAs for particle physics", JINST 13, 2018), 6-bit
weights and 6-bit activations. The weights are drawn, so only circuits are compared, no accuracies.
Every result is simulated in Verilator under each stall profile, and resources are counted by Yosys'
`synth_ecp5` beside the estimate.

python benchmarks/jet_tagger.py [--bits 6] [--samples 50] [--clock-mhz 200] [--out FOLDER]

Writes `FOLDER/table.md`. A count is kept by the digest of the sources.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch
from hardware_estimates import count, layer_graph
from torch import nn

from chop.base.files import write_text
from chop.base.files.temporary import scratch_folder
from chop.base.tables import markdown_table
from chop.formats import Integer, QuantSpec
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Check, run_check
from chop.hardware.costs.devices import ECP5
from chop.hardware.costs.estimate import design_usage
from chop.hardware.design.design import Design
from chop.hardware.design.emit import emit
from chop.integer.golden import golden_values
from chop.ir.graph import MaseGraph
from chop.runs.journal import Journal

SIZES = (16, 64, 32, 32, 5)


class JetTagger(nn.Sequential):
    """The network with drawn weights that use the whole range of their format."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(SIZES):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1])
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, 0.3)


def main() -> None:
    """Emits, simulates and counts the circuit, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", type=int, default=6, help="bits of weights and activations")
    parser.add_argument("--samples", type=int, default=50, help="simulated under each profile")
    parser.add_argument("--clock-mhz", type=float, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/jet-tagger"))
    given = parser.parse_args()
    mg = graph(given.bits)
    design = emit(mg, 1)
    latency, equal = simulated(mg, design, given.samples)
    row = {
        "weights (bits)": given.bits,
        "interval": design.interval,
        "latency planned": design.connections.schedule.latency(design.netlist),
        "simulated": latency,
        f"ns at {given.clock_mhz:g} MHz": latency * 1000 / given.clock_mhz,
        "results equal": equal,
    }
    print(row, flush=True)
    counted = count(design, "ecp5", Journal(given.out / "journal.jsonl"))
    usage = design_usage(design.netlist, design.connections, ECP5)
    for name in ("lut", "ff", "dsp"):
        row[name] = f"{counted[name]:,}"
        row[f"{name} estimated"] = f"{getattr(usage, name):,}"
    print(row)
    write_text(given.out / "table.md", markdown_table([row]) + "\n")


def graph(bits: int) -> MaseGraph:
    """Returns the integer graph of the network with weights and activations of some bits."""
    formats = QuantSpec(Integer(bits, 2), Integer(bits, bits - 1), Integer(8, 5))
    return layer_graph(JetTagger, SIZES[:1], formats)


def simulated(mg: MaseGraph, design: Design, samples: int) -> tuple[int, str]:
    """Returns the latency in cycles, and how many results equal those of the integer graph."""
    batch: dict[str, Any] = {"input": torch.randn(samples, SIZES[0])}
    project, golden = describe_project(design), golden_values(mg, batch)
    codes = get_codes(project, golden)
    with scratch_folder("jet-tagger") as folder:
        write_circuit(design, codes, folder)
        runs = [
            run_check(folder, project, codes, Check("verilator", profile, samples, 1))
            for profile in PROFILES
        ]
    whole = samples * SIZES[-1] * len(runs)
    return runs[0].latency or 0, f"{sum(run.equal for run in runs):,} of {whole:,}"


if __name__ == "__main__":
    main()
