"""Lab 2: architecture search, samplers compared, and search that knows of compression.

python examples/lab_2.py            (built-in vision transformer and digits, five minutes)
python examples/lab_2.py --model DIR --dataset DIR --max-length 256 --limit 2000
python examples/lab_2.py --sampler tpe      (which searches the three modes)
python examples/lab_2.py --quick    (a few trials, to see that it works, half a minute)

Part 1: the best accuracy so far against trials, for each sampler, over several seeds. Part 2: the
same for one sampler in three modes: as trained; quantized to 4 bits and half pruned; trained again
after that. Both are compared as `chop search compare` does it: OUT/samplers and OUT/modes.

Each architecture is trained once and its accuracy in each mode written down, so that samplers and
seeds cost only what they find anew. Killed and started again, the lab goes on where it was.
"""

import argparse
from pathlib import Path

from chop.actions.search.compare import compare_searches
from chop.base.files import write_json
from chop.problems.nas.architecture import Architectures
from chop.problems.nas.compression import PASS_ARGS, Compression
from chop.problems.nas.training import TrainedMeasure, split_rows
from chop.report.measured import MeasuredTable
from chop.runs import Journal
from chop.search import Goal, Search
from chop.train import evaluate
from chop.workloads.fingerprints import fingerprint_of_rows
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig

SIZES = {
    "num_hidden_layers": (1 / 2, 1, 3 / 2),
    "num_attention_heads": (1 / 2, 1, 3 / 2),
    "hidden_size": (1 / 2, 1, 3 / 2),
    "intermediate_size": (1 / 4, 1 / 2, 1),
}
"""Field of the model's configuration -> parts of what it is."""
SAMPLERS = ("grid", "random", "tpe", "sensitivity")
MODES = ("none", "compress", "compress-train")


class Lab:
    """Architectures of a model, each measured once, whichever search asks."""

    def __init__(self, workload, args):
        base = workload.model.config
        fields = {
            name: sorted({max(1, round(part * getattr(base, name))) for part in parts})
            for name, parts in SIZES.items()
        }
        self.found = Architectures(workload.model, fields, square_layers={})
        self.workload, self.args = workload, args
        self.train, self.validation = split_rows(workload.train)
        self.training = {"epochs": args.epochs, "lr": args.lr, "batch_size": 64, "seed": 0}
        self.journal = Journal(args.out / "measured.jsonl")

    def accuracy(self, config, mode):
        """On validation rows."""
        about = {"config": dict(config), "mode": mode, "training": self.training}
        about["rows"] = fingerprint_of_rows(self.train)
        known = self.journal.find(about)
        if known is None:
            self.measure(config, about, MODES if mode != "none" else ("none",))
            known = self.journal.find(about)
        return known["accuracy"]

    def measure(self, config, about, modes):
        """Trains an architecture, and notes its accuracy in the modes that are not known yet."""
        trained = self.measure_of("none").trained(config)
        for mode in (m for m in modes if self.journal.find({**about, "mode": m}) is None):
            model = self.compression(mode).apply(trained, self.train, self.training)
            accuracy = evaluate(model, self.validation)
            self.journal.add({**about, "mode": mode}, {"accuracy": accuracy})

    def measure_of(self, mode):
        """Trains, and compresses, one architecture."""
        return TrainedMeasure(
            self.found.build, self.train, self.validation, self.training, self.compression(mode)
        )

    def compression(self, mode):
        """4-bit integers with derived fractions, half of the weights, two epochs after it."""
        return Compression(mode, PASS_ARGS, epochs=2)

    def search(self, sampler, seed, mode="none"):
        """One search, which goes on where it was."""
        search = Search(
            self.found.space,
            lambda config, report: {"accuracy": self.accuracy(config, mode)},
            Goal("accuracy"),
            sampler=sampler,
            seed=seed,
            out=self.args.out,
            name=study_name(sampler, seed, mode),
        )
        until = self.args.trials if mode == "none" else self.args.mode_trials
        result = search.run(until=until, progress=False)
        search.close()
        best = result.best
        print(f"{sampler}, {mode}, seed {seed}: {best.values['accuracy']:.2%}", flush=True)
        return result


def study_name(sampler, seed, mode):
    """One study for each search, all in one storage."""
    return f"{sampler}, {mode}, seed {seed}"


def main():
    """Runs the lab."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit", help="built-in, local folder or hub name")
    parser.add_argument("--dataset", help="default: the built-in model's own")
    parser.add_argument("--max-length", type=int, help="tokens of a text")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--trials", type=int, default=25, help="of each sampler and seed")
    parser.add_argument("--mode-trials", type=int, default=25, help="of each mode and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sampler", default="sensitivity", help="of the searches of each mode")
    parser.add_argument("--epochs", type=int, default=5, help="of each training")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--out", type=Path, default=Path("runs/lab-2"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.trials, args.mode_trials, args.seeds, args.epochs = 3, 2, 1, 1

    workload = load_workload(
        WorkloadConfig(
            model=args.model,
            dataset=args.dataset,
            max_length=args.max_length,
            limit=args.limit,
            out=args.out,
        )
    )
    lab = Lab(workload, args)
    print(f"{lab.found.num_distinct()} different architectures")
    title = workload.title
    every = [(sampler, seed) for sampler in SAMPLERS for seed in range(args.seeds)]
    for sampler, seed in every:
        lab.search(sampler, seed)
    compare_searches(
        [f"{args.out}:{study_name(sampler, seed, 'none')}" for sampler, seed in every],
        labels=[sampler for sampler, _ in every],
        out=args.out / "samplers",
        title=f"{title}: samplers",
    )
    every = [(mode, seed) for mode in MODES for seed in range(args.seeds)]
    found = {key: lab.search(args.sampler, key[1], key[0]) for key in every}
    compare_searches(
        [f"{args.out}:{study_name(args.sampler, seed, mode)}" for mode, seed in every],
        labels=[mode for mode, _ in every],
        out=args.out / "modes",
        title=f"{title}: modes, searched by {args.sampler}",
    )
    best = {mode: best_of(found[mode, seed] for seed in range(args.seeds)) for mode in MODES}
    table = [report(lab, mode, trial) for mode, trial in best.items()]
    MeasuredTable(f"{title}: the best of each mode", table).write(args.out)
    chosen = {mode: dict(trial.config) for mode, trial in best.items()}
    write_json(args.out / "best.json", chosen)


def best_of(results):
    """The best trial of several searches."""
    return max((result.best for result in results), key=lambda trial: trial.values["accuracy"])


def report(lab, mode, best):
    """The best of a mode, trained again and judged on rows that no trial saw."""
    measure = lab.measure_of(mode)
    numbers = measure(best.config, lambda step, value: None)
    return {
        "mode": mode,
        "architecture": " ".join(best.config.values()),
        "parameters": round(numbers["parameters"]),
        "size (bytes)": round(numbers["size_bytes"]),
        "validation": best.values["accuracy"],
        "test": evaluate(measure.last, lab.workload.test),
    }


if __name__ == "__main__":
    main()
