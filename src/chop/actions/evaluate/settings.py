"""Settings of `chop evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from chop.base.installed import require
from chop.config import MORE, Range, check_fields, check_text
from chop.errors import ConfigError

TASK = {"applies_to": "tasks"}
"""Metadata of settings that change only tasks; they have lm-eval's names."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Settings of `chop evaluate`.

    Attributes:
        model: run, checkpoint, exported folder or float model. It can be an output folder of chop
            compress, a checkpoint of a graph, a transformers folder that chop wrote, a folder of
            compressed-tensors, GPTQ or AWQ, a GGUF file, or a float model: built-in name, folder
            or hub name.
        tasks: tasks and groups of lm-eval, or YAML files. They are evaluated in addition to the
            rows. Default: none.
        reference: float model to compare with. It is a built-in name, folder or hub name. Default:
            the one that the run compressed.
        dataset: data set of the rows, named as for chop compress. Default: that of the run or of
            the built-in model; for another language model the built-in stories.
        limit: number of test rows, and of rows of each task. Test rows are spread over all; of a
            task the first ones are used. Default: all.
        num_fewshot: number of few-shot examples per question. Default: the task's own.
        include_path: folder with your own tasks. They are YAML files of lm-eval, which may run
            Python of that folder. Default: none.
        apply_chat_template: apply the tokenizer's chat template to tasks.
        system_instruction: system message before the questions of tasks. Default: the task's own.
        fewshot_as_multiturn: make each few-shot example a turn of the chat. Default: on with
            `apply_chat_template`.
        add_bos_token: begin each text of tasks with the BOS token. Default: as the tokenizer does.
        gen_kwargs: settings of tasks that generate text. They replace the task's own. Example:
            `temperature=0.7`. Default: none.
        batch_size: maximum number of rows per forward. It changes only rounding errors, except for
            inputs with one scale for the whole batch.
        max_length: maximum number of tokens per row. Default: the model's limit, at most 512 for
            rows.
        stride: tokens by which windows move over running text. Default: half of `max_length`.
        tokenizer: local folder or hub name of the tokenizer. Default: the model's own.
        text_column: column with the texts of a table. Default: as for chop compress.
        label_column: column with the labels of a table. Default: as for chop compress.
        input_columns: columns of numbers of a table that the model reads, in its order. Default:
            those of the run, else as for chop compress.
        class_names: names of the classes, in the order of the model's outputs. Default: those of
            the run, else as for chop compress.
        card: add the results to the folder's model card. It has to be one that chop wrote.
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
    num_fewshot: Annotated[int | None, Range(0)] = field(default=None, metadata=TASK)
    include_path: Path | None = field(default=None, metadata=TASK)
    apply_chat_template: bool = field(default=False, metadata=TASK)
    system_instruction: str | None = field(default=None, metadata=TASK)
    fewshot_as_multiturn: bool | None = field(default=None, metadata=TASK)
    add_bos_token: bool | None = field(default=None, metadata=TASK)
    gen_kwargs: Mapping[str, Any] | None = field(default=None, metadata=TASK)
    batch_size: Annotated[int, Range(1)] = 8
    max_length: Annotated[int | None, Range(2)] = None
    stride: Annotated[int | None, Range(1)] = None
    tokenizer: str | None = None
    text_column: str | None = field(default=None, metadata=MORE)
    label_column: str | None = field(default=None, metadata=MORE)
    input_columns: tuple[str, ...] | None = field(default=None, metadata=MORE)
    class_names: tuple[str, ...] | None = field(default=None, metadata=MORE)
    card: bool = False
    out: Path = Path("runs/evaluate")
    device: str | None = None
    evaluate: str | None = None
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            check_text(getattr(self, each.name), each.name)
        check_fields(self, type(self).__name__)
        if self.lower_is_better and self.evaluate is None:
            raise ConfigError("lower_is_better: applies to evaluate only; pass evaluate as well.")
        if self.fewshot_as_multiturn and not self.apply_chat_template:
            raise ConfigError(
                "fewshot_as_multiturn: needs a chat template; set apply_chat_template as well."
            )
        _check_generation(self.gen_kwargs or {})
        if self.tasks:
            self._check_files()
            require("chop evaluate --tasks", "lm_eval", extra="eval")
            return
        for each in fields(self):
            is_given = getattr(self, each.name) != each.default
            if is_given and each.metadata == TASK:
                raise ConfigError(f"{each.name}: applies to tasks only; pass tasks as well.")

    def _check_files(self) -> None:
        for task in self.tasks:
            if is_task_file(task) and not Path(task).expanduser().is_file():
                raise ConfigError(f"tasks: '{task}' is not a file.")


def is_task_file(task: str) -> bool:
    """Returns True for the path of a YAML file instead of the name of a task."""
    return task.endswith((".yaml", ".yml"))


def _check_generation(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for texts that lm-eval's own command reads as something else."""
    for name, value in settings.items():
        if not isinstance(value, str):
            continue
        if value.lower() in ("true", "false", "none"):
            raise ConfigError(
                f"gen_kwargs: {name} is the text '{value}'; expected true, false or null."
            )
        if "," in value and "=" in value:
            raise ConfigError(
                f"gen_kwargs: {name} is the text '{value}': repeat --gen-kwargs for each setting."
            )
