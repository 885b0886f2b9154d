"""`chop evaluate`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Evaluate a model on test rows and lm-eval tasks, and compare it with float.

[bold]Examples[/]

  chop evaluate gpt-tiny

  chop evaluate runs/compress --limit 100

  chop evaluate ./my-llama-4bit --reference ./my-llama --dataset ./texts.txt

  chop evaluate ./my-llama-4bit --reference ./my-llama --tasks hellaswag,arc_easy --limit 200

  chop evaluate ./my-llama-4bit --tasks ./my_task.yaml --apply-chat-template --num-fewshot 3

[bold]Rows[/]: the task's metric (perplexity for language models) and, compared with the float
model, KL divergence per answer, share of equal answers, and flips: answers that change from right
to wrong or from wrong to right. Confidence intervals are at 95 %, over rows.

[bold]Tasks[/]: lm-eval runs and scores them (pip install 'mase-chop[eval]') and gives their
standard errors; chop adds the flips against the float model. Their data come from the hub or its
cache. Your own tasks are YAML files, which may use local data: --tasks FILE.yaml, or names of a
folder with --include-path. Options have lm-eval's names and give the numbers of its command.

[bold]Output[/] in --out: table.md, result.json, kl.svg, tasks.svg, manifest.json, and
answers.jsonl, from which the same command resumes after an interruption.
"""

EVALUATE = Command(
    deferred("chop.actions.evaluate.job:evaluate"),
    "chop.actions.evaluate.settings:EvaluateConfig",
    HELP,
    arguments=("model",),
)
