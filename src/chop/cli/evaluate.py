"""`chop evaluate`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Judge a model on rows and by tasks of lm-eval, beside the float model that it was.

[bold]Examples[/]

  chop evaluate gpt-tiny

  chop evaluate runs/compress --limit 100

  chop evaluate ./my-llama-4bit --reference ./my-llama --dataset ./texts.txt

  chop evaluate ./my-llama-4bit --reference ./my-llama --tasks hellaswag,arc_easy --limit 200

[bold]Rows[/]: the task's metric (of language models perplexity) and, beside the float model,
KL divergence of an answer, how many answers are the same, and flips: answers that change from
right to wrong or from wrong to right. Intervals are at 95 %, over rows.

[bold]Tasks[/] are asked and counted by lm-eval (pip install 'mase-chop[eval]'), with its
standard errors; beside the float model with the flips of each. Their data come from the hub or
its cache; --include-path names a folder of tasks of your own, with local files.

[bold]Output[/] in --out: table.md, result.json, kl.svg, tasks.svg, manifest.json, and
answers.jsonl, from which the same command goes on after it was stopped.
"""

EVALUATE = Command(
    deferred("chop.actions.evaluate.job:evaluate"),
    "chop.actions.evaluate.settings:EvaluateConfig",
    HELP,
    arguments=("model",),
)
