"""Lab 1: accuracy against bits, and accuracy against sparsity, as figures and tables.

python examples/lab_1.py                          (built-in model and digits, a quarter of an hour)
python examples/lab_1.py --model DIR --dataset DIR --max-length 256 --epochs 1
python examples/lab_1.py --seeds 3                (mean and range of three seeds)
python examples/lab_1.py --quick                  (few points, to see that it works, half a minute)

The same as four commands; killed and started again it goes on where it was:

1. `chop sweep quantize`: widths, by PTQ and QAT (folder `width`).
2. `chop sweep quantize --integer-bits 1:6 --fraction-bits 1:12`: the ranges of weights and inputs,
   integer bits, and fraction bits at the number of integer bits that suffices (`bits`).
3. `chop sweep prune`: weights of the float model, by random and L1 (`sparsity`).
4. `chop sweep prune --from width --activation l1-norm,random`: weights and activations of the best
   quantized model, separately and together, in four combinations of methods (`quantized-sparsity`).

Then it picks the narrowest width and the highest sparsity that cost at most a point, and applies
both to one model.
"""

import argparse
from pathlib import Path

from chop import MaseGraph, passes
from chop.actions.compress.ptq import quantize_after_training
from chop.actions.sweep.prune import PruneSweepConfig, prune_sweep
from chop.actions.sweep.quantize import QuantizeSweepConfig, quantize_sweep
from chop.formats import Integer
from chop.train import evaluate
from chop.workloads.load import load_workload
from chop.workloads.workload import raise_to_graph

TOLERATED = 0.01
METHODS = ("l1-norm", "random")


def main():
    """Runs the lab."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit", help="built-in, local folder or hub name")
    parser.add_argument("--dataset", help="default: the built-in model's own")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--epochs", type=int, help="of QAT and of fine-tuning")
    parser.add_argument("--seeds", type=int, default=1, help="of QAT, pruning and fine-tuning")
    parser.add_argument("--out", type=Path, default=Path("runs/lab-1"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()

    common = {"model": args.model, "dataset": args.dataset, "max_length": args.max_length}
    common |= {"limit": args.limit, "seeds": args.seeds}
    epochs = 1 if args.quick else args.epochs
    widths = QuantizeSweepConfig(
        **common,
        out=args.out / "width",
        widths="4:8:4" if args.quick else "4:32:4",
        frac="half,auto",
        qat_epochs=epochs,
    )
    bits = QuantizeSweepConfig(
        **common,
        out=args.out / "bits",
        integer_bits="2:3" if args.quick else "1:6",
        fraction_bits="5" if args.quick else "1:12",
        qat_epochs=0 if args.quick else epochs,
    )
    shares = PruneSweepConfig(
        **common,
        out=args.out / "sparsity",
        sparsity="0.3,0.5" if args.quick else "0.1:0.9:0.1",
        methods=METHODS,
        finetune_epochs=epochs,
    )
    both = PruneSweepConfig(
        **common,
        out=args.out / "quantized-sparsity",
        start_from=widths.out,
        sparsity="0.5" if args.quick else "0.1:0.9:0.2",
        methods=METHODS,
        activation=METHODS,
        finetune_epochs=0 if args.quick else epochs,
    )
    workload = load_workload(widths)
    by_width = quantize_sweep(widths, workload)
    quantize_sweep(bits, workload)
    by_sparsity = prune_sweep(shares, workload)
    prune_sweep(both, workload)

    narrow = best(by_width, "PTQ", lambda row: -row["width"])
    sparse = best(by_sparsity, "pruned", lambda row: row["sparsity"])
    print(f"narrowest within a point: {narrow['width']}.{narrow['frac_width']}")
    print(f"sparsest within a point: {sparse['method']} {sparse['sparsity']}")

    mg = raise_to_graph(workload)
    mg, _ = passes.prune_transform_pass(
        mg, {"weight": {"method": sparse["method"], "sparsity": sparse["sparsity"]}}
    )
    number_format = Integer(narrow["width"], narrow["frac_width"])
    mg = quantize_after_training(
        mg, number_format, widths.operators, workload, widths.calibration_rows
    )
    mg.export(args.out / "both")
    reloaded = MaseGraph.from_checkpoint(args.out / "both")
    accuracy = evaluate(reloaded.model, workload.test)
    print(f"both together: {accuracy:.2%} against {narrow['float']:.2%} float; {args.out}")


def best(rows, stage, key):
    """The row that saves most among those that lose at most a point; else the most accurate."""
    good = [row for row in rows if row[stage] >= row["float"] - TOLERATED]
    return max(good, key=key) if good else max(rows, key=lambda row: row[stage])


if __name__ == "__main__":
    main()
