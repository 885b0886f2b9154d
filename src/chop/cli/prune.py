"""`chop prune`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Prune a language model to fewer layers, channels and heads, and train it back.

[bold]Examples[/]

  chop prune gpt-tiny --mlp-width 192

  chop prune ./my-llama --dataset ./texts.txt --layers 24

  chop prune ./my-llama --dataset ./texts.txt --mlp-width 4096 --kv-heads 4

  chop prune ./my-llama --dataset ./texts.txt --hidden-size 2048 --distill

Layers with the lowest block influence (1 - cosine of input and output) are removed. Each other
layer loses the MLP channels and the key-value heads, with their query heads, that have the smallest
activations on training rows, and the residual stream the channels with the smallest outputs of
norms. The result is a model of the same class with a smaller configuration. --distill then trains
it against the original.

[bold]Output[/] in --out: model (a folder that transformers loads without chop), table.md,
result.json, manifest.json, and answers.jsonl, from which a killed run resumes. chop sweep prune
plots accuracy against sparsity of single weights.
"""

PRUNE = Command(
    deferred("chop.actions.prune.job:prune"),
    "chop.actions.prune.settings:PruneDecoderConfig",
    HELP,
    arguments=("model",),
)
