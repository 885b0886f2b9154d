"""`chop sweep quantize` and `chop sweep prune`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chop.cli import options

sweep_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Vary one setting over a range, measure each point once, and draw the curves.",
)

WRITES = """
[bold]What it writes[/] into --out: points.jsonl (each point the moment it is measured: kill the
sweep, run it again, and it goes on from there), table.csv, table.md, accuracy.svg and
accuracy.png"""

QUANTIZE_HELP = f"""Draw accuracy against bit width, after training (PTQ) and with QAT.

[bold]Examples[/]

  chop sweep quantize

  chop sweep quantize --model cnn --widths 2:8:1 --frac half,auto

  chop sweep quantize --widths 4:16:4 --frac 2:8:2      (heat maps as well)

  chop sweep quantize --model ./my-bert --dataset ./imdb --max-length 256 --qat-epochs 1
{WRITES}; where widths and fractions both vary, heatmap-ptq and heatmap-qat.
"""

PRUNE_HELP = f"""Draw accuracy against sparsity, before and after fine-tuning, per method.

[bold]Examples[/]

  chop sweep prune

  chop sweep prune --model cnn --methods l1-norm,wanda --scope global

  chop sweep prune --model ./my-bert --dataset ./imdb --max-length 256 --finetune-epochs 1
{WRITES}.
"""


@sweep_app.command("quantize", help=QUANTIZE_HELP)
@options.with_inputs
def quantize_command(
    model: options.Model = None,
    dataset: options.Dataset = None,
    config: options.Config = None,
    out: options.Out = None,
    widths: Annotated[
        str | None, typer.Option(help="Bits: first:last:step, or numbers by commas.")
    ] = None,
    frac: Annotated[
        str | None,
        typer.Option(help="Fractions: half of the width, auto, minmax, mse, numbers, ranges."),
    ] = None,
    operators: options.Operators = None,
    qat_epochs: Annotated[
        int | None, typer.Option(help="Epochs of quantisation-aware training; 0 skips it.")
    ] = None,
    qat_lr: Annotated[float | None, typer.Option(help="Its learning rate.")] = None,
    train_epochs: options.TrainEpochs = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    device: options.Device = None,
    **subject: Any,
) -> None:
    """Draw accuracy against bit width."""
    settings = options.settings_from(locals(), config, ("operators",))
    from chop.actions.sweep.quantize import QuantizeSweepConfig, quantize_sweep
    from chop.config import parse

    quantize_sweep(parse(QuantizeSweepConfig, settings, str(config or "chop sweep")))


@sweep_app.command("prune", help=PRUNE_HELP)
@options.with_inputs
def prune_command(
    model: options.Model = None,
    dataset: options.Dataset = None,
    config: options.Config = None,
    out: options.Out = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Shares of weights: first:last:step, or numbers by commas.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Scores, by commas: l1-norm,random,snip,wanda ...")
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help="local (each layer) or global (all layers together).")
    ] = None,
    operators: options.Operators = None,
    finetune_epochs: Annotated[
        int | None, typer.Option(help="Epochs of fine-tuning after pruning; 0 skips it.")
    ] = None,
    finetune_lr: Annotated[float | None, typer.Option(help="Its learning rate.")] = None,
    train_epochs: options.TrainEpochs = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    seed: options.Seed = None,
    device: options.Device = None,
    **subject: Any,
) -> None:
    """Draw accuracy against sparsity."""
    settings = options.settings_from(locals(), config, ("methods", "operators"))
    from chop.actions.sweep.prune import PruneSweepConfig, prune_sweep
    from chop.config import parse

    prune_sweep(parse(PruneSweepConfig, settings, str(config or "chop sweep")))
