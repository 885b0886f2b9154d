"""`chop search`: jobs, and commands on a search that has begun."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chop.cli.adapter import command_group
from chop.cli.command import Command, deferred
from chop.config import Range

LIFE = """[bold]Several searches[/]: --seeds 3, --samplers random,tpe. Each is a study
NAME-SAMPLER-seed-N with its own folder; OUT/NAME-compared has the figure best-so-far
(seeds as bands) and table.md (mean and range). [bold]Resume[/] a killed search: run the same
command again, or chop search resume OUT. [bold]Parallel[/]: --workers 4 on this machine; with
--storage postgresql://..., chop search worker URL on any machine. [bold]Watch[/] at any time: chop
search show OUT."""

PRECISION_HELP = f"""Search the number format of each layer (mixed precision) after training.

A trial chooses formats and widths; fractions and scales are calibrated on training rows. A trial
switches formats in place and takes milliseconds on small models.

The first trials are the closed-form assignments: the formats with the least predicted increase of
the loss within the budgets, from Fisher information (one backward pass over 256 training rows) and,
if time permits, from the KL divergence of each layer in each format. The table labels them
"no search". The last line says whether the search beats them on test rows by more than the error.

[bold]Examples[/]

  chop search precision --budget bits=4

  chop search precision --formats integer,mxint --widths 2:8:1 --budget bits=4 --trials 200

  chop search precision --goals accuracy,bits --sampler nsga2    # a Pareto front

  chop search precision --goals accuracy,lut --budget dsp=156 --device ecp5-85 --emit

  chop search precision --goals accuracy --epochs 2 --trials 30    # QAT in each trial

  chop search precision --formats all --per-format --goal accuracy --seeds 3

  chop search precision --widths 8,16,32 --ranges frac_width=2,4,8 --per layer --no-warm-start

  chop search precision --model ./my-bert --dataset ./imdb --max-length 256 --budget bits=5

[bold]Values by format[/], for each operand (data_in, weight) of each layer. --widths sets width;
--ranges frac_width=2,4,8 sets other fields. --formats all tries every format; --per-format runs one
search per format.

{{formats}}

[bold]Output[/]: OUT/search.db (every trial); in OUT/precision, or OUT/NAME: table.md, table.csv,
best.json, the best models in best/, no-search.json, and plots: accuracy, formats, best-so-far,
front, importance (.svg, .png); with --emit the circuit of the best trial in circuit/.
chop search export OUT best.toml writes the settings that chop compress --config takes.

{LIFE}"""

SENSITIVITY_HELP = """Measure the sensitivity of each layer to each format, without a search.

Quantizes one layer at a time to each format, with all others in float. Reports the change of the
model's outputs (kl, mse), the weights' error, Fisher information, the Hessian's trace and the
variance of activations.

[bold]Examples[/]

  chop search sensitivity --widths 2,4,8

  chop search sensitivity --model cnn --formats integer,mxint --metrics kl,fisher

[bold]Output[/] in --out: points.jsonl (one line per measured layer and format; a killed run resumes
from it), table.md, table.csv, sensitivity.json, and one heat map of the layers per metric."""

NAS_HELP = f"""Search the architecture (NAS): layers, heads, sizes, and Linear or Identity.

Fields are those of the model's configuration. The error for an unknown field names the nearest one.
Infeasible configurations are skipped, duplicates are evaluated once.

[bold]Examples[/]

  chop search nas

  chop search nas --field num_hidden_layers=1,2,4 --field hidden_size=32,64 --trials 20

  chop search nas --budget parameters=20000 --pruner asha --epochs 8

  chop search nas --samplers random,tpe --seeds 3 --trials 25

  chop search nas --compression compress-train    # trained and evaluated as 4-bit models

[bold]Output[/]: OUT/search.db (every trial); in OUT/nas, or OUT/NAME: table.md, table.csv,
best.json, the best models in best/, and plots: best-so-far, front, importance (.svg, .png).

{LIFE}"""

SHAPE_HELP = f"""Search the shape of a language model within a budget of parameters, by pruning.

A shape is a number of layers and of key-value heads, an MLP width and a hidden size. A trial prunes
the model to a shape, without training, and measures the KL divergence of its answers from the
original's. Shapes above the budget, and below 90 % of it (--least-share), are not measured.

[bold]Examples[/]

  chop search shape gpt-tiny --max-params 0.8

  chop search shape ./my-llama --dataset ./texts.txt --max-params 0.8 --trials 60

  chop search shape ./my-llama --dataset ./texts.txt --max-params 1e9 --layers 20,24,28,32

  chop search shape ./my-llama --dataset ./texts.txt --hidden-size 2048    # fixed

The last line is the chop prune command that distills the best shape.

[bold]Output[/]: OUT/search.db (every trial); in OUT/shape, or OUT/NAME: table.md, table.csv,
best.json, the best models in best/KEY/model (folders that transformers loads without chop), and
plots: best-so-far, front, importance (.svg, .png).

{LIFE}"""


def _job(name: str) -> Any:
    """Returns the search job of that name as a function that runs one search or several."""

    def run(config: Any) -> Any:
        from chop.actions.search.job import find_job, run_search
        from chop.actions.search.several import get_folder, is_several, run_several

        job = find_job(name)
        if not is_several(job, config):
            return _summary(run_search(job, config))
        rows = run_several(job, config)
        typer.echo(f"{get_folder(config) / 'best-so-far.svg'}")
        return rows

    return run


def _summary(result: Any) -> dict[str, Any]:
    return {"best": result.best, "front": result.front, "trials": result.trials}


def resume(
    where: str,
    /,
    *,
    name: str | None = None,
    trials: Annotated[int | None, Range(1, 10**9)] = None,
    workers: Annotated[int | None, Range(1, 1024)] = None,
    out: Path | None = None,
) -> Any:
    """Resume a search.

    Trials whose worker is gone are evaluated again; finished trials are not repeated. Results are
    written next to the storage, also after its folder was copied or moved.

    [bold]Examples[/]

      chop search resume runs/search/nas

      chop search resume runs/search/nas --trials 200 --workers 2

      chop search resume runs/search/precision --trust-code    # the model is net.py:Net

    Args:
        where: OUT, OUT/NAME, a storage file, or its URL.
        name: study name. Default: the storage's only study.
        trials: total number of configurations, finished trials included. Default: as begun.
        workers: processes on this machine. Default: as begun.
        out: folder for the results. Default: next to a storage file; for a storage elsewhere as
            begun, if that is in the current folder.
    """
    from chop.actions.search.manage import resume_search

    return _summary(resume_search(where, name, trials, workers, out))


def show(where: str, /, *, name: str | None = None) -> Any:
    """Show the trials and the best configurations of a search, finished or not.

    Shows how many trials were measured, pruned, failed or are running; the best configuration, its
    choices, and the importance of each choice.

    [bold]Example[/]

      chop search show runs/search/nas

    Args:
        where: OUT, OUT/NAME, a storage file, or its URL.
        name: study name. Default: the storage's only study.
    """
    from chop.actions.search.manage import show_search

    return _summary(show_search(where, name))


def export(
    where: str,
    path: Path = Path("best.toml"),
    /,
    *,
    name: str | None = None,
    trial: Annotated[int | None, Range(0)] = None,
) -> Any:
    """Export the best configuration for chop compress, or all trials for Optuna.

    [bold]Examples[/]

      chop search export runs/search/precision best.toml

      chop compress --config best.toml

      chop search export runs/search/precision trials.db    # an ordinary Optuna study

    Args:
        where: OUT, OUT/NAME, a storage file, or its URL.
        path: file to write: .toml for chop compress, .db for Optuna's tools.
        name: study name. Default: the storage's only study.
        trial: number of the trial to export. Default: the best trial.
    """
    from chop.errors import ConfigError

    if path.suffix not in (".toml", ".db"):
        raise ConfigError(f"'{path}': expected a .toml file, or a .db file for Optuna's tools.")
    if path.suffix == ".toml":
        from chop.actions.search.manage import export_best

        return export_best(where, path, name, trial)
    if trial is not None:
        raise ConfigError(f"--trial: '{path}' gets all trials; to export one, name a .toml file.")
    from chop.search.optuna_view import export_study

    return export_study(where, path, name)


def dashboard(
    where: str,
    /,
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, Range(0, 65535)] = 8080,
) -> None:
    """Serve a search in Optuna's dashboard.

    Notes written in the dashboard are lost when it stops. Needs pip install
    'mase-chop[dashboard]'.

    [bold]Example[/]

      chop search dashboard runs/search

    Args:
        where: OUT, OUT/NAME, a storage file, or its URL.
        name: study name. Default: the storage's only study.
        host: address to listen on.
        port: port to listen on.
    """
    from chop.search.optuna_view import serve_dashboard

    serve_dashboard(where, name, host, port)


def worker(url: str, /, *, name: str | None = None, out: Path | None = None) -> Any:
    """Run trials of a search that another process started, until its total is reached.

    Start one worker per machine, core or GPU, by hand, with Slurm or with Kubernetes. Each trial
    goes to one worker. You can kill a worker at any moment. On a shared file system, give every
    worker the --out of the search, so that its folder has the best model of all workers.

    [bold]Examples[/]

      chop search worker postgresql://chop@db/chop --name nas

      chop search worker postgresql://chop@db/chop --out /shared/runs/search

    Other users can read command lines: pass the password in PGPASSFILE, or the whole URL in the
    environment variable CHOP_STORAGE.

    Args:
        url: storage: postgresql://..., or OUT/search.db.
        name: study name. Default: the storage's only study.
        out: folder for models, saved in OUT/NAME/best. Default: next to a SQLite file, else
            runs/search-worker-PID.
    """
    from chop.actions.search.manage import work_for

    return _summary(work_for(url, name, out))


def compare(
    searches: tuple[str, ...],
    /,
    *,
    out: Path = Path("runs/search-compare"),
    name: str | None = None,
    labels: tuple[str, ...] = (),
    goal: str | None = None,
) -> Any:
    """Plot the best-so-far curves of several searches, and tabulate them.

    Searches that differ only in their seed become one curve with a band: median and range. The
    settings that differ label the curves. All studies of a storage are compared; OUT:NAME selects
    one.

    [bold]Examples[/]

      chop search compare runs/tpe runs/random

      chop search compare runs/*-seed-* --out runs/samplers

      chop search compare runs/a runs/b --labels before,after --goal accuracy

    [bold]Output[/] in --out: best-so-far (.svg, .png), table.md, table.csv.

    Args:
        searches: output folders, files or URLs.
        out: folder for the results.
        name: study to take from each storage. Default: all studies.
        labels: one per search; searches with equal labels are one curve. Default: the settings
            that differ.
        goal: number to compare, which every search measured. Default: the first goal of all.
    """
    from chop.actions.search.compare import compare_searches

    rows = compare_searches(searches, out=out, name=name, labels=labels, goal=goal)
    typer.echo(f"{out / 'best-so-far.svg'}")
    return rows


search_app = command_group(
    {
        "nas": Command(_job("nas"), "chop.actions.search.settings:NasConfig", NAS_HELP),
        "precision": Command(
            _job("precision"), "chop.actions.search.settings:PrecisionConfig", PRECISION_HELP
        ),
        "shape": Command(
            _job("shape"),
            "chop.actions.search.settings:ShapeConfig",
            SHAPE_HELP,
            arguments=("model",),
        ),
        "sensitivity": Command(
            deferred("chop.actions.search.sensitivity:measure_sensitivity"),
            "chop.actions.search.settings:SensitivityConfig",
            SENSITIVITY_HELP,
        ),
        "resume": Command(resume, draws=True, makes_models=True),
        "show": Command(show, is_slow=False),
        "export": Command(export, is_slow=False, makes_models=True),
        "dashboard": Command(dashboard, is_slow=False),
        "worker": Command(worker, envvars={"url": "CHOP_STORAGE"}, makes_models=True),
        "compare": Command(compare, draws=True),
    },
    """Search number formats, architectures or shapes.

A storage has every trial: a SQLite file in --out, or PostgreSQL. Infeasible configurations are
skipped, duplicates are evaluated once. To resume a killed search, run the same command again, or
[bold]chop search resume[/].""",
)
