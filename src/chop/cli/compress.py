"""`chop compress` and `chop demo`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.cli.command import Command, deferred

EXIT_NOTHING_SAVED = 3
"""Exit code if no format is within --max-drop of float and no model was saved."""

COMPRESS_HELP = """Quantize a model in several formats, fine-tune the smallest, save the best model.

[bold]Examples[/]

  chop compress --model cnn --out runs/cnn

  chop compress --model ./my-bert --dataset ./imdb --formats 8.4,4.auto --max-length 256

  chop compress --model net.py:Net --weights net.pt --dataset table.csv --label-column churn

  chop compress --formats 8.auto,mxint,mxint:width=4,mxfp:width=4:exponent_width=2

  chop compress runs/compress    # describes the saved run

[bold]Choice[/]: chop saves the smallest model within --max-drop of float on the validation rows:
the split 'validation', or a fifth of the training rows. Test rows are for reporting only. If no
format is within --max-drop, chop saves none (exit code 3), or the best one with --keep-best.

[bold]Output[/] in --out: model.pt and model.mz (the chosen model, packed; load it with
MaseGraph.from_checkpoint("OUT/model")), model.onnx for onnxruntime, figures, table.md and
result.json; for a Hugging Face model also model/, which transformers loads after import chop. A
killed or failed run keeps the previous files. To continue training, unpack the model with
pack_transform_pass(mg, {"unpack": True}).

[bold]Layers[/]: the page has the sensitivity of layers, which is the change of the answers to up to
32 training rows if only one layer is rounded. Measuring it adds at most 5 % to the evaluated rows;
layers with the largest weight error come first. chop search sensitivity measures all of them.
"""

DEMO_HELP = """Compress the built-in vision transformer on handwritten digits.

Runs chop compress with its defaults. Takes a few minutes and needs no network.
"""


def _exit_code(result: Any) -> int:
    is_job = isinstance(result, Mapping)  # else the description of a run
    return EXIT_NOTHING_SAVED if is_job and result["saved"] is None else 0


SETTINGS = "chop.actions.compress.settings:CompressConfig"
COMPRESS = Command(
    deferred("chop.actions.compress.job:compress"),
    SETTINGS,
    COMPRESS_HELP,
    exit_code=_exit_code,
    run_help="Output folder to describe; compresses nothing.",
    on_run=deferred("chop.actions.described_run:describe_run"),
)
DEMO = Command(
    deferred("chop.actions.compress.job:compress"),
    SETTINGS,
    DEMO_HELP,
    defaults={"out": Path("runs/demo")},
    only=("out", "seed", "device"),
    exit_code=_exit_code,
)
