"""A search from a loop of your own: a pool of processes, joblib, or Ray Tune.

python examples/own_loop.py                    (two processes, a minute)
python examples/own_loop.py --with joblib
python examples/own_loop.py --with ray         (pip install "ray[tune]")

Where another program starts the work, on a Ray or a Dask cluster say, one function is enough: it
measures a configuration. Each process prepares what it measures on once. A pool and joblib ask a
sampler for configurations, measure them in parallel, and tell the sampler; Dask is the same with
`distributed.Client().submit`. Ray Tune has samplers of its own.

Trials are then the program's own: it keeps them, and it decides what a kill loses.
"""

import argparse
import concurrent.futures
import functools
import multiprocessing
from pathlib import Path

import optuna
import torch

from chop.actions.search.precision import PrecisionConfig, prepare
from chop.search.samplers import SensitivitySampler

MOST_BITS = 4.0


@functools.cache
def prepared(limit):
    """The search that `chop search precision` would run: once in each process."""
    torch.set_num_threads(1)
    return prepare(PrecisionConfig(model="mlp", limit=limit, budgets={"bits": MOST_BITS}))


def measure(config, limit):
    """What a configuration is worth: numbers by name."""
    return dict(prepared(limit).measure(config, lambda step, value: None))


def new_study(space):
    """Optuna's study, with the sampler of `chop search`: any of Optuna's does too."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="minimize", sampler=SensitivitySampler(space, seed=0))


def ask(study, space):
    """A trial and its configuration."""
    trial = study.ask(space.distributions())
    return trial, space.from_params(trial.params)


def tell(study, trial, values):
    """Lets the sampler learn; beyond the budget is a constraint above 0."""
    trial.set_constraint("bits", values["bits"] - MOST_BITS)
    trial.set_user_attr("values", values)
    study.tell(trial, values["kl"])


def with_pool(trials, workers, limit):
    """As each process ends its trial, the next one is asked for."""
    space = prepared(limit).space
    study = new_study(space)
    spawn = multiprocessing.get_context("spawn")  # threads and GPUs do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(workers, spawn) as pool:
        running = {}
        for _ in range(trials):
            if len(running) == workers:
                tell_finished(study, running)
            trial, config = ask(study, space)
            running[pool.submit(measure, config, limit)] = trial
        while running:
            tell_finished(study, running)
    return [trial.user_attrs["values"] for trial in study.trials]


def tell_finished(study, running):
    """Waits for one at least."""
    done, _ = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
    for future in done:
        tell(study, running.pop(future), future.result())


def with_joblib(trials, workers, limit):
    """In rounds: joblib returns when all of a round have ended."""
    import joblib

    space = prepared(limit).space
    study = new_study(space)
    with joblib.Parallel(workers) as parallel:
        for first in range(0, trials, workers):
            asked = [ask(study, space) for _ in range(min(workers, trials - first))]
            found = parallel(joblib.delayed(measure)(config, limit) for _, config in asked)
            for (trial, _), values in zip(asked, found, strict=True):
                tell(study, trial, values)
    return [trial.user_attrs["values"] for trial in study.trials]


def with_ray(trials, workers, limit):
    """Ray Tune asks its own sampler; the budget is a penalty, for it knows no constraints."""
    from ray import tune

    def trainable(config):
        values = measure(config, limit)
        over = max(0.0, values["bits"] - MOST_BITS)
        tune.report({**values, "score": values["kl"] + over})

    choices = {choice.name: tune.choice(choice.texts) for choice in prepared(limit).space.choices}
    settings = tune.TuneConfig(
        metric="score",
        mode="min",
        num_samples=trials,
        max_concurrent_trials=workers,
        reuse_actors=True,  # a process that is prepared measures the next trial too
    )
    files = tune.RunConfig(storage_path=str(Path("runs/ray").absolute()), verbose=0)
    tuner = tune.Tuner(trainable, param_space=choices, tune_config=settings, run_config=files)
    results = tuner.fit()
    return [dict(result.metrics) for result in results]


LOOPS = {"pool": with_pool, "joblib": with_joblib, "ray": with_ray}


def main():
    """Runs the loop that was asked for and prints the best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--with", dest="loop", choices=LOOPS, default="pool")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=None, help="rows of each split")
    arguments = parser.parse_args()
    found = LOOPS[arguments.loop](arguments.trials, arguments.workers, arguments.limit)
    within = [values for values in found if values["bits"] <= MOST_BITS + 1e-9]
    best = min(within or found, key=lambda values: values["kl"])
    print(f"{len(found)} configurations, {len(within)} within {MOST_BITS:g} bits per weight")
    print(f"best: {best['bits']:.2f} bits, kl {best['kl']:.4f}, accuracy {best['accuracy']:.1%}")


if __name__ == "__main__":
    import own_loop  # under its own name other processes find its functions

    own_loop.main()
