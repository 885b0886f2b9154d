"""Tutorial 5: architecture search, and compression of what was found.

python examples/tutorial_5.py            (built-in vision transformer and digits, a few minutes)
python examples/tutorial_5.py --model DIR --dataset DIR --max-length 256 --limit 2000
python examples/tutorial_5.py --quick    (a few trials, to see that it works, half a minute)

The space of the course: how many layers and heads, which sizes, and Linear or Identity for every
square layer. The course sets `num_layers` and `num_heads`, which no configuration of BERT has, and
so varies two knobs that are not connected; here that is an error before the first trial.
"""

import argparse
from pathlib import Path

from chop.actions.search.compare import compare_searches
from chop.base.tables import print_table
from chop.errors import ConfigError
from chop.models import load_model
from chop.problems.nas.architecture import Architectures
from chop.problems.nas.compression import Compression
from chop.problems.nas.training import TrainedMeasure, split_rows
from chop.search import Goal, Search
from chop.train import evaluate
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig

COURSE = {
    "num_hidden_layers": [2, 4, 8],
    "num_attention_heads": [2, 4, 8, 16],
    "hidden_size": [128, 192, 256, 384, 512],
    "intermediate_size": [512, 768, 1024, 1536, 2048],
}
SMALL = {
    "num_hidden_layers": [1, 2, 3],
    "num_attention_heads": [2, 4, 6],
    "hidden_size": [24, 48, 72],
    "intermediate_size": [48, 96, 192],
}
QUANTIZE = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {"config": {"name": "integer", "width": 4, "frac_width": "auto"}},
}
PRUNE = {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}}


def show_the_space_of_the_course():
    """Counts it, and tries the names that the course uses."""
    bert = load_model("bert-tiny")
    try:
        Architectures(bert, {"num_layers": [2, 4, 8]})
    except ConfigError as error:
        print(f"as in the course: {error}")
    course = Architectures(bert, COURSE)
    print(
        f"the course's space: {course.space.size:.3g} settings, "
        f"{course.num_distinct():.3g} different architectures"
    )


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit", help="built-in, local folder or hub name")
    parser.add_argument("--dataset", help="default: the built-in model's own")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--samplers", default="random,tpe,sensitivity")
    parser.add_argument("--trials", type=int, default=20, help="of each sampler")
    parser.add_argument("--epochs", type=int, default=5, help="of each training")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-5"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.trials, args.epochs = 2, 1

    show_the_space_of_the_course()
    workload = load_workload(
        WorkloadConfig(
            model=args.model,
            dataset=args.dataset,
            max_length=args.max_length,
            limit=args.limit,
            out=args.out,
        )
    )
    fields = SMALL if args.model == "vit" else COURSE
    found = Architectures(workload.model, fields)
    train, validation = split_rows(workload.train)
    measure = TrainedMeasure(found.build, train, validation, {"epochs": args.epochs})
    results = {}
    for sampler in args.samplers.split(","):
        search = Search(
            found.space,
            measure,
            Goal("accuracy"),
            sampler=sampler,
            out=args.out,
            name=sampler,
            save=measure.save,
        )
        results[sampler] = search.run(until=args.trials)
        best = results[sampler].best
        print(
            f"{sampler}: {results[sampler].counts}, best {best.values['accuracy']:.2%} with "
            f"{best.values['parameters']:.0f} parameters"
        )
    compare_searches(  # the same as: chop search compare OUT/random OUT/tpe OUT/sensitivity
        [args.out / sampler for sampler in results],
        labels=list(results),
        out=args.out / "samplers",
        title=workload.title,
    )

    best = max((r.best for r in results.values()), key=lambda trial: trial.values["accuracy"])
    settings = {"quantize_transform_pass": QUANTIZE, "prune_transform_pass": PRUNE}
    print_table(
        "the best architecture, on rows that no trial saw",
        [
            compressed(measure, best.config, Compression(mode, settings, epochs=3), workload)
            for mode in ("none", "compress", "compress-train")
        ],
    )


def compressed(measure, config, compression, workload):
    """One line of the table: an architecture trained, and perhaps compressed."""
    again = TrainedMeasure(
        measure.build, measure.train, measure.validation, measure.training, compression
    )
    values = again(config, lambda step, value: None)
    return {
        "mode": compression.mode,
        "size (bytes)": round(values["size_bytes"]),
        "validation": f"{values['accuracy']:.2%}",
        "test": f"{evaluate(again.last, workload.test):.2%}",
    }


if __name__ == "__main__":
    main()
