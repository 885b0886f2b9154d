"""`chop compress` and `chop demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLES = """
[bold]Examples[/]

  chop compress --model cnn --out runs/cnn

  chop compress --model ./my-bert --dataset ./imdb --formats 8.4,4.auto --max-length 256

  chop compress --config run.toml        (the same keys: model, dataset, formats, qat_epochs ...)

[bold]What it writes[/] into --out: model.pt and model.mz (the smallest model within --max-drop of
float; read it with MaseGraph.from_checkpoint), graph.svg, accuracy.svg, table.md, result.json.
"""


def compress_command(
    model: Annotated[
        str | None,
        typer.Option(help="Built-in (vit, cnn, mlp, bert-tiny), local folder or hub name."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Built-in (digits, reviews), local folder or hub name."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings; options given here win.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    formats: Annotated[
        str | None,
        typer.Option(help="Integer formats width.fraction; 4.auto derives the fractions."),
    ] = None,
    operators: Annotated[
        str | None, typer.Option(help="Operators to quantise: linear,conv2d,softmax ...")
    ] = None,
    qat_epochs: Annotated[
        int | None, typer.Option(help="Epochs of quantisation-aware training; 0 skips it.")
    ] = None,
    qat_lr: Annotated[float | None, typer.Option(help="Its learning rate.")] = None,
    train_epochs: Annotated[
        int | None, typer.Option(help="Fine-tune a model of your own first.")
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Accuracy (0 to 1) the saved model may lose.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Use that many rows of each split.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Cut texts to that many tokens.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a training step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of training.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda ...; default: a GPU if there is one.")
    ] = None,
) -> None:
    """Quantise a model in several formats, train the hardest one back, and keep the best."""
    given = {name: value for name, value in locals().items() if value is not None}
    _run(given, config)


compress_command.__doc__ = f"{compress_command.__doc__}\n{EXAMPLES}"


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of training.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ...")] = None,
) -> None:
    """Run the whole job on the built-in vision transformer and handwritten digits.

    The same as `chop compress` with its defaults; needs no network and a few minutes.
    """
    given = {"out": out, "seed": seed, "device": device}
    _run({name: value for name, value in given.items() if value is not None}, None)


def _run(given: dict[str, Any], file: Path | None) -> None:
    from chop.actions.compress import CompressConfig, compress
    from chop.config import load_toml, parse

    given = {name: value for name, value in given.items() if name != "config"}
    for name in ("formats", "operators"):
        if name in given:
            given[name] = [part.strip() for part in given[name].split(",") if part.strip()]
    settings = {**(load_toml(file) if file else {}), **given}
    compress(parse(CompressConfig, settings, str(file or "chop compress")))
