"""Tasks of lm-eval: questions with right answers for a model and its float model.

lm-eval builds, asks and scores the questions; a journal stores the answers.
Source: Gao et al., The Language Model Evaluation Harness, https://doi.org/10.5281/zenodo.10256836.
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.actions.evaluate.rows import Measured, share
from chop.actions.evaluate.settings import EvaluateConfig, is_task_file
from chop.base.hub import offline_errors
from chop.errors import ChopError, ConfigError, UnavailableError, check_known, first_line
from chop.kernels.matmul_precision import matmul_precision
from chop.runs import Journal
from chop.train.seeds import seeded

CHUNK = 16
"""Number of batches of whole texts between writes to the journal."""
ROLLING, GENERATE = "loglikelihood_rolling", "generate_until"
"""Kinds of questions: log likelihoods of whole texts, and generated texts."""
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

    HFLM reports each answer through its cache hook, which this model is. HFLM gets all the missing
    questions in one call, so that its batches and random numbers are those of lm-eval's command.
    It reports whole texts only at the end of a call: they are asked in chunks.

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
        self.tokenizer_name = asked.tokenizer_name
        self.apply_chat_template = asked.apply_chat_template
        self._size, self._journal, self._advance = CHUNK * batch_size, journal, advance
        self._identity = {**identity, "max_length": asked.max_length}
        self._missing: dict[str, list[dict[str, Any]]] = {}
        self._done = self._count = 0
        asked.set_cache_hook(self)

    def loglikelihood(self, requests: Sequence[Any]) -> list[Any]:
        """Returns (log likelihood, is greedy) for each (context, continuation)."""
        return [tuple(answer) for answer in self._answers("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[Any]:
        """Returns the log likelihood of each text."""
        return self._answers(ROLLING, requests)

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """Returns the continuation for each (context, settings)."""
        return self._answers(GENERATE, requests)

    def add_partial(self, kind: str, args: Any, answer: Any) -> None:
        """Stores an answer as soon as HFLM has it. `CacheHook` of lm-eval has the same method."""
        self._journal.add(self._missing[repr(tuple(args))].pop(0), {"answer": answer})
        self._done += 1
        self._advance(self._done / self._count)

    def _answers(self, kind: str, requests: Sequence[Any]) -> list[Any]:
        keys = self._keys(kind, requests)
        is_answer = partial(_is_answer, kind)
        missing = [i for i, key in enumerate(keys) if self._journal.find(key, is_answer) is None]
        self._missing, self._count, self._done = {}, len(keys), len(keys) - len(missing)
        for i in missing:
            self._missing.setdefault(repr(requests[i].args), []).append(keys[i])
        size = self._size if kind == ROLLING else max(len(missing), 1)
        for start in range(0, len(missing), size):
            chunk = [requests[i] for i in missing[start : start + size]]
            getattr(self.asked, kind)(chunk, disable_tqdm=True)
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
    if kind == GENERATE:
        return isinstance(answer, str)
    if kind == ROLLING:
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
    with _quiet(), offline_errors():
        manager = _manager(config)
        for name in config.tasks:
            if not is_task_file(name):
                check_known(name, manager.all_tasks, "tasks: lm-eval has no task or group")
            try:
                with _seeded():
                    read[name] = manager.load([name])
            except Exception as error:  # of data sets, of the hub, or of the task's own code
                raise UnavailableError(
                    f"tasks: the data of '{name}' cannot be read ({type(error).__name__}: "
                    f"{first_line(error).removesuffix('.')}). Set HF_DATASETS_CACHE to a copied "
                    "cache folder that has them, or pass a YAML file of a task with local files in "
                    "dataset_kwargs: --tasks FILE.yaml."
                ) from error
            for task, each in read[name]["tasks"].items():
                _check_task(task, each, config)
    loaded = [task for each in read.values() for task in each["tasks"].values()]
    if config.gen_kwargs and all(task.OUTPUT_TYPE != GENERATE for task in loaded):
        raise ConfigError("gen_kwargs: none of the tasks generates text; leave it out.")
    return read


def _check_task(name: str, task: Any, config: EvaluateConfig) -> None:
    """Raises ConfigError for settings that lm-eval would ignore, or reject late."""
    if config.num_fewshot and task.get_config("num_fewshot") == 0:
        raise ConfigError(
            f"num_fewshot: expected 0, got {config.num_fewshot}: '{name}' does not support "
            "few-shot examples."
        )
    for setting in ("apply_chat_template", "system_instruction", "num_fewshot"):
        if getattr(config, setting) and task.OUTPUT_TYPE == ROLLING:
            raise ConfigError(
                f"{setting}: '{name}' scores whole texts, without a prompt; evaluate it on its own."
            )
    if getattr(task, "UNSAFE_CODE", False):
        raise ConfigError(
            f"tasks: '{name}' runs code written by a model, which chop does not allow."
        )
    if getattr(task, "MULTIMODAL", False):
        raise ConfigError(
            f"tasks: '{name}' has questions with images or sound, which chop does not support."
        )


def _manager(config: EvaluateConfig) -> Any:
    """Returns a task manager; loads lm-eval's own many tasks only if they are needed."""
    from lm_eval.tasks import TaskManager

    folder = None if config.include_path is None else str(config.include_path.expanduser())
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"include_path: '{folder}' is not a folder.")
    own = TaskManager(include_path=folder, include_defaults=False)
    if all(is_task_file(task) or task in own.all_tasks for task in config.tasks):
        return own
    return TaskManager(include_path=folder)


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
            tokenizer=_with_bos(tokenizer, config.add_bos_token),
            batch_size=config.batch_size,
            max_length=config.max_length,
            add_bos_token=config.add_bos_token,
        )
        key = {**identity, "bos": config.add_bos_token}
        journaled: Any = JournaledModel(asked, config.batch_size, journal, key, advance)
        for each in loaded["tasks"].values():
            _set_task(each, config)
        multiturn = config.fewshot_as_multiturn
        try:
            result: Result = evaluate(
                journaled,
                loaded,
                limit=config.limit,
                system_instruction=config.system_instruction,
                apply_chat_template=config.apply_chat_template,
                fewshot_as_multiturn=config.apply_chat_template if multiturn is None else multiturn,
            )
        except ChopError:  # of the journal or the model, and not of lm-eval
            raise
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise ConfigError(f"tasks: lm-eval rejects '{task}': {first_line(error)}") from error
    return result


def _with_bos(tokenizer: Any, add_bos_token: bool | None) -> Any:
    """Returns the tokenizer as `AutoTokenizer.from_pretrained(add_bos_token=...)` makes it."""
    if add_bos_token is None:
        return tokenizer
    own = copy.deepcopy(tokenizer)
    own.add_bos_token = add_bos_token
    return own


def _set_task(task: Any, config: EvaluateConfig) -> None:
    """Sets examples and generation as `lm_eval.simple_evaluate` does, at less cost."""
    own, count = task.get_config("num_fewshot"), config.num_fewshot
    if own is None or (own != 0 and count is not None):  # `_check_task` rejects others
        task.set_config("num_fewshot", count or 0)
    if config.gen_kwargs and task.OUTPUT_TYPE == GENERATE:
        task.set_config("generation_kwargs", dict(config.gen_kwargs), update=True)
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
    with seeded(SEED):
        random.seed(0)
        yield
