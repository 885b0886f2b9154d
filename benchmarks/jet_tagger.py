"""The jet tagger of the LHC literature at one sample per cycle: lookup tables, latency, equality.

The network has 16 inputs, layers of 64, 32, 32 and 5 features with ReLU between them (Duarte et
al., "Fast inference of deep neural networks in FPGAs for particle physics", JINST 13, 2018), 6-bit
weights and 6-bit activations. The weights are drawn, so only circuits are compared, no accuracies.
Every result is simulated in Verilator under each stall profile, and resources are counted by Yosys'
`synth_ecp5` beside the estimate.

With `--da4ml PYTHON`, da4ml in an environment of its own (`pip install da4ml`) makes a pipeline of
the same weights and formats, with two adders between registers, which Yosys counts, too. da4ml
rounds ties up and the circuit rounds them to even. The adders of each matrix, without biases, are
counted in both, and those of chop also for random 16 x 16 matrices as in da4ml's publication.

python benchmarks/jet_tagger.py [--bits 6] [--samples 50] [--clock-mhz 200] [--da4ml PYTHON]
    [--out FOLDER]

Writes `FOLDER/table.md`. A count is kept by the digest of the sources.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch
from hardware_estimates import count, count_ecp5, layer_graph
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
from chop.hardware.design.adders import adder_graph
from chop.hardware.design.design import Design
from chop.hardware.design.emit import emit
from chop.integer.golden import golden_values
from chop.ir.graph import MaseGraph
from chop.nn.integer import IntegerLinear
from chop.runs.journal import Journal

SIZES = (16, 64, 32, 32, 5)


DA4ML = """
import sys
import numpy as np
from da4ml.codegen import RTLModel
from da4ml.trace import FixedVariableArrayInput, HWConfig, comb_trace
from da4ml.trace.ops import quantize, relu
from da4ml.trace.pipeline import to_pipeline

layers, bits = np.load("layers.npz"), int(sys.argv[1])
x = FixedVariableArrayInput(len(layers["w0"][0]), hwconf=HWConfig(1, -1, -1))
y = quantize(x, 1, bits - 3, 2)
for number in range(len(layers) // 2):
    if number:
        y = relu(quantize(y, 1, bits - 3, 2, "SAT", "RND"))
    y = y @ layers[f"w{number}"].T + layers[f"b{number}"]
pipeline = to_pipeline(comb_trace(x, y), 2, retiming=False)
RTLModel(pipeline, "jet", "project", "verilog").write()
print(len(pipeline[0]))
"""


DA4ML_ADDERS = """
import json
import numpy as np
from da4ml.cmvm import solve

counts = []
for matrix in np.load("matrices.npz").values():
    solved = [solve(matrix.T.astype(np.float32), hard_dc=limit) for limit in (0, -1)]
    counts.append([number for each in solved for number in (each.cost, max(each.latency))])
print(json.dumps(counts))
"""


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
    parser.add_argument("--da4ml", help="a Python that has da4ml, for its circuit beside")
    parser.add_argument("--out", type=Path, default=Path("runs/jet-tagger"))
    given = parser.parse_args()
    mg = graph(given.bits)
    design = emit(mg, 1)
    latency, equal = simulated(mg, design, {"input": torch.randn(given.samples, SIZES[0])})
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
    if given.da4ml:
        print(count_da4ml(given.da4ml, mg, given.bits))
        print(markdown_table(adder_rows(given.da4ml, mg)))
        counts = numpy.mean([count_adders(matrix) for matrix in published_matrices()], 0)
        print("adders and levels of 16 x 16 matrices, mean of 10:", counts)


def graph(bits: int) -> MaseGraph:
    """Returns the integer graph of the network with weights and activations of some bits."""
    formats = QuantSpec(Integer(bits, 2), Integer(bits, bits - 1), Integer(8, 5))
    return layer_graph(JetTagger, SIZES[:1], formats)


def simulated(mg: MaseGraph, design: Design, batch: dict[str, Any]) -> tuple[int, str]:
    """Returns the latency in cycles, and how many results equal those of the integer graph."""
    project, golden = describe_project(design), golden_values(mg, batch)
    codes = get_codes(project, golden)
    (samples,) = {len(rows) for rows in batch.values()}
    with scratch_folder("circuit") as folder:
        write_circuit(design, codes, folder)
        runs = [
            run_check(folder, project, codes, Check("verilator", profile, samples, 1))
            for profile in PROFILES
        ]
    outputs = [port.name for port in project.ports if not port.is_input]
    equal = sum(run.equal for run in runs)
    whole = len(runs) * sum(math.prod(codes[name].shape) for name in outputs)
    return runs[0].latency or 0, f"{equal:,} of {whole:,}"


def count_da4ml(python: str, mg: MaseGraph, bits: int) -> dict[str, int]:
    """Returns stages, lookup tables and flip-flops of da4ml's pipeline of the same layers."""
    layers = [module for module in mg.modules.values() if isinstance(module, IntegerLinear)]
    arrays: dict[str, Any] = {}
    for number, layer in enumerate(layers):
        # Inputs have steps of 1/4, as `graph` chooses.
        arrays[f"w{number}"] = layer.weight.double().numpy() * layer.out_step * 4
        arrays[f"b{number}"] = layer.bias.double().numpy() * layer.out_step
    with scratch_folder("da4ml") as folder:
        numpy.savez(folder / "layers.npz", **arrays)
        command = [python, "-c", DA4ML, str(bits)]
        made = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        source = folder / "project" / "src"
        names = [*source.glob("jet*.v"), *(source / "static").glob("*.v")]
        kept = [name for name in names if name.stem not in ("jet_wrapper", "lookup_table")]
        counted = count_ecp5(folder, kept, "jet")
    return {"stages": int(made.stdout.split()[-1]), "lut": counted["lut"], "ff": counted["ff"]}


def adder_rows(python: str, mg: MaseGraph) -> list[dict[str, Any]]:
    """Returns adders and levels of each weight matrix, of chop and da4ml."""
    layers = [module for module in mg.modules.values() if isinstance(module, IntegerLinear)]
    with scratch_folder("da4ml") as folder:
        matrices = {str(number): layer.weight.numpy() for number, layer in enumerate(layers)}
        numpy.savez(folder / "matrices.npz", **matrices)
        command = [python, "-c", DA4ML_ADDERS]
        made = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    columns = ("chop", "levels", "da4ml, fewest levels", "its levels", "no limit", "levels there")
    return [
        {"matrix": f"{matrix.shape[1]} to {matrix.shape[0]}"}
        | dict(zip(columns, (*count_adders(matrix), *map(int, theirs)), strict=True))
        for matrix, theirs in zip(matrices.values(), json.loads(made.stdout), strict=True)
    ]


def published_matrices() -> list[Any]:
    """Returns random matrices of the kind whose adders da4ml's authors published."""
    generator = numpy.random.default_rng(0)
    return [generator.integers(129, 256, (16, 16)) for _ in range(10)]


def count_adders(matrix: Any) -> tuple[int, int]:
    """Returns the adders of chop for a matrix, and the most in a row.

    Args:
        matrix: integers, numpy (outputs, inputs).
    """
    outputs, inputs = matrix.shape
    built = adder_graph([(-128, 127)] * inputs, matrix.tolist(), [0] * outputs)
    return len(list(built.adders)), max(node.level for node in built.nodes)


if __name__ == "__main__":
    main()
