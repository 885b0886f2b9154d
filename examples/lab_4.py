"""Lab 4: what was gained, measured: torch.compile, fused attention, packed weights.

python examples/lab_4.py            (bert-tiny and resnet18, five minutes)
python examples/lab_4.py --model resnet50 --device cuda
python examples/lab_4.py --parts 2  (one part of the three, or several)
python examples/lab_4.py --quick    (small sizes, to see that it works, half a minute)

Part 1: a model as it is and compiled, timed in the three ways that people use: in turns, by
`torch.utils.benchmark`, and with a clock around a loop; then when compiling pays. Part 2: attention
written out and fused, alone and inside a model, and Linear with ReLU. Part 3: weights in MXINT8,
8.25 bits each: decoding them, multiplying by them, and what is left of the 74.2 % that they save
when a model is measured.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from chop import MaseGraph, passes
from chop.actions.bench.report import write_results
from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.bench.record import format_ratio, format_seconds
from chop.bench.timing import METHODS
from chop.models.named import get_model
from chop.studies.attention import BenchAttentionConfig, bench_attention
from chop.studies.compile import BenchCompileConfig, bench_compile, random_inputs
from chop.studies.dequantize import BenchDequantizeConfig, bench_dequantize
from chop.studies.linear import BenchLinearConfig, bench_linear


def compile_a_model(args, shared):
    """Part 1: torch.compile."""
    models = (args.model,) if args.model else ("bert-tiny", "resnet18")
    found = bench_compile(
        BenchCompileConfig(models=models, batch_sizes=(16,), out=args.out / "compile", **shared)
    )
    write_results(found, args.out / "compile")
    compare_ways_of_timing("mlp" if args.quick else models[0], args)


def compare_ways_of_timing(name, args):
    """The same two functions, timed in turns and one after the other."""
    model = get_model(name).to(args.device)
    torch._dynamo.reset()
    inputs = random_inputs(model, 16, 32, image_size=64, device=args.device)
    variants = [
        Variant("eager", partial(model, **inputs)),
        Variant("compiled", partial(torch.compile(model), **inputs)),
    ]
    rows = []
    for method in METHODS:
        for run in range(2 if args.quick else 4):
            found = compare(
                variants,
                method=method,
                seconds=0.02 if args.quick else 0.5,
                device=args.device,
                threads=1,
            )
            rows.append(
                {
                    "method": method,
                    "run": run + 1,
                    "eager": format_seconds(found["eager"].seconds),
                    "compiled": format_seconds(found["compiled"].seconds),
                    "times as fast": format_ratio(found["compiled"].ratio),
                }
            )
    print_table(f"{name}, batch 16: the same two functions, measured again and again", rows)


def fuse_attention(args, shared):
    """Part 2: scaled-dot-product attention, and a linear layer with its activation."""
    sizes = {} if args.quick else {"shapes": ("8x12x128x64", "1x12x1024x64")}
    found = bench_attention(BenchAttentionConfig(dtypes=("float32",), **sizes, **shared))
    write_results(found, args.out / "attention")
    write_results(bench_linear(BenchLinearConfig(**shared)), args.out / "linear")

    model = get_model("bert-tiny")
    model.set_attn_implementation("eager")
    mg = MaseGraph(model)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    fused, info = passes.fuse_attention_transform_pass(mg)
    tokens = 128 if args.quick else 512
    inputs = random_inputs(model, 8, tokens)
    graphs = {"written out": mg, "fused": fused}
    variants = [Variant(name, partial(each.model, **inputs)) for name, each in graphs.items()]
    found = compare(variants, seconds=0.02 if args.quick else 1.0, threads=1)
    print(f"fused in the graph of bert-tiny: {', '.join(info['fused'])}")
    found.table(f"bert-tiny as a graph, {tokens} tokens")


def pack_weights(args, shared):
    """Part 3: MXINT8."""
    formats = ("mxint8", "mxint4")
    found = bench_dequantize(BenchDequantizeConfig(formats=formats, **shared))
    write_results(found, args.out / "dequantize")
    stored, exact = 8 + 8 / 32, 32
    saved = 1 - stored / exact
    print(f"MXINT8 in groups of 32: {stored} bits, {saved:.1%} saved on packed layers.")
    print("Embeddings, norms and biases stay float: the table above says what that leaves.")


PARTS = {1: compile_a_model, 2: fuse_attention, 3: pack_weights}


def main():
    """Runs the lab."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="built-in, a name of chop.models, local folder or hub name")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/lab-4"))
    parser.add_argument("--parts", type=int, nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    shared = {"device": args.device, "quick": args.quick}
    for part in args.parts:
        PARTS[part](args, shared)


if __name__ == "__main__":
    main()
