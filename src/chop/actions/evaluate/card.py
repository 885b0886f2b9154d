"""Results of an evaluation in the model card of the evaluated folder."""

from __future__ import annotations

from pathlib import Path

from chop.actions.evaluate.models import find_run
from chop.actions.evaluate.results import NO_FILTER, Evaluation
from chop.actions.evaluate.rows import Measured
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.evaluate.tasks import TaskScore
from chop.errors import ConfigError
from chop.ir.huggingface.card import FILE, card_rows, extend_table, is_own
from chop.statistics.intervals import LEVEL_TEXT
from chop.train.intervals import format_interval
from chop.train.metric import Metric
from chop.train.tasks import CLASSIFICATION
from chop.workloads.hf_folder import FOLDER
from chop.workloads.workload import Workload

DIVERGENCE = "divergence from the float model"
SAME = "same answers as the float model"


def find_card(config: EvaluateConfig) -> Path:
    """Returns the card of the evaluated folder.

    Raises:
        ConfigError: if the folder has no card, or one that somebody edited.
    """
    run = find_run(config.model)
    folder = Path(config.model).expanduser() if run is None else run.folder / FOLDER
    card = folder / FILE
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"card: only folders of Hugging Face models have a model card, and '{folder}' is none; "
            "leave out --card."
        )
    if not is_own(card) or not card_rows(card):
        raise ConfigError(
            f"card: expected a model card that chop wrote, but '{card}' was edited or is missing. "
            "To get a new one, delete it and save the model again, or leave out --card."
        )
    return card


def add_results(card: Path, evaluation: Evaluation, workload: Workload) -> None:
    """Adds the measured numbers to the table of a card.

    Args:
        card: see `find_card`.
        evaluation: the results.
        workload: data and task of the rows.
    """
    rows, metric = evaluation.rows, workload.task.metric
    where = f"{workload.count_test(rows.rows)} of {workload.dataset}"

    def formatted(measured: Measured, metric: Metric) -> str:
        return f"{metric.format_value(measured.value)}{format_interval(measured.interval, metric)}"

    table = {metric.title: f"{formatted(rows.own, metric)} on {where}"}
    if rows.reference is not None:
        table[metric.title] += f"; float {formatted(rows.reference, metric)}"
    if rows.kl is not None and rows.same is not None:
        ends = rows.kl.interval
        text = "" if ends is None else f" ({LEVEL_TEXT} interval {ends[0]:.3g} to {ends[1]:.3g})"
        mean = f"mean over {rows.answers:,} answers on {where}"
        table[DIVERGENCE] = f"KL divergence {rows.kl.value:.4g} nats{text}, {mean}"
        table[SAME] = formatted(rows.same, CLASSIFICATION.metric)
    for score in evaluation.tasks:
        # Tasks can have a metric several times, each on other parts of the answers.
        which = "" if score.filter == NO_FILTER else f" ({score.filter})"
        table[f"lm-eval {score.task}, {score.metric}{which}"] = _format_score(score)
    extend_table(card, table)


def _format_score(score: TaskScore) -> str:
    """Returns the metric of a task, that of the float model, and the number of questions."""
    numbers = {"": (score.own, score.stderr), "; float ": (score.reference, score.reference_stderr)}
    text = "".join(
        f"{name}{value:.4g}" + ("" if error is None else f" ± {error:.2g}")
        for name, (value, error) in numbers.items()
        if value is not None
    )
    return text if score.questions is None else f"{text}; {score.questions:,} questions"
