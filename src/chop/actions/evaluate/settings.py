"""Settings of `chop evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chop.base.installed import require
from chop.config import check_fields
from chop.errors import ConfigError


@dataclass(frozen=True)
class EvaluateConfig:
    """Settings of `chop evaluate`.

    Attributes:
        model: output folder of `chop compress`, checkpoint of a graph, folder that chop wrote for
            transformers, file or folder of another tool that has a reader, or a float model:
            built-in, folder or hub name.
        tasks: names of tasks and groups of lm-eval, besides the rows.
        reference: float model that it is compared with. Default: the one that the run compressed.
        dataset: data set of the rows: built-in, local file or folder, hub name. Default: that of
            the run or of the built-in model; of another language model the built-in `stories`.
        limit: number of test rows, spread over all, and of each task the first so many. Default:
            all.
        num_fewshot: examples in front of each question of a task. Default: the task's own.
        include_path: folder of tasks of one's own, as YAML files.
        batch_size: rows of a forward at most.
        max_length: tokens of a row at most. Default: the model's limit, and of rows at most 512.
        stride: tokens by which windows move over running text. Default: half of `max_length`.
        tokenizer: local folder or hub name of the tokenizer. Default: the model's own.
        out: folder of the results.
        device: torch device. Default: a GPU if there is one, else the CPU.
        evaluate: `file.py:fn`, a function that judges models in the place of rows. A run that was
            judged by one needs it again, unless the command trusts what files name. Default: the
            task's metric on the rows.
        lower_is_better: lower numbers of `evaluate` are better. Default: as the run says, for its
            own function.

    Raises:
        ConfigError: a number that is out of range, or a task that is named twice.
        UnavailableError: tasks are named and lm-eval is not installed.
    """

    model: str
    tasks: tuple[str, ...] = ()
    reference: str | None = None
    dataset: str | None = None
    limit: int | None = None
    num_fewshot: int | None = None
    include_path: Path | None = None
    batch_size: int = 8
    max_length: int | None = None
    stride: int | None = None
    tokenizer: str | None = None
    out: Path = Path("runs/evaluate")
    device: str | None = None
    evaluate: str | None = None
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)
        if self.lower_is_better and self.evaluate is None:
            raise ConfigError("lower_is_better: applies to evaluate, which is not given.")
        least = {"limit": 1, "num_fewshot": 0, "batch_size": 1, "max_length": 2, "stride": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ConfigError(f"{name}: expected {lowest} or more, got {value}.")
        if len({*self.tasks}) < len(self.tasks):
            raise ConfigError(f"tasks: expected each once, got {', '.join(self.tasks)}.")
        if self.tasks:
            require("chop evaluate --tasks", "lm_eval", extra="eval")
            return
        for name in ("num_fewshot", "include_path"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name}: expected tasks of lm-eval, too, got none.")
