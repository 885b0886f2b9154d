"""How well scores of untrained models foretell the accuracy of trained ones, on built-in spaces.

python benchmarks/proxies.py                 (minutes; goes on where it was killed)

Architectures of the built-in vision transformer on digits are drawn at random, scored on one batch
and trained for 5 epochs. `sizes` varies layers, heads, hidden and intermediate size; `layers`
replaces square linear layers by nothing at all; `both` varies all. A score is worth its rank
correlation with accuracy (Spearman's rho, with a 95 % bootstrap interval, and Kendall's tau), and
what training only its best quarter would give: the mean accuracy there, less the mean of all.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from scipy.stats import kendalltau, spearmanr

from chop.base.tables import markdown_table
from chop.models import load_model
from chop.problems.nas.architecture import Architectures, usual_fields
from chop.problems.nas.proxies import PROXIES, zero_cost_score
from chop.problems.nas.training import TrainedMeasure, split_rows
from chop.runs import Journal
from chop.train import default_dataset, read_rows

ROWS = 32
RESAMPLES = 1000


def spaces():
    """The spaces by name."""
    model = load_model("vit")
    fields = usual_fields(model.config)
    base = {name: (getattr(model.config, name),) for name in fields}
    return {
        "sizes": Architectures(model, fields, square_layers={}),
        "layers": Architectures(model, base),
        "both": Architectures(model, fields),
    }


def draw(space, count, seed=0):
    """Different possible configurations."""
    chance, found = random.Random(seed), {}
    while len(found) < min(count, space.size):
        config = space.at(chance.randrange(space.size))
        if space.why_infeasible(config) is None:
            found.setdefault(space.key(config), config)
    return list(found.values())


def measured(name, found, count, journal):
    """Scores and accuracy of architectures, each measured once for all runs."""
    train, validation = split_rows(read_rows(default_dataset("vit")["train"]))
    measure = TrainedMeasure(found.build, train, validation)
    batch = next(train.batches(ROWS))
    rows = []
    for i, config in enumerate(draw(found.space, count)):
        settings = {"space": name, "config": dict(config)}
        row = journal.find(settings)
        if row is None:
            model = found.build(config)
            scores = {proxy: zero_cost_score(proxy, model, batch) for proxy in PROXIES}
            accuracy = measure(config, lambda step, value: None)["accuracy"]
            row = journal.add(settings, {**scores, "accuracy": accuracy})
        rows.append(row)
        print(f"{name}: {i + 1} of {count}: {row['accuracy']:.2%}", flush=True)
    return rows


def judge(rows, proxy):
    """What one score is worth."""
    scores = np.array([row[proxy] for row in rows])
    accuracy = np.array([row["accuracy"] for row in rows])
    chance = np.random.default_rng(0)
    drawn = [chance.integers(len(rows), size=len(rows)) for _ in range(RESAMPLES)]
    resampled = [spearmanr(scores[i], accuracy[i]).statistic for i in drawn]
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    best = np.argsort(-scores, kind="stable")[: max(1, len(rows) // 4)]
    return {
        "rho": f"{spearmanr(scores, accuracy).statistic:.2f} ({low:.2f} to {high:.2f})",
        "tau": f"{kendalltau(scores, accuracy).statistic:.2f}",
        "best quarter": f"{100 * (accuracy[best].mean() - accuracy.mean()):+.1f}",
    }


def main():
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="architectures of each space")
    parser.add_argument("--out", type=Path, default=Path("runs/proxies"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    journal = Journal(args.out / "measured.jsonl")
    known = {n: measured(n, found, args.count, journal) for n, found in spaces().items()}
    table = []
    for proxy in PROXIES:
        row = {"score": proxy}
        for name, rows in known.items():
            row |= {f"{name}: {key}": text for key, text in judge(rows, proxy).items()}
        table.append(row)
    print(markdown_table(table))
    for name, rows in known.items():
        accuracy = [row["accuracy"] for row in rows]
        print(f"{name}: accuracy {min(accuracy):.1%} to {max(accuracy):.1%}")
    (args.out / "table.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
