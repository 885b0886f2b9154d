"""Tutorial 8: from a trained model to a verified circuit.

python examples/tutorial_8.py                (built-in MLP and digits, a minute)
python examples/tutorial_8.py --model vit    (the vision transformer, minutes)
python examples/tutorial_8.py --quick        (few samples, no synthesis, half a minute)

First pass by pass: the model is quantized and lowered to integers; the integer graph is emitted as
SystemVerilog and simulated with vectors that the graph computes. Then a fault is planted in a copy
of the project, one word of a weight memory, and the simulation finds it. Last the one command that
does all of it and keeps hashes and seeds, so that its checks can be repeated: `chop emit`.

Verilator, Icarus and Yosys are needed: `chop doctor` says how to get them.
"""

import argparse
import shutil
from pathlib import Path

from chop import MaseGraph, passes
from chop.actions import simulate
from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.base.tables import print_table
from chop.errors import VerificationError
from chop.hardware.check.emitted import check_emitted
from chop.train import calibration_batches, default_dataset, evaluate, load_trained

EIGHT_BITS = {"config": {"name": "integer", "width": 8, "frac_width": "auto"}}
COLUMNS = ("simulator", "profile", "samples", "equal", "cycles", "interval")


def lowered_graph(model, dataset, batch):
    """The model in integers: what the circuit computes, bit for bit."""
    mg = MaseGraph(model, dummy_in={"pixel_values": batch["pixel_values"]})
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    mg, _ = passes.conv_bn_fusion_transform_pass(mg)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": EIGHT_BITS})
    batches = list(calibration_batches(mg.model, dataset["train"]))
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": batches})
    integer, info = passes.lower_to_integer_transform_pass(mg, {"batches": [batch]})
    different = sum(row["different"] for row in info["operators"])
    codes = sum(row["codes"] for row in info["operators"])
    print(f"quantized: {evaluate(mg.model, dataset['test']):.2%}")
    print(f"in integers: {different} of {codes:,} codes differ")
    return integer


def components(integer, fold):
    """A row for each node that needs logic of its own; the others only move codes."""
    integer, info = passes.add_hardware_metadata_analysis_pass(integer, {"fold": fold})
    rows = []
    for node in integer.nodes:
        hardware = node.meta["mase"]["hardware"]
        if not hardware["is_implicit"]:
            lanes = f"{', '.join(map(str, hardware['lanes']))} to {hardware['out_lanes']}"
            about = {key: hardware[key] for key in ("module", "cycles", "memory_bits")}
            rows.append({"node": node.name, "lanes": lanes, **about})
    nodes, interval = info["explicit"], info["interval"]
    print_table(f"{nodes} nodes with a component, a sample every {interval} cycles", rows)


def write(integer, batch, settings):
    """The project: top module, library, memories, vectors and testbenches."""
    passes.emit_verilog_top_transform_pass(integer, settings)
    passes.emit_internal_rtl_transform_pass(integer, settings)
    _, info = passes.emit_bram_transform_pass(integer, settings)
    print(f"{len(info['memories'])} memories of {info['bits']:,} bits in all")
    passes.emit_cocotb_transform_pass(integer, {**settings, "batches": [batch]})


def plant_fault(project, faulty):
    """Inverts the bits of one word of a weight memory, in a copy of the project."""
    shutil.rmtree(faulty, ignore_errors=True)
    shutil.copytree(project, faulty)
    memory = sorted((faulty / "memory").glob("*_weight.hex"))[-1]
    words = memory.read_text().split()
    place = len(words) // 2
    largest = 16 ** len(words[place]) - 1
    words[place] = f"{int(words[place], 16) ^ largest:0{len(words[place])}x}"
    memory.write_text("\n".join(words) + "\n")
    print(f"planted: word {place} of {memory.name}")


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mlp", choices=("mlp", "cnn", "vit"))
    parser.add_argument("--fold", type=int, default=0, help="cycles for a sample; 0 chooses")
    parser.add_argument("--samples", type=int, default=100, help="test rows to simulate")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-8"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    samples = 8 if args.quick else args.samples

    model, dataset = load_trained(args.model), default_dataset(args.model)
    print(f"float: {evaluate(model, dataset['test']):.2%}")
    (batch,) = calibration_batches(model, dataset["test"], rows=samples, batch_size=samples)
    integer = lowered_graph(model, dataset, batch)
    components(integer, args.fold)

    project = args.out / "project"
    write(integer, batch, {"project_dir": project, "fold": args.fold})
    found = simulate(project_dir=project)["simulations"]
    print_table("Simulations", [{key: row[key] for key in COLUMNS} for row in found])

    faulty = args.out / "faulty"
    plant_fault(project, faulty)
    try:
        simulate(skip_build=True, project_dir=faulty)
    except VerificationError as error:
        print(f"found: {error}")

    # The same in one call, as `chop emit --model mlp --out runs/tutorial-8/verified` does it.
    verified = args.out / "verified"
    settings = EmitConfig(
        model=args.model,
        out=verified,
        fold=args.fold,
        samples=samples,
        synthesis=not args.quick,
    )
    result = emit(settings)
    print(f"{result['pytorch']['different']} outputs differ from PyTorch")
    again = check_emitted(verified)
    print(f"checked again: {sum(row.equal for row in again):,} equal outputs")
    print(f"look at {verified}/dataflow.svg and {verified}/report.md")


if __name__ == "__main__":
    main()
