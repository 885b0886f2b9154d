"""FINN's LFC and CNV as circuits, beside the resources that FINN's authors published for a Pynq-Z1.

brevitas builds the networks and writes QONNX files, in an environment of its own (`pip install
brevitas onnxoptimizer`); the weights are drawn. Each circuit has the interval of the published one,
or the next shorter one that its folds reach. Resources are estimated for 7-series devices, the
family of the published ones. Results of the circuits are compared with the integer graph in
Verilator.

python benchmarks/finn_networks.py --brevitas PYTHON [--only NAME ...] [--samples 4]
    [--clock-mhz 100] [--out FOLDER]

Writes `FOLDER/table.md`.
"""

from __future__ import annotations

import argparse
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jet_tagger import simulated

from chop import passes
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.export.qonnx.reader import read_graph
from chop.hardware.costs.devices import XC7
from chop.hardware.costs.estimate import design_usage
from chop.hardware.design.emit import emit
from chop.ir.graph import MaseGraph

WRITER = """
import sys, torch
from brevitas.export import export_qonnx
from brevitas_examples.bnn_pynq.models import model_with_cfg
name, path, *shape = sys.argv[1:]
torch.manual_seed(0)
model, _ = model_with_cfg(name, False)
x = torch.rand(16, *map(int, shape))
model.train()
for _ in range(5):
    model(x)
export_qonnx(model.eval(), x[:1], export_path=path, dynamo=False)
"""


@dataclass(frozen=True)
class Published:
    """A circuit that FINN's authors published.

    Attributes:
        shape: of one input.
        interval: cycles per image, of the slowest layer in `config.h`.
        lut: lookup tables after placement and routing by Vivado 2018.2.
        ff: flip-flops.
        bram: block memories of 36 kbit.
        dsp: multipliers.
    """

    shape: tuple[int, ...]
    interval: int
    lut: int
    ff: int
    bram: float
    dsp: int


PUBLISHED = {
    "LFC_1W1A": Published((1, 28, 28), 512, 28_360, 33_470, 110, 4),
    "CNV_1W1A": Published((3, 32, 32), 32_768, 26_072, 41_312, 124, 24),
}
"""From https://github.com/Xilinx/BNN-PYNQ, `bnn/src/network/*/README.md` and `hw/config.h`. Their
figures include the memory access of the overlay.
"""


def main() -> None:
    """Emits, simulates and estimates each circuit, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brevitas", required=True, help="a Python that has brevitas")
    parser.add_argument("--only", nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--samples", type=int, default=4, help="simulated under each profile")
    parser.add_argument("--clock-mhz", type=float, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/finn-networks"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in given.only:
        file = given.out / f"{name}.onnx"
        shape = map(str, PUBLISHED[name].shape)
        subprocess.run([given.brevitas, "-c", WRITER, name, str(file), *shape], check=True)
        rows += measure(name, file, given.samples, given.clock_mhz)
        write_text(given.out / "table.md", markdown_table(rows) + "\n")
        print(markdown_table(rows[-2:]), flush=True)


def measure(name: str, file: Path, samples: int, clock_mhz: float) -> list[dict[str, Any]]:
    """Returns the published row, and the row of the emitted circuit."""
    theirs = PUBLISHED[name]
    mg = lower(file, theirs.shape)
    design = emit(mg, theirs.interval)
    batch = next(str(node.target) for node in mg.nodes if node.op == "placeholder")
    latency, equal = simulated(mg, design, {batch: torch.rand(samples, *theirs.shape)})
    usage = design_usage(design.netlist, design.connections, XC7)
    columns = ("LUT", "FF", "BRAM (36 kbit)", "DSP", "latency planned", "simulated", "us", "equal")
    published = (theirs.lut, theirs.ff, theirs.bram, theirs.dsp, *[""] * 4)
    planned = design.connections.schedule.latency(design.netlist)
    cycles = (planned, latency, f"{latency / clock_mhz:.4g}", equal)
    ours = (usage.lut, usage.ff, usage.bram / 2, usage.dsp, *cycles)
    return [
        {"network": name, "circuit": circuit, "interval": interval}
        | dict(zip(columns, figures, strict=True))
        for circuit, interval, figures in (
            ("FINN, published", theirs.interval, published),
            ("chop, estimated", design.interval, ours),
        )
    ]


def lower(file: Path, shape: tuple[int, ...]) -> MaseGraph:
    """Returns the integer graph of a QONNX file."""
    mg = read_graph(file)
    (name,) = (str(node.target) for node in mg.nodes if node.op == "placeholder")
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    settings = {"batches": [{name: torch.rand(2, *shape)}]}
    return passes.lower_to_integer_transform_pass(mg, settings)[0]


if __name__ == "__main__":
    main()
