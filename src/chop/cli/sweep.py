"""`chop sweep quantize` and `chop sweep prune`."""

from __future__ import annotations

from chop.cli.adapter import command_group
from chop.cli.command import Command, deferred

OUTPUT = """[bold]Output[/] in --out: points.jsonl (one line per measured point; a killed sweep
resumes from it), table.csv, table.md, accuracy.svg and accuracy.png"""

QUANTIZE_HELP = f"""Plot accuracy against bit width, for PTQ and QAT.

[bold]Examples[/]

  chop sweep quantize

  chop sweep quantize --model cnn --widths 2:8:1 --frac half,auto

  chop sweep quantize --widths 4:16:4 --frac 2:8:2    # heat maps as well

  chop sweep quantize --integer-bits 1:6 --fraction-bits 1:12 --seeds 3

  chop sweep quantize --model ./my-bert --dataset ./imdb --max-length 256 --qat-epochs 1

{OUTPUT}; heatmap-ptq and heatmap-qat if both widths and fractions vary. With --integer-bits or
--fraction-bits, tables and figures are called integer-bits, fraction-bits and ranges (magnitudes by
layer, and histograms with the representable values of formats).
"""

PRUNE_HELP = f"""Plot accuracy against sparsity, before and after fine-tuning, per method.

--activation also prunes the inputs of operators, by themselves and together with weights. RUN
prunes a quantized model.

[bold]Examples[/]

  chop sweep prune

  chop sweep prune --model cnn --methods l1-norm,wanda --scope global

  chop sweep prune runs/sweep-quantize --activation l1-norm,random --seeds 3

  chop sweep prune --model ./my-bert --dataset ./imdb --max-length 256 --finetune-epochs 1

{OUTPUT}; accuracy-activations and accuracy-both if activations are pruned.
"""


sweep_app = command_group(
    {
        "quantize": Command(
            deferred("chop.actions.sweep.quantize:quantize_sweep"),
            "chop.actions.sweep.settings:QuantizeSweepConfig",
            QUANTIZE_HELP,
        ),
        "prune": Command(
            deferred("chop.actions.sweep.prune:prune_sweep"),
            "chop.actions.sweep.settings:PruneSweepConfig",
            PRUNE_HELP,
            run_field="start_from",
            run_help="Output folder of chop sweep quantize or compress, or checkpoint.",
        ),
    },
    "Vary one setting over a range, measure each point once, and plot the curves.",
)
