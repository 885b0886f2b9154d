"""Lab 3: mixed precision, one best-so-far curve for each number format.

python examples/lab_3.py            (built-in vision transformer and digits, ten minutes)
python examples/lab_3.py --formats integer,mxint,log --seeds 1
python examples/lab_3.py --model DIR --dataset DIR --max-length 256 --limit 2000
python examples/lab_3.py --quick    (a few trials, to see that it works, two minutes)

Part 1: integers, with a width and a fraction for each layer. Part 2: every format, one curve each,
with its own settings for inputs and weights of each layer. Part 3: the same, with an epoch of
training in each trial. Figures and tables: OUT/widths-compared, OUT/formats-compared and
OUT/trained-compared. Trials are measured on validation rows, the best of each search on test rows
too. The same command resumes an interrupted lab. The parts are those of

chop search precision --goal accuracy --no-warm-start --sampler tpe --widths 8,16,32 ...
  1. --per layer --ranges frac_width=2,4,8 --seeds 3
  2. --formats all --per-format --ranges exponent_width=2,3,4 block_size=16,32 ... --seeds 3
  3. the same with --epochs 1
"""

import argparse
from pathlib import Path

from chop.actions.search.job import find_job
from chop.actions.search.settings import PrecisionConfig
from chop.actions.search.several import run_several
from chop.problems.mixed_precision.candidates import every_format, get_fields
from chop.search.registry import SAMPLERS

WIDTHS = (8, 16, 32)
FRACTIONS = {"frac_width": (2, 4, 8)}
EVERY = {
    **FRACTIONS,
    "exponent_width": (2, 3, 4),
    "exponent_bias": (3, 7, 15),
    "exponent_bias_width": (2, 3, 4),
    "block_size": (16, 32),
}
"""Values by field; each format takes those of its fields."""
SLOW = ("group_affine", "group_integer")
"""Formats that search the scale of every group, of inputs in each forward."""
FORMATS_HELP = f"of parts 2 and 3, as integer,mxint; default: all except {' and '.join(SLOW)}"


def main():
    """Runs the lab."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit", help="built-in, local folder or hub name")
    parser.add_argument("--dataset", help="default: the built-in model's own")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--formats", help=FORMATS_HELP)
    parser.add_argument(
        "--trials", type=int, default=40, help="of each search in parts 1 and 2, default 40"
    )
    parser.add_argument("--trained-trials", type=int, default=10, help="of part 3, default 10")
    parser.add_argument("--seeds", type=int, default=3, help="of parts 1 and 2, default 3")
    parser.add_argument("--sampler", default="tpe", help=f"{', '.join(SAMPLERS)}; default tpe")
    parser.add_argument("--out", type=Path, default=Path("runs/lab-3"), help="folder of all files")
    parser.add_argument("--quick", action="store_true", help="few trials, to see that it works")
    args = parser.parse_args()
    if args.quick:
        args.trials, args.trained_trials, args.seeds = 3, 2, 1

    shared = {
        "model": args.model,
        "dataset": args.dataset,
        "max_length": args.max_length,
        "limit": args.limit,
        "sampler": args.sampler,
        "out": args.out,
        "widths": WIDTHS,
        "goals": ("accuracy",),
        "bias": "float",
        "warm_start": False,  # the curves begin where the sampler begins
        "budgets": {},
    }
    often = {"trials": args.trials, "seeds": args.seeds}
    usual = [name for name in every_format() if name not in SLOW]
    names = args.formats.split(",") if args.formats else usual
    known = set().union(*map(get_fields, names))
    ranges = {field: values for field, values in EVERY.items() if field in known}
    formats = {"formats": tuple(names), "per_format": True, "ranges": ranges}
    parts = {
        "widths": {**often, "samplers": (args.sampler,), "per": "layer", "ranges": FRACTIONS},
        "formats": {**often, **formats},
        "trained": {"trials": args.trained_trials, **formats, "epochs": 1},
    }
    for name, settings in parts.items():
        run_several(find_job("precision"), PrecisionConfig(**shared, **settings, name=name))
    print("Figures: " + ", ".join(f"{args.out}/{name}-compared/best-so-far.svg" for name in parts))


if __name__ == "__main__":
    main()
