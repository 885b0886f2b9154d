"""`chop compress` and `chop demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chop.cli import options

EXIT_NOTHING_SAVED = 3
"""No format kept within --max-drop, and no model was saved."""

EXAMPLES = """
[bold]Examples[/]

  chop compress --model cnn --out runs/cnn

  chop compress --model ./my-bert --dataset ./imdb --formats 8.4,4.auto --max-length 256

  chop compress --formats 8.auto,mxint,mxint:width=4,mxfp:width=4:exponent_width=2

  chop compress --config run.toml        (the same keys: model, dataset, formats, qat_epochs ...)

[bold]How it chooses[/]: the smallest model within --max-drop of float on validation rows, which are
the split 'validation' or a fifth of the training rows; test rows are only reported. Where none is
within it, no model is saved and the exit code is 3, unless --keep-best is given.

[bold]What it writes[/] into --out: model.pt and model.mz (the chosen model, its weights packed),
graph.svg, accuracy.svg, table.md, result.json; all at once, so that a run that is killed or fails
leaves those of an earlier run. To use the model:
mg = MaseGraph.from_checkpoint("OUT/model"); to train it on, unpack it first:
mg, _ = pack_transform_pass(mg, {"unpack": True}).
"""


@options.with_inputs
def compress_command(
    model: options.Model = None,
    dataset: options.Dataset = None,
    config: options.Config = None,
    out: options.Out = None,
    formats: Annotated[
        str | None,
        typer.Option(
            help="Integers width.fraction (4.auto derives fractions), or any format by name."
        ),
    ] = None,
    operators: options.Operators = None,
    qat_epochs: Annotated[
        int | None, typer.Option(help="Epochs of quantisation-aware training; 0 skips it.")
    ] = None,
    qat_lr: Annotated[float | None, typer.Option(help="Its learning rate.")] = None,
    train_epochs: options.TrainEpochs = None,
    max_drop: Annotated[
        float | None,
        typer.Option(help="Accuracy (0 to 1) on validation rows the saved model may lose."),
    ] = None,
    keep_best: Annotated[
        bool | None,
        typer.Option("--keep-best", help="Save the best where none keeps within --max-drop."),
    ] = None,
    bench_seconds: Annotated[
        float | None, typer.Option(help="Measure the saved model's speed so long; 0: not at all.")
    ] = None,
    onnx: Annotated[
        bool | None, typer.Option("--onnx", help="Write model.onnx too, 8-bit formats as integers.")
    ] = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    device: options.Device = None,
    **subject: Any,
) -> None:
    """Quantise a model in several formats, train the hardest one back, and keep the best."""
    _run(locals(), config)


compress_command.__doc__ = f"{compress_command.__doc__}\n{EXAMPLES}"


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/demo"),
    seed: options.Seed = None,
    device: options.Device = None,
) -> None:
    """Run the whole job on the built-in vision transformer and handwritten digits.

    The same as `chop compress` with its defaults; needs no network and a few minutes.
    """
    _run(locals(), None)


def _run(given: dict[str, Any], config: Path | None) -> None:
    settings = options.settings_from(given, config, lists=("formats", "operators"))
    from chop.actions.compress import CompressConfig, compress
    from chop.config import parse

    result = compress(parse(CompressConfig, settings, str(config or "chop compress")))
    if result["saved"] is None:
        raise typer.Exit(EXIT_NOTHING_SAVED)
