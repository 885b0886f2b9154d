"""Settings of `chop evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from chop.base.installed import require
from chop.config import Range, check_fields
from chop.errors import ConfigError


@dataclass(frozen=True)
class EvaluateConfig:
    """Settings of `chop evaluate`.

    Attributes:
        model: run, checkpoint, exported folder or float model. It can be an output folder of chop
            compress, a checkpoint of a graph, a transformers folder that chop wrote, a folder of
            compressed-tensors, GPTQ or AWQ, a GGUF file, or a float model: built-in name, folder
            or hub name.
        tasks: tasks and groups of lm-eval, in addition to the rows. Default: none.
        reference: float model to compare with. It is a built-in name, folder or hub name. Default:
            the one that the run compressed.
        dataset: data set of the rows, named as for chop compress. Default: that of the run or of
            the built-in model; for another language model the built-in stories.
        limit: number of test rows, and of rows of each task. Test rows are spread over all; of a
            task the first ones are used. Default: all.
        num_fewshot: number of few-shot examples per question. Default: the task's own.
        include_path: folder with your own tasks. They are YAML files of lm-eval, which may run
            Python of that folder. Default: none.
        batch_size: maximum number of rows per forward. It changes only rounding errors, except for
            inputs with one scale for the whole batch.
        max_length: maximum number of tokens per row. Default: the model's limit, at most 512 for
            rows.
        stride: tokens by which windows move over running text. Default: half of `max_length`.
        tokenizer: local folder or hub name of the tokenizer. Default: the model's own.
        out: folder for the results.
        device: torch device: cpu, cuda, cuda:1 and so on. Default: a GPU if there is one, else the
            CPU.
        evaluate: scoring function, as file.py:fn. It takes a model and returns a number, and
            replaces the rows. The file is executed. Default: the task's metric.
        lower_is_better: lower numbers of `evaluate` are better.

    Raises:
        ConfigError: if a number is out of range, or a task is named twice.
        UnavailableError: if tasks are named and lm-eval is not installed.
    """

    model: str
    tasks: tuple[str, ...] = ()
    reference: str | None = None
    dataset: str | None = None
    limit: Annotated[int | None, Range(1)] = None
    num_fewshot: Annotated[int | None, Range(0)] = None
    include_path: Path | None = None
    batch_size: Annotated[int, Range(1)] = 8
    max_length: Annotated[int | None, Range(2)] = None
    stride: Annotated[int | None, Range(1)] = None
    tokenizer: str | None = None
    out: Path = Path("runs/evaluate")
    device: str | None = None
    evaluate: str | None = None
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)
        if self.lower_is_better and self.evaluate is None:
            raise ConfigError("lower_is_better: applies to evaluate only; pass evaluate as well.")
        if len({*self.tasks}) < len(self.tasks):
            raise ConfigError(f"tasks: expected each task once, got {', '.join(self.tasks)}.")
        if self.tasks:
            require("chop evaluate --tasks", "lm_eval", extra="eval")
            return
        for name in ("num_fewshot", "include_path"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name}: applies to tasks only; pass tasks as well.")
