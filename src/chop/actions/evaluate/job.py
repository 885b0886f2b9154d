"""`chop evaluate`: a model judged on rows and by tasks of lm-eval, beside its float model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from chop.actions.evaluate.models import Judged, load_judged
from chop.actions.evaluate.results import Evaluation, build_report
from chop.actions.evaluate.rows import JOURNAL, get_result, judge_models, measure_rows
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.evaluate.tasks import TaskScore, ask, compute_scores, read_tasks
from chop.actions.job import Job, Output, run_job
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
"""Kinds of stages, by how long they take."""
OF_THE_FILE = ("_name_or_path", "transformers_version", "dtype")
"""Of a configuration, what changes no answer: weights tell their dtype."""


@dataclass(frozen=True)
class Asked:
    """Models, and what they are in the journal.

    Attributes:
        judged: the models.
        own: identity of the model.
        reference: identity of the float model; "" where there is none.
        tasks: by name, what lm-eval has loaded of each.
        tokenizer: identity of the tokenizer; "" without tasks.
    """

    judged: Judged
    own: str
    reference: str
    tasks: Mapping[str, Any]
    tokenizer: str


def evaluate(config: EvaluateConfig) -> Evaluation:
    """Judges a model on its rows, and by tasks of lm-eval where some are named.

    Writes into `config.out`: `answers.jsonl` (each row and each answer as it is there; run again,
    the job goes on from there), `table.md`, `result.json`, and beside a float model `kl.svg`, with
    tasks `tasks.svg`.

    Raises:
        ConfigError: settings, model, data and tasks do not go together.
        UnavailableError: a model, data or lm-eval are not there.
        CheckpointError: the run in the folder saved no model.
    """
    return run_job(EVALUATE, config)


def _load(config: EvaluateConfig, workload: Workload | None) -> Asked:
    tasks = read_tasks(config) if config.tasks else {}
    judged = load_judged(config)
    if config.tasks:
        _check_can_be_asked(config, judged)
    other = judged.reference
    reference = "" if other is None else get_identity(other)
    tokenizer = identity_of_tokenizer(judged.tokenizer) if config.tasks else ""
    return Asked(judged, get_identity(judged.model), reference, tasks, tokenizer)


def _check_can_be_asked(config: EvaluateConfig, judged: Judged) -> None:
    """Raises ConfigError where lm-eval cannot ask the model."""
    from transformers import PreTrainedModel

    task = judged.workload.task.name
    if not judged.is_language:
        raise ConfigError(
            f"tasks: lm-eval asks language models to continue texts, and '{config.model}' is one "
            f"for {task}: without --tasks it is judged on its rows."
        )
    if not isinstance(judged.model, PreTrainedModel):
        raise ConfigError(
            f"tasks: lm-eval asks models of transformers, and '{config.model}' is a "
            f"{type(judged.model).__name__}: without --tasks it is judged on its rows."
        )


def get_identity(model: nn.Module) -> str:
    """Text that is another where weights, modules, their settings or formats are."""
    parts = [
        f"{path} {type(module).__name__} {module.extra_repr()} "
        f"{module.spec if isinstance(module, QuantizedOperator) else ''}"
        for path, module in model.named_modules()
    ]
    return _digest(fingerprint_of_weights(model), _configuration(model), *parts)


def _configuration(model: nn.Module) -> str:
    """What weights alone do not say, such as the base of rotary positions; "" where it has none."""
    from transformers import PreTrainedConfig

    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        return ""
    found = json.loads(config.to_json_string())
    return str(sorted((name, x) for name, x in found.items() if name not in OF_THE_FILE))


def identity_of_tokenizer(tokenizer: Any) -> str:
    """Text that is another where the class or a token is."""
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
    announce(config.model, f"judging {', '.join([what, *config.tasks])}")
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
                kept = measure_rows(judged, rows, config.batch_size, journal, identity, advance)
                found = get_result(kept, workload.task)
            else:
                code = {"evaluate": fingerprint_of_code(judge.code), "model": asked.own}
                kept, found = [], judge_models(judged, judge, journal, code, asked.reference)
        scores = [
            score
            for task in config.tasks
            for score in _scores(task, config, asked, journal, stages)
        ]
    names = config.model, judged.reference_name, workload.dataset
    divergences = [apart for columns in kept for apart in columns.get("kl", ())]
    return build_report(Evaluation(*names, found, tuple(scores)), divergences, workload)


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
