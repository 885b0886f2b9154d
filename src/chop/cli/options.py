"""Options that several commands share, and how options and a file become settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[
    str | None,
    typer.Option(
        help="Built-in (vit, cnn, mlp, bert-tiny), local folder, hub name, file.py:Net, timm:NAME."
    ),
]
Dataset = Annotated[
    str | None, typer.Option(help="Built-in (digits, reviews), local file or folder, or hub name.")
]
Config = Annotated[
    Path | None, typer.Option(help="TOML file with settings; options given here win.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.")]
Operators = Annotated[str | None, typer.Option(help="Operators to change: linear,conv2d ...")]
TrainEpochs = Annotated[int | None, typer.Option(help="Fine-tune a model of your own first.")]
Limit = Annotated[int | None, typer.Option(help="Use that many rows of each split.")]
MaxLength = Annotated[int | None, typer.Option(help="Cut texts to that many tokens.")]
BatchSize = Annotated[int | None, typer.Option(help="Rows of a training step.")]
Seed = Annotated[int | None, typer.Option(help="Seed of training.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda ...; default: a GPU if there is one.")]
INPUTS = {
    "tokenizer": Annotated[
        str | None, typer.Option(help="Of texts: local folder or hub name; default, the model's.")
    ],
    "text_column": Annotated[str | None, typer.Option(help="Column of the data with the texts.")],
    "label_column": Annotated[str | None, typer.Option(help="Column of the data with the labels.")],
    "weights": Annotated[
        str | None, typer.Option(help="Of file.py:Net or timm:NAME: .safetensors or .pt.")
    ],
    "task": Annotated[
        str | None,
        typer.Option(
            help="classification, regression, token-classification or causal-lm; default, what "
            "the labels are."
        ),
    ],
    "metric": Annotated[
        str | None, typer.Option(help="accuracy, f1, r2, mse, perplexity ...; default, the task's.")
    ],
}
"""Further options that say what a job works on, by setting."""


def with_inputs(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `INPUTS` in the place of its `**subject`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in INPUTS.items()
    ]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        command(**given)

    wrapped.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return wrapped


def say_that_it_begins() -> None:
    """A line at once: importing PyTorch and transformers takes seconds, and nothing else shows."""
    typer.echo("loading PyTorch and transformers ...", err=True)


def settings_from(
    given: Mapping[str, Any], config: Path | None, lists: Iterable[str] = ()
) -> dict[str, Any]:
    """The settings of a file, overridden by the options that were given.

    Args:
        given: every option by name, those of `with_inputs` under `subject`; None where it was not
            given.
        config: a TOML file, or None.
        lists: options whose text is a list separated by commas.
    Raises:
        ConfigError: the file is missing or is not TOML.
    """
    say_that_it_begins()
    from chop.config import load_toml

    flat = {**given, **given.get("subject", {})}
    flat.pop("subject", None)
    chosen = {name: value for name, value in flat.items() if value is not None}
    chosen.pop("config", None)
    for name in lists:
        if name in chosen:
            chosen[name] = [part.strip() for part in chosen[name].split(",") if part.strip()]
    return {**(load_toml(config) if config else {}), **chosen}
