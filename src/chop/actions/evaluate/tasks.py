"""Tasks of lm-eval: questions with right answers, asked of a model and of its float model.

lm-eval makes the questions, asks them and counts; what a model has answered is kept in a journal.
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
"""Batches of questions that are asked before their answers are kept."""
STDERR = "_stderr"
SEED = 1234
"""Of numpy, of torch and of examples, as lm-eval seeds them; of Python it is 0."""
Found = Mapping[str, Any]
"""What lm-eval gives: `results` and `samples` by task, and more."""


@dataclass(frozen=True)
class TaskScore:
    """A metric of a model on a task.

    Attributes:
        task: name of a task, or of a group.
        metric: as lm-eval calls it: `acc`, `acc_norm`, `exact_match`, `word_perplexity` ...
        filter: of the answers; `none` where there is none.
        questions: how many; None of groups.
        own: the metric of the model.
        stderr: its standard error; None where lm-eval gives none.
        reference: the metric of the float model; None where there is none, as for all that follow.
        reference_stderr: its standard error.
        flips: share of answers that change from right to wrong or from wrong to right; None where
            an answer is neither, as of perplexity.
        lost: how many change from right to wrong.
        won: how many change from wrong to right.
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


class KeptAnswers:
    """A model as lm-eval asks it, whose answers are in a journal as soon as they are there.

    Args:
        asked: `HFLM` of lm-eval.
        batch_size: questions that it is asked at once.
        journal: of answers.
        identity: of the model, in the journal.
        advance: takes the share of the questions that is done.
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
        """For each (context, continuation) its log likelihood, and whether it is greedy."""
        return [tuple(found) for found in self._answers("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[Any]:
        """For each text its log likelihood."""
        return self._answers("loglikelihood_rolling", requests)

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """For each (context, settings) the text that goes on."""
        return self._answers("generate_until", requests)

    def _answers(self, kind: str, requests: Sequence[Any]) -> list[Any]:
        keys = self._keys(kind, requests)
        is_kept = partial(_is_kept, kind)
        missing = [i for i, key in enumerate(keys) if self._journal.find(key, is_kept) is None]
        # Long ones first, as lm-eval asks them: what does not fit into memory fails at once.
        missing.sort(key=lambda i: -sum(len(str(x)) for x in requests[i].args))
        for start in range(0, len(missing), self._size):
            chunk = missing[start : start + self._size]
            found = getattr(self.asked, kind)([requests[i] for i in chunk], disable_tqdm=True)
            for i, answer in zip(chunk, found, strict=True):
                self._journal.add(keys[i], {"answer": answer})
            self._advance((len(keys) - len(missing) + start + len(chunk)) / len(keys))
        return [self._journal.get(key)["answer"] for key in keys]

    def _keys(self, kind: str, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """One for each request; the same one asked twice, to draw two answers, has two."""
        seen: dict[str, int] = {}
        keys = []
        for request in requests:
            text = repr(request.args)
            seen[text] = seen.get(text, 0) + 1
            keys.append({**self._identity, "ask": kind, "of": text, "time": seen[text]})
        return keys


def _is_kept(kind: str, found: Mapping[str, Any]) -> bool:
    """Returns true if an entry of the journal has an answer to a question of a kind."""
    answer = found.get("answer")
    if kind == "generate_until":
        return isinstance(answer, str)
    if kind == "loglikelihood_rolling":
        return isinstance(answer, int | float)
    if not isinstance(answer, list) or len(answer) != 2:
        return False
    return all(isinstance(item, int | float) for item in answer)


def read_tasks(config: EvaluateConfig) -> dict[str, Any]:
    """What lm-eval has loaded of each task that is named, its data among it.

    Raises:
        ConfigError: lm-eval has no task of a name, where the message names the nearest, or a task
            cannot be asked like this.
        UnavailableError: the data of a task are not there.
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
                    f"{first_line(error).removesuffix('.')}): name a folder of datasets that has "
                    "them by HF_DATASETS_CACHE, copied from another machine, or give "
                    "--include-path FOLDER with a YAML file whose dataset_kwargs name local files."
                ) from error
            for task, each in read[name]["tasks"].items():
                _check_task(task, each, config)
    return read


def _check_task(name: str, task: Any, config: EvaluateConfig) -> None:
    """Raises ConfigError where lm-eval would refuse it late, or leave a setting without a word."""
    if config.num_fewshot and task.get_config("num_fewshot") == 0:
        raise ConfigError(
            f"num_fewshot: expected 0, or none, got {config.num_fewshot}: '{name}' has no examples "
            "in front of its questions, whatever is asked for."
        )
    if getattr(task, "UNSAFE_CODE", False):
        raise ConfigError(f"tasks: '{name}' runs code that a model writes, which chop does not.")
    if getattr(task, "MULTIMODAL", False):
        raise ConfigError(f"tasks: '{name}' has more than text in its questions.")


def _manager(config: EvaluateConfig) -> Any:
    """A manager of the tasks in the folder alone, where it has them all: lm-eval's own are many."""
    from lm_eval.tasks import TaskManager

    if config.include_path is None:
        return TaskManager()
    folder = config.include_path.expanduser()
    if not folder.is_dir():
        raise ConfigError(f"include_path: '{folder}' is no folder.")
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
) -> Found:
    """What lm-eval finds of a model on a task or a group.

    Args:
        model: a language model of transformers.
        tokenizer: its own.
        task: its name.
        config: the settings.
        loaded: what `read_tasks` has of it.
        journal: of answers; those that it has are not asked again.
        identity: of the model, in the journal.
        advance: takes the share of the questions that is done.
    Raises:
        ConfigError: lm-eval refuses task and model.
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
        kept: Any = KeptAnswers(asked, config.batch_size, journal, identity, advance)
        for each in loaded["tasks"].values():
            _set_examples(each, config.num_fewshot)
        try:
            found: Found = evaluate(kept, loaded, limit=config.limit)
        except ChopError:  # of the journal or the model, and not of lm-eval
            raise
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise ConfigError(f"tasks: lm-eval refuses '{task}': {first_line(error)}") from error
    return found


def _set_examples(task: Any, count: int | None) -> None:
    """Sets examples in front of questions as `lm_eval.simple_evaluate` does, which costs more."""
    own = task.get_config("num_fewshot")
    if own is None or (own != 0 and count is not None):  # `_check_task` refuses others
        task.set_config("num_fewshot", count or 0)
    task.set_fewshot_seed(SEED)


def compute_scores(own: Found, reference: Found | None) -> list[TaskScore]:
    """The metrics of every task, and flips beside the float model.

    Args:
        own: of the model.
        reference: of the float model on the same task; None: there is none.
    """
    found = []
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
            found.append(
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
    return found


def _answers_by_question(found: Found, task: str, metric: str, chosen: str) -> dict[int, Any]:
    """What a metric says of each question, by its number."""
    samples = found["samples"].get(task, ())
    return {x["doc_id"]: x[metric] for x in samples if x["filter"] == chosen and metric in x}


def _flips(own: Mapping[int, Any], reference: Mapping[int, Any]) -> dict[str, Any]:
    """Flips, where every answer is right or wrong."""
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
    """lm-eval writes N/A where there is no number."""
    return float(value) if isinstance(value, int | float) else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Context in which lm-eval logs errors alone."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _seeded() -> Iterator[None]:
    """Context in which all generators have lm-eval's seeds; they are restored behind it."""
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
