"""`chop search`: the jobs, and what can be done with a search that was begun."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chop.cli import options

search_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Spend trials where they matter: search formats, or architectures.

Every trial is in a storage: a SQLite file in --out, or PostgreSQL. No configuration is measured
twice. Kill a search at any moment; run it again, or [bold]chop search resume[/], and it goes on.

[bold]Begin[/]  nas, precision; sensitivity needs no search.

[bold]Then[/]  show what was found, watch it in a dashboard, compare several, export the best,
resume, or add a worker on another machine.""",
)

Trials = Annotated[
    int | None, typer.Option(help="Configurations to measure in all, earlier runs included.")
]
Sampler = Annotated[
    str | None, typer.Option(help="sensitivity, tpe, nsga2, cmaes, gp, random or grid.")
]
Pruner = Annotated[
    str | None, typer.Option(help="Stop trials that are behind: asha, hyperband or median.")
]
Workers = Annotated[int | None, typer.Option(help="Processes of this machine that measure.")]
Storage = Annotated[
    str | None, typer.Option(help="postgresql://user@host/db for many machines; or a file.")
]
Name = Annotated[str | None, typer.Option(help="Of the study, and of its folder in OUT.")]
Keep = Annotated[int | None, typer.Option(help="Best models that stay in OUT/NAME/best.")]
Goals = Annotated[
    str | None, typer.Option(help="What to search for, by commas; several give a Pareto front.")
]
Budget = Annotated[
    list[str] | None, typer.Option(help="name=number, again and again: the most (or least) of it.")
]
Where = Annotated[str, typer.Argument(help="OUT, OUT/NAME, a storage's file, or its URL.")]

LIFE = """
[bold]Killed?[/] Run the same command again, or chop search resume OUT. [bold]More hands?[/]
--workers 4 here; with --storage postgresql://..., chop search worker URL on any machine.
[bold]Look[/] at any time: chop search show OUT."""

Formats = Annotated[
    str | None, typer.Option(help="By name (integer, mxint), or one by one (4.auto), by commas.")
]
Widths = Annotated[
    str | None, typer.Option(help="Bits of formats given by name: first:last:step, or numbers.")
]
Operands = Annotated[
    str | None, typer.Option(help="What takes the chosen format: data_in,weight,bias.")
]
Per = Annotated[str | None, typer.Option(help="One choice for each layer, or each operand.")]
Rule = Annotated[
    str | None, typer.Option(help="How fractions are derived: mse, minmax or percentile.")
]

PRECISION_HELP = f"""Search the format of each layer of a trained model.

Only formats and widths are searched; fractions and scales are derived from training rows. A trial
switches formats in place and takes milliseconds on small models.

It begins with what needs no search: the formats of least predicted loss increase in the budgets, by
Fisher information from one backward pass over 256 training rows and, where there is time, by the
divergence of each layer in each format. The table has them as "no search", and the last line says
whether the search has found anything better beyond error on test rows.

[bold]Examples[/]

  chop search precision --budget bits=4

  chop search precision --formats integer,mxint --widths 2:8:1 --budget bits=4 --trials 200

  chop search precision --goals accuracy,bits --sampler nsga2      (a Pareto front)

  chop search precision --goals accuracy --epochs 2 --trials 30    (each trial is trained)

  chop search precision --model ./my-bert --dataset ./imdb --max-length 256 --budget bits=5

[bold]What it writes[/]: OUT/search.db (every trial); into OUT/precision, or OUT/NAME: table.md,
table.csv, best.json, the best models in best/, no-search.json, and plots: accuracy, formats,
best-so-far, front, importance (.svg, .png). chop search export OUT best.toml writes what
chop compress --config takes.
{LIFE}"""

SENSITIVITY_HELP = """Show how much each layer minds each format, without any search.

Each layer alone in each format, all others float: the change of the answers (kl, mse), the error
of the weights, Fisher information, the Hessian's trace, the variance of activations.

[bold]Examples[/]

  chop search sensitivity --widths 2,4,8

  chop search sensitivity --model cnn --formats integer,mxint --metrics kl,fisher

[bold]What it writes[/] into --out: points.jsonl (each point the moment it is measured: kill it,
run it again, and it goes on), table.md, table.csv, sensitivity.json, and a map of the layers for
each metric."""

NAS_HELP = f"""Search the architecture: layers, heads, sizes, and Linear or Identity.

Fields are those of the model's configuration; a name that it lacks is an error that says the
right one. Combinations that cannot be are never trained, the same model never twice.

[bold]Examples[/]

  chop search nas

  chop search nas --field num_hidden_layers=1,2,4 --field hidden_size=32,64 --trials 20

  chop search nas --budget parameters=20000 --pruner asha --epochs 8

  chop search nas --compression compress-train        (judged as 4-bit models, trained so)

[bold]What it writes[/]: OUT/search.db (every trial); into OUT/nas, or OUT/NAME: table.md,
table.csv, best.json, the best models in best/, and plots: best-so-far, front, importance
(.svg, .png).
{LIFE}"""


@search_app.command("nas", help=NAS_HELP)
@options.with_inputs
def nas_command(
    model: options.Model = None,
    dataset: options.Dataset = None,
    config: options.Config = None,
    out: options.Out = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help="name=value,value ..., again and again: what to vary."),
    ] = None,
    square_layers: Annotated[
        str | None, typer.Option(help="What square layers may be: Linear,Identity or Linear.")
    ] = None,
    goals: Goals = None,
    budget: Budget = None,
    trials: Trials = None,
    sampler: Sampler = None,
    pruner: Pruner = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows of a trial.")] = None,
    lr: Annotated[float | None, typer.Option(help="Largest learning rate of a trial.")] = None,
    compression: Annotated[
        str | None, typer.Option(help="Judge models as they are (none), compress, compress-train.")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="Train only what a zero-cost score likes: synflow, naswot ..")
    ] = None,
    share: Annotated[float | None, typer.Option(help="The share that passes the proxy.")] = None,
    workers: Workers = None,
    storage: Storage = None,
    name: Name = None,
    keep: Keep = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    device: options.Device = None,
    **subject: Any,
) -> None:
    """Search the architecture."""
    given = dict(locals())
    given["fields"] = _assigned(given.pop("field"), lists=True)
    given["budgets"] = _assigned(given.pop("budget"))
    _run("nas", given, ("goals", "square_layers"))


@search_app.command("precision", help=PRECISION_HELP)
@options.with_inputs
def precision_command(
    model: options.Model = None,
    dataset: options.Dataset = None,
    config: options.Config = None,
    out: options.Out = None,
    formats: Formats = None,
    widths: Widths = None,
    operators: options.Operators = None,
    operands: Operands = None,
    per: Per = None,
    rule: Rule = None,
    goals: Goals = None,
    budget: Budget = None,
    trials: Trials = None,
    sampler: Sampler = None,
    pruner: Pruner = None,
    epochs: Annotated[
        int | None, typer.Option(help="Train each trial's model in its formats; 0 only rounds.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Largest learning rate of --epochs.")] = None,
    search_rows: Annotated[
        int | None, typer.Option(help="Validation rows that trials are measured on, at most.")
    ] = None,
    workers: Workers = None,
    storage: Storage = None,
    name: Name = None,
    keep: Keep = None,
    train_epochs: options.TrainEpochs = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    device: options.Device = None,
    **subject: Any,
) -> None:
    """Search the format of each layer."""
    given = dict(locals())
    given["budgets"] = _assigned(given.pop("budget"))
    _run("precision", given, ("formats", "operators", "operands", "goals"))


@search_app.command("sensitivity", help=SENSITIVITY_HELP)
@options.with_inputs
def sensitivity_command(
    model: options.Model = None,
    dataset: options.Dataset = None,
    config: options.Config = None,
    out: options.Out = None,
    formats: Formats = None,
    widths: Widths = None,
    operators: options.Operators = None,
    operands: Operands = None,
    per: Per = None,
    rule: Rule = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="kl, mse, weight_error, fisher, hessian, activation_variance."),
    ] = None,
    train_epochs: options.TrainEpochs = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    device: options.Device = None,
    **subject: Any,
) -> None:
    """Show how much each layer minds each format."""
    given = dict(locals())
    lists = ("formats", "operators", "operands", "metrics")
    settings = options.settings_from(given, config, lists)
    from chop.actions.search.sensitivity import SensitivityConfig, measure_sensitivity
    from chop.config import parse

    measure_sensitivity(parse(SensitivityConfig, settings, str(config or "chop search")))


@search_app.command("resume")
def resume_command(
    where: Where,
    name: Name = None,
    trials: Trials = None,
    workers: Workers = None,
) -> None:
    """Go on with a search where it stopped.

    Trials whose worker is gone are measured again; finished ones are not repeated. Results are
    written beside the storage, wherever its folder was copied or moved to.

    [bold]Examples[/]

      chop search resume runs/search/nas

      chop search resume runs/search/nas --trials 200 --workers 2
    """
    options.say_that_it_begins()
    from chop.actions.search.manage import resume_search

    resume_search(where, name, trials, workers)


@search_app.command("show")
def show_command(where: Where, name: Name = None) -> None:
    """Show what a search found, finished or not.

    How many trials were measured, pruned, failed, or are still running; the best; each choice of
    the best, and how much it matters.

    [bold]Example[/]

      chop search show runs/search/nas
    """
    from chop.actions.search.manage import show_search

    show_search(where, name)


@search_app.command("export")
def export_command(
    where: Where,
    path: Annotated[
        Path, typer.Argument(help="The file to write: .toml, or .db for Optuna's tools.")
    ] = Path("best.toml"),
    name: Name = None,
    trial: Annotated[int | None, typer.Option(help="A trial's number; default, the best.")] = None,
) -> None:
    """Write the best configuration as a file for chop compress, or all trials for Optuna.

    [bold]Examples[/]

      chop search export runs/search/precision best.toml

      chop compress --config best.toml

      chop search export runs/search/precision trials.db     (an ordinary Optuna study)
    """
    from chop.errors import ConfigError

    if path.suffix not in (".toml", ".db"):
        raise ConfigError(f"'{path}': expected a file called .toml, or .db for Optuna's tools.")
    if path.suffix == ".db":
        from chop.actions.search.optuna_view import export_study

        if trial is not None:
            raise ConfigError(f"--trial: '{path}' takes all trials; a .toml file takes one.")
        export_study(where, path, name)
        return
    from chop.actions.search.manage import export_best

    export_best(where, path, name, trial)


@search_app.command("dashboard")
def dashboard_command(
    where: Where,
    name: Name = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
) -> None:
    """Show a search in Optuna's dashboard, finished or not, from any machine that reaches it.

    What is written there, as notes, is not kept. It needs pip install 'mase-chop\\[dashboard]'.

    [bold]Example[/]

      chop search dashboard runs/search
    """
    from chop.actions.search.optuna_view import serve_dashboard

    serve_dashboard(where, name, host, port)


@search_app.command("worker")
def worker_command(
    url: Annotated[
        str,
        typer.Argument(
            help="The storage: postgresql://..., or OUT/search.db.", envvar="CHOP_STORAGE"
        ),
    ],
    name: Name = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Models go to OUT/NAME/best; default, beside a SQLite file, or "
            "runs/search-worker-PID."
        ),
    ] = None,
) -> None:
    """Measure for a search that runs elsewhere, until its total is reached.

    Start as many as there are machines, cores or GPUs, by hand, by Slurm, by Kubernetes: each
    claims what no other has. Kill any of them at any moment. On a shared file system give all the
    --out of the search itself: its folder then has the best model, whoever measured it.

    [bold]Examples[/]

      chop search worker postgresql://chop@db/chop --name nas

      chop search worker postgresql://chop@db/chop --out /shared/runs/search

    Other users see what stands in a command: give a password by PGPASSFILE, or the whole URL by
    CHOP_STORAGE in the environment.
    """
    options.say_that_it_begins()
    from chop.actions.search.manage import work_for

    work_for(url, name, out)


def _run(job_name: str, given: dict[str, Any], lists: tuple[str, ...]) -> None:
    file = given["config"]
    settings = options.settings_from(given, file, lists)
    from chop.actions.search.job import find_job, run_job
    from chop.config import parse

    job = find_job(job_name)
    run_job(job, parse(job.config, settings, str(file or f"chop search {job_name}")))


def _assigned(pairs: list[str] | None, lists: bool = False) -> dict[str, Any] | None:
    """`name=value` options as a mapping, values read as JSON where they are JSON."""
    from chop.errors import ConfigError

    if not pairs:
        return None
    given: dict[str, Any] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if not name or not text:
            raise ConfigError(f"'{pair}': expected name=value.")
        name = name.strip()
        if name in given:
            raise ConfigError(f"'{pair}': '{name}' was given before; give it once.")
        given[name] = [_read(part.strip()) for part in text.split(",")] if lists else _read(text)
    return given


def _read(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


COMPARE_HELP = """Compare searches: the best found after so many trials, as curves and as a table.

Searches that differ in their seed alone are one curve with a band: their median, and their range.
Others are labelled by the settings that differ. Of a storage with several studies all are taken,
or one: OUT:NAME.

[bold]Examples[/]

  chop search compare runs/tpe runs/random

  chop search compare runs/*-seed-* --out runs/samplers

  chop search compare runs/a runs/b --labels before,after --goal accuracy

[bold]What it writes[/] into --out: best-so-far (.svg, .png), table.md, table.csv."""


@search_app.command("compare", help=COMPARE_HELP)
def compare_command(
    searches: Annotated[list[str], typer.Argument(help="Output folders, files or URLs.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path(
        "runs/search-compare"
    ),
    name: Name = None,
    labels: Annotated[
        str | None,
        typer.Option(help="One for each search, by commas; those with the same are one curve."),
    ] = None,
    goal: Annotated[
        str | None, typer.Option(help="A number that all measured; default, their first goal.")
    ] = None,
) -> None:
    """Compare searches."""
    options.say_that_it_begins()
    from chop.actions.search.compare import compare_searches

    given = [label.strip() for label in labels.split(",")] if labels else ()
    compare_searches(searches, out=out, name=name, labels=given, goal=goal)
    typer.echo(f"{out / 'best-so-far.svg'}")
