"""`chop evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.cli.command import Command


def evaluate(
    model: str,
    /,
    *,
    tasks: tuple[str, ...] = (),
    reference: str | None = None,
    dataset: str | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    include_path: Path | None = None,
    batch_size: int = 8,
    max_length: int | None = None,
    stride: int | None = None,
    tokenizer: str | None = None,
    out: Path = Path("runs/evaluate"),
    device: str | None = None,
    evaluate: str | None = None,
    lower_is_better: bool = False,
) -> Any:
    """Judge a model on rows and by tasks of lm-eval, beside the float model that it was.

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

    Args:
        model: run, checkpoint, exported folder or float model. Namely an output folder of chop
            compress, a checkpoint of a graph, a folder that chop wrote for transformers, one of
            compressed-tensors, GPTQ or AWQ, a file of GGUF, or a float model: built-in, folder or
            hub name.
        tasks: tasks and groups of lm-eval, besides the rows. Default: none.
        reference: float model that it is compared with. A built-in name, folder or hub name.
            Default: the one that the run compressed.
        dataset: data set of the rows, named as for chop compress. Default: that of the run or of
            the built-in model; of another language model the built-in stories.
        limit: number of test rows, and of rows of each task. Test rows are spread over all, of a
            task they are the first. Default: all.
        num_fewshot: examples in front of each question of a task. Default: the task's own.
        include_path: folder of tasks of your own. They are YAML files of lm-eval, which may run
            Python of that folder. Default: none.
        batch_size: rows of a forward at most. The number changes rounding errors alone, but for
            inputs that have one scale for the whole batch.
        max_length: number of tokens of a row at most. Default: the model's limit, of rows at most
            512.
        stride: tokens by which windows move over running text. Default: half of --max-length.
        tokenizer: local folder or hub name of the tokenizer. Default: the model's own.
        out: folder of the results.
        device: torch device: cpu, cuda, cuda:1 and so on. Default: a GPU if there is one, else the
            CPU.
        evaluate: judging function, as file.py:fn. It takes a model and gives a number, in the place
            of rows: the function that a run was judged by, or another. The file is executed.
            Default: the task's metric.
        lower_is_better: lower numbers of --evaluate are better.
    """
    from chop.actions.evaluate.job import evaluate as run
    from chop.actions.evaluate.settings import EvaluateConfig

    what = (model, tasks, reference, dataset, limit, num_fewshot, include_path, batch_size)
    where = (max_length, stride, tokenizer, out, device)
    return run(EvaluateConfig(*what, *where, evaluate, lower_is_better))


EVALUATE = Command(evaluate, draws=True, makes_models=True)
