"""`chop lower`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Lower a model to integer-only arithmetic, as in a circuit, and compare it.

[bold]Examples[/]

  chop lower runs/compress    # keeps the formats of the saved model

  chop lower --model mlp --out runs/lower

  chop lower --model vit --formats 8.auto --internal-bits exact

  chop lower --model bert-tiny --rows 64 --max-length 32

Quantizes and calibrates all operators, folds batch norms into convolutions, and replaces every
operator by one on integers. If the model computes with batch size and length, these are fixed to
those of the compared rows.

[bold]Columns[/] per operator: number of codes that differ from the quantized operator's on the same
inputs, the largest difference in steps, the largest accumulator value and its proven width.

[bold]Output[/] in --out: model.pt and model.mz (the integer graph), golden.safetensors (inputs,
outputs, and the integers at both ends of the circuit), graph.svg, table.md, result.json.
To load the graph: mg = MaseGraph.from_checkpoint("OUT/model").
"""

LOWER = Command(
    deferred("chop.actions.emit.lower:lower"),
    "chop.actions.emit.lower_settings:LowerConfig",
    HELP,
    run_field="start_from",
    run_help="Output folder of chop compress, or checkpoint.",
)
