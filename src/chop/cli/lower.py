"""`chop lower`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Rewrite a model to integers only, as a circuit computes it, and compare.

[bold]Examples[/]

  chop lower runs/compress    # the saved model, in its formats

  chop lower --model mlp --out runs/lower

  chop lower --model vit --formats 8.auto --internal-bits exact

  chop lower --model bert-tiny --rows 64 --max-length 32

All operators are quantized and calibrated, batch norms folded into convolutions. Then every
operator is replaced by one on integers. Batch and length are those of the compared rows, where
the model computes with them.

[bold]Columns[/] per operator: how many codes differ from the quantized operator's on the same
inputs, the largest difference in steps, the largest accumulator seen and its width by proof.

[bold]Output[/] in --out: model.pt and model.mz (the integer graph), golden.safetensors (inputs,
outputs, and the integers behind and ahead of the host's part), graph.svg, table.md, result.json.
To load the graph: mg = MaseGraph.from_checkpoint("OUT/model").
"""

LOWER = Command(
    deferred("chop.actions.emit.lower:lower"),
    "chop.actions.emit.lower_settings:LowerConfig",
    HELP,
    run_field="start_from",
    run_help="Output folder of chop compress, or checkpoint.",
)
