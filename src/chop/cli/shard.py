"""`chop shard`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Find a sharding plan (tensor and data parallelism), run it, and check it.

[bold]Examples[/]

  chop shard --memory 190kB --run

  chop shard --model ./my-llama --mesh 2x4 --memory 4GB

  chop shard --model ./my-llama --mesh 4 --plan megatron

  chop shard runs/compress --plan plan.json --run

  torchrun --nproc-per-node 4 --no-python -- chop shard --model ./my-llama --plan plan.json --run

The plan has the fastest predicted forward within --memory; without --memory this can be full
replication. A table compares it with standard plans. With --run, each process reads its slices of
the weights, and no process reads the whole model of a folder, the hub or a checkpoint. Every node
of the first forward is compared with one process (--no-check skips this). Outside torchrun, --run
starts the processes itself.

[bold]Columns[/]: bytes of parameters and buffers per process, and their share of the model; peak
memory with activations; predicted time of a forward; bytes that a process sends in it.

[bold]Output[/] in --out: plan.json (edit it, and give it to --plan), plans.png, tp_plan.json (with
--export-tp-plan), table.md (also by layer), result.json, manifest.json.
"""

SHARD = Command(
    deferred("chop.actions.shard.job:shard"),
    "chop.actions.shard.settings:ShardConfig",
    HELP,
    run_field="model",
    run_help="Output folder of chop compress, or checkpoint.",
)
