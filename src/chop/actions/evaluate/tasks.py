"""Tasks of lm-eval: questions with right answers for a model and its float model.

lm-eval builds, asks and scores the questions; a journal stores the answers.
Source: Gao et al., The Language Model Evaluation Harness, https://doi.org/10.5281/zenodo.10256836.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from chop.actions.evaluate.rows import Measured, share
from chop.actions.evaluate.settings import EvaluateConfig
from chop.errors import ChopError, ConfigError, UnavailableError, check_known, first_line
from chop.kernels.matmul_precision import matmul_precision
from chop.runs import Journal

CHUNK = 16
"""Number of question batches between writes to the journal."""
STDERR = "_stderr"
SEED = 1234
"""Seed of numpy, torch and few-shot examples, as in lm-eval; the seed of Python is 0."""
Result = Mapping[str, Any]
"""Result of lm-eval: `results` and `samples` by task, and more."""


@dataclass(frozen=True)
class TaskScore:
    """Metric of a model on a task.

    Attributes:
        task: name of a task or group.
        metric: name in lm-eval: `acc`, `acc_norm`, `exact_match`, `word_perplexity` ...
        filter: filter of the answers, or `none`.
        questions: number of questions; None for groups.
        own: metric of the model.
        stderr: its standard error, or None if lm-eval gives none.
        reference: metric of the float model. This and all following are None without one.
        reference_stderr: its standard error.
        flips: share of answers that change from right to wrong or from wrong to right; None for
            metrics without right and wrong, such as perplexity.
        lost: number of answers that change from right to wrong.
        won: number of answers that change from wrong to right.
    """

    task: str
    metric: str
    filter: str
    questions: int | None
    own: float
    stderr: float | None
    reference: float | None = None
    reference_stderr: float | None = None
    flips: Measured | None = None
    lost: int | None = None
    won: int | None = None


class JournaledModel:
    """Model for lm-eval that stores each answer in a journal at once.

    Args:
        asked: `HFLM` of lm-eval.
        batch_size: number of questions per forward.
        journal: journal of answers.
        identity: identity of the model in the journal.
        advance: callback with the finished share of the questions.
    """

    rank, world_size = 0, 1

    def __init__(
        self,
        asked: Any,
        batch_size: int,
        journal: Journal,
        identity: Mapping[str, Any],
        advance: Callable[[float], None],
    ) -> None:
        self.asked, self.tokenizer, self.max_length = asked, asked.tokenizer, asked.max_length
        self._size, self._journal, self._advance = CHUNK * batch_size, journal, advance
        self._identity = {**identity, "max_length": asked.max_length}

    def loglikelihood(self, requests: Sequence[Any]) -> list[Any]:
        """Returns (log likelihood, is greedy) for each (context, continuation)."""
        return [tuple(answer) for answer in self._answers("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[Any]:
        """Returns the log likelihood of each text."""
        return self._answers("loglikelihood_rolling", requests)

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """Returns the continuation for each (context, settings)."""
        return self._answers("generate_until", requests)

    def _answers(self, kind: str, requests: Sequence[Any]) -> list[Any]:
        keys = self._keys(kind, requests)
        is_answer = partial(_is_answer, kind)
        missing = [i for i, key in enumerate(keys) if self._journal.find(key, is_answer) is None]
        # Longest first, as in lm-eval, so that an out-of-memory error comes at once.
        missing.sort(key=lambda i: -sum(len(str(x)) for x in requests[i].args))
        for start in range(0, len(missing), self._size):
            chunk = missing[start : start + self._size]
            answers = getattr(self.asked, kind)([requests[i] for i in chunk], disable_tqdm=True)
            for i, answer in zip(chunk, answers, strict=True):
                self._journal.add(keys[i], {"answer": answer})
            self._advance((len(keys) - len(missing) + start + len(chunk)) / len(keys))
        return [self._journal.get(key)["answer"] for key in keys]

    def _keys(self, kind: str, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns a key per request; repeated requests for several samples get a number each."""
        seen: dict[str, int] = {}
        keys = []
        for request in requests:
            text = repr(request.args)
            seen[text] = seen.get(text, 0) + 1
            keys.append({**self._identity, "ask": kind, "of": text, "time": seen[text]})
        return keys


def _is_answer(kind: str, entry: Mapping[str, Any]) -> bool:
    """Returns True if a journal entry has an answer to a kind of question."""
    answer = entry.get("answer")
    if kind == "generate_until":
        return isinstance(answer, str)
    if kind == "loglikelihood_rolling":
        return isinstance(answer, int | float)
    if not isinstance(answer, list) or len(answer) != 2:
        return False
    return all(isinstance(item, int | float) for item in answer)


def read_tasks(config: EvaluateConfig) -> dict[str, Any]:
    """Loads each named task with lm-eval, including its data.

    Raises:
        ConfigError: if lm-eval has no task of that name (the message names the nearest), or a task
            does not support the settings.
        UnavailableError: if the data of a task are missing.
    """
    read: dict[str, Any] = {}
    with _quiet():
        manager = _manager(config)
        for name in config.tasks:
            check_known(name, manager.all_tasks, "tasks: lm-eval has no task or group")
            try:
                with _seeded():
                    read[name] = manager.load([name])
            except Exception as error:  # of data sets, of the hub, or of the task's own code
                raise UnavailableError(
                    f"tasks: the data of '{name}' cannot be read ({type(error).__name__}: "
                    f"{first_line(error).removesuffix('.')}). Set HF_DATASETS_CACHE to a copied "
                    "cache folder that has them, or pass --include-path FOLDER with a YAML file "
                    "with local files in dataset_kwargs."
                ) from error
            for task, each in read[name]["tasks"].items():
                _check_task(task, each, config)
    return read


def _check_task(name: str, task: Any, config: EvaluateConfig) -> None:
    """Raises ConfigError for settings that lm-eval would ignore, or reject late."""
    if config.num_fewshot and task.get_config("num_fewshot") == 0:
        raise ConfigError(
            f"num_fewshot: expected 0, got {config.num_fewshot}: '{name}' does not support "
            "few-shot examples."
        )
    if getattr(task, "UNSAFE_CODE", False):
        raise ConfigError(
            f"tasks: '{name}' runs code written by a model, which chop does not allow."
        )
    if getattr(task, "MULTIMODAL", False):
        raise ConfigError(
            f"tasks: '{name}' has questions beyond text, which chop does not support."
        )


def _manager(config: EvaluateConfig) -> Any:
    """Returns a task manager; loads lm-eval's own many tasks only if the folder lacks a task."""
    from lm_eval.tasks import TaskManager

    if config.include_path is None:
        return TaskManager()
    folder = config.include_path.expanduser()
    if not folder.is_dir():
        raise ConfigError(f"include_path: '{folder}' is not a folder.")
    own = TaskManager(include_path=str(folder), include_defaults=False)
    if set(config.tasks) <= set(own.all_tasks):
        return own
    return TaskManager(include_path=str(folder))


def ask(
    model: nn.Module,
    tokenizer: Any,
    task: str,
    config: EvaluateConfig,
    loaded: Any,
    journal: Journal,
    identity: Mapping[str, Any],
    advance: Callable[[float], None] = lambda share: None,
) -> Result:
    """Evaluates a model with lm-eval on a task or a group.

    Args:
        model: a Hugging Face language model.
        tokenizer: its tokenizer.
        task: name of the task.
        config: settings of the job.
        loaded: the task from `read_tasks`.
        journal: journal of answers; answered questions are not asked again.
        identity: identity of the model in the journal.
        advance: callback with the finished share of the questions.
    Raises:
        ConfigError: if lm-eval rejects the task or model.
    """
    with _quiet(), _seeded(), matmul_precision("highest"):
        from lm_eval import evaluate
        from lm_eval.models.huggingface import HFLM

        asked: Any = HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=config.batch_size,
            max_length=config.max_length,
        )
        journaled: Any = JournaledModel(asked, config.batch_size, journal, identity, advance)
        for each in loaded["tasks"].values():
            _set_examples(each, config.num_fewshot)
        try:
            result: Result = evaluate(journaled, loaded, limit=config.limit)
        except ChopError:  # of the journal or the model, and not of lm-eval
            raise
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise ConfigError(f"tasks: lm-eval rejects '{task}': {first_line(error)}") from error
    return result


def _set_examples(task: Any, count: int | None) -> None:
    """Sets the few-shot examples as `lm_eval.simple_evaluate` does, at less cost."""
    own = task.get_config("num_fewshot")
    if own is None or (own != 0 and count is not None):  # `_check_task` rejects others
        task.set_config("num_fewshot", count or 0)
    task.set_fewshot_seed(SEED)


def compute_scores(own: Result, reference: Result | None) -> list[TaskScore]:
    """Returns the metrics of every task, with flips against the float model.

    Args:
        own: result of the model.
        reference: result of the float model on the same task, or None.
    """
    scores = []
    for task, numbers in own["results"].items():
        theirs = {} if reference is None else reference["results"][task]
        for name, value in numbers.items():
            metric, _, chosen = name.partition(",")
            if not chosen or metric.endswith(STDERR) or not isinstance(value, int | float):
                continue
            error = f"{metric}{STDERR},{chosen}"
            samples = _answers_by_question(own, task, metric, chosen)
            flips = (
                {}
                if reference is None
                else _flips(samples, _answers_by_question(reference, task, metric, chosen))
            )
            scores.append(
                TaskScore(
                    task,
                    metric,
                    chosen,
                    len(samples) or None,
                    float(value),
                    _number(numbers.get(error)),
                    _number(theirs.get(name)),
                    _number(theirs.get(error)),
                    **flips,
                )
            )
    return scores


def _answers_by_question(result: Result, task: str, metric: str, chosen: str) -> dict[int, Any]:
    """Returns the metric of each question by its number."""
    samples = result["samples"].get(task, ())
    return {x["doc_id"]: x[metric] for x in samples if x["filter"] == chosen and metric in x}


def _flips(own: Mapping[int, Any], reference: Mapping[int, Any]) -> dict[str, Any]:
    """Counts flips if every answer is right or wrong; else returns {}."""
    values = [*own.values(), *reference.values()]
    if not own or not all(isinstance(x, int | float) and x in (0, 1) for x in values):
        return {}
    right, was_right = (torch.tensor([bool(x[i]) for i in own]) for x in (own, reference))
    return {
        "flips": share(right != was_right, [1] * len(own)),
        "lost": int((was_right & ~right).sum()),
        "won": int((right & ~was_right).sum()),
    }


def _number(value: Any) -> float | None:
    """Returns a number, or None for the N/A of lm-eval."""
    return float(value) if isinstance(value, int | float) else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Limits the log of lm-eval to errors."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _seeded() -> Iterator[None]:
    """Sets all random generators to lm-eval's seeds, and restores them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            random.seed(0)
            np.random.seed(SEED)
            torch.manual_seed(SEED)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
