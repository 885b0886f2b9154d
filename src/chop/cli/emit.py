"""`chop emit`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Emit a verified circuit: SystemVerilog that equals the model on every output.

[bold]Examples[/]

  chop emit --model mlp --out runs/emit

  chop emit --model vit --fold 4000

  chop emit --model mlp --fold 128 --place

  chop emit runs/compress --out runs/emit    # keeps the formats of the saved model

  chop emit runs/emit --check-only

The model is quantized and lowered to integers, as by [bold]chop lower[/]. Every operator of the
graph becomes a component with ready/valid streams. Verilator lints the circuit and simulates it
under four stall profiles (back-pressure), and Icarus simulates some samples. Every output of every
sample must equal the graph's; only then --out is written.

[bold]Needs[/] Verilator, Icarus and Yosys; chop doctor names the command that installs them.
--place also needs nextpnr; chop doctor lists it as place.

[bold]Output[/] in --out: rtl/ (SystemVerilog), memory/ (weights, biases and tables), vectors/ and
testbench/ (to simulate it anywhere), model.pt and model.mz (the integer graph), report.md,
dataflow.svg, result.json, manifest.json (hashes of all files, seeds, cycles, tool versions).
"""

EMIT = Command(
    deferred("chop.actions.emit.job:emit"),
    "chop.actions.emit.settings:EmitConfig",
    HELP,
    run_field="start_from",
    run_help="Output folder of chop compress, a checkpoint, or a circuit.",
)
