"""Evaluation job: measures a model on rows and lm-eval tasks, and compares it with float."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from chop.actions.evaluate.card import add_results, find_card
from chop.actions.evaluate.models import Judged, load_judged
from chop.actions.evaluate.results import Evaluation, build_report
from chop.actions.evaluate.rows import JOURNAL, get_result, judge_models, measure_rows
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.evaluate.tasks import TaskScore, ask, compute_scores, read_tasks
from chop.actions.job import Job, Output, run_job
from chop.actions.next_steps import steps_with_run
from chop.base.trust import confirmation
from chop.errors import ConfigError
from chop.nn.quantized import QuantizedOperator
from chop.report.report import Report, announce
from chop.runs import Journal
from chop.runs.interrupt import describe_saved_points
from chop.runs.progress import Stages
from chop.workloads.fingerprints import (
    fingerprint_of_code,
    fingerprint_of_rows,
    fingerprint_of_weights,
)
from chop.workloads.workload import Workload

ROWS, TASK = "rows", "task"
"""Kinds of stages; stages of a kind take about equally long."""
FILE_FIELDS = ("_name_or_path", "transformers_version", "dtype")
"""Fields of a configuration that change no answer; the weights determine the dtype."""


@dataclass(frozen=True)
class Asked:
    """Models of an evaluation, with their identities in the journal.

    Attributes:
        judged: the models.
        own: identity of the model.
        reference: identity of the float model; "" if there is none.
        tasks: tasks as lm-eval loaded them, by name.
        tokenizer: identity of the tokenizer; "" without tasks.
        card: model card that gets the results, or None.
    """

    judged: Judged
    own: str
    reference: str
    tasks: Mapping[str, Any]
    tokenizer: str
    card: Path | None


def evaluate(config: EvaluateConfig) -> Evaluation:
    """Evaluates a model on its rows, and on lm-eval tasks if some are named.

    Writes into `config.out`: `answers.jsonl` (finished rows and answers, from which the same job
    resumes), `table.md`, `result.json`, `kl.svg` with a float model, and `tasks.svg` with tasks.

    Raises:
        ConfigError: if settings, model, data and tasks do not fit together.
        UnavailableError: if a model, data or lm-eval is missing.
        CheckpointError: if the run in the folder saved no model.
    """
    return run_job(EVALUATE, config)


def _load(config: EvaluateConfig, workload: Workload | None) -> Asked:
    card = find_card(config) if config.card else None
    tasks = read_tasks(config) if config.tasks else {}
    judged = load_judged(config)
    if config.tasks:
        _check_can_be_asked(config, judged)
    other = judged.reference
    reference = "" if other is None else get_identity(other)
    tokenizer = identity_of_tokenizer(judged.tokenizer) if config.tasks else ""
    return Asked(judged, get_identity(judged.model), reference, tasks, tokenizer, card)


def _check_can_be_asked(config: EvaluateConfig, judged: Judged) -> None:
    """Raises ConfigError if lm-eval does not support the model."""
    from transformers import PreTrainedModel

    task = judged.workload.task.name
    if not judged.is_language:
        raise ConfigError(
            f"tasks: lm-eval needs a language model, and '{config.model}' is a model for {task}: "
            "leave out --tasks to evaluate it on its rows."
        )
    if not isinstance(judged.model, PreTrainedModel):
        raise ConfigError(
            f"tasks: lm-eval needs a transformers model, and '{config.model}' is a "
            f"{type(judged.model).__name__}: leave out --tasks to evaluate it on its rows."
        )
    if config.apply_chat_template and not judged.tokenizer.chat_template:
        raise ConfigError(
            f"apply_chat_template: the tokenizer of '{config.model}' has no chat template: pass "
            "--tokenizer FOLDER with one that has, or leave out --apply-chat-template."
        )


def get_identity(model: nn.Module) -> str:
    """Returns a digest of weights, modules, their settings and formats."""
    parts = [
        f"{path} {type(module).__name__} {module.extra_repr()} "
        f"{module.spec if isinstance(module, QuantizedOperator) else ''}"
        for path, module in model.named_modules()
    ]
    return _digest(fingerprint_of_weights(model), _configuration(model), *parts)


def _configuration(model: nn.Module) -> str:
    """Returns the configuration, such as the base of rotary positions; "" if there is none."""
    from transformers import PreTrainedConfig

    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        return ""
    fields = json.loads(config.to_json_string())
    return str(sorted((name, x) for name, x in fields.items() if name not in FILE_FIELDS))


def identity_of_tokenizer(tokenizer: Any) -> str:
    """Returns a digest of the tokenizer's class and vocabulary."""
    return _digest(type(tokenizer).__name__, str(sorted(tokenizer.get_vocab().items())))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _evaluate(config: EvaluateConfig, asked: Asked, output: Output) -> Report[Evaluation]:
    judged, journal = asked.judged, Journal(output.folder / JOURNAL)
    rows = judged.workload.test
    rows = rows if config.limit is None else rows.spread(config.limit)
    models, workload = 1 if judged.reference is None else 2, judged.workload
    judge = workload.judge
    what = "rows" if judge is None else judge.title
    announce(config.model, f"evaluating {', '.join([what, *config.tasks])}")
    identity = {
        "rows": fingerprint_of_rows(rows),
        "task": judged.workload.task.name,
        "metric": judged.workload.task.metric.name,
        "model": asked.own,
        "reference": asked.reference,
    }
    with Stages([ROWS] + [TASK] * models * len(config.tasks)) as stages:
        with stages.stage(ROWS, f"{len(rows)} rows" if judge is None else what) as advance:
            if judge is None:
                entries = measure_rows(judged, rows, config.batch_size, journal, identity, advance)
                result = get_result(entries, workload.task)
            else:
                code = {"evaluate": fingerprint_of_code(judge.code), "model": asked.own}
                entries, result = [], judge_models(judged, judge, journal, code, asked.reference)
        scores = [
            score
            for task in config.tasks
            for score in _scores(task, config, asked, journal, stages)
        ]
    names = config.model, judged.reference_name, workload.dataset
    divergences = [kl for columns in entries for kl in columns.get("kl", ())]
    evaluation = Evaluation(*names, result, tuple(scores))
    if asked.card is not None:
        add_results(asked.card, evaluation, workload)
    steps = steps_with_run(config.model, "evaluate", confirmation((judged.reference_name,)))
    return replace(build_report(evaluation, divergences, workload), steps=steps)


def _scores(
    task: str, config: EvaluateConfig, asked: Asked, journal: Journal, stages: Stages
) -> list[TaskScore]:
    judged = asked.judged

    def answers(model: nn.Module, identity: str, who: str) -> Mapping[str, Any]:
        key = {"model": identity, "tokenizer": asked.tokenizer}
        with stages.stage(TASK, f"{task}, {who}") as advance:
            how = (config, asked.tasks[task], journal, key, advance)
            return ask(model, judged.tokenizer, task, *how)

    own = answers(judged.model, asked.own, "model")
    if judged.reference is None:
        return compute_scores(own, None)
    return compute_scores(own, answers(judged.reference, asked.reference, "float model"))


EVALUATE = Job(
    "evaluate", _evaluate, _load, lambda config: describe_saved_points(config.out / JOURNAL)
)
