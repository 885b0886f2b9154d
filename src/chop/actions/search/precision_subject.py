"""Subject of a precision search: model, rows and problem, each loaded once for all steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from chop.actions.search.precision_circuit import check_can_emit
from chop.actions.search.precision_rows import SearchRows, get_rows, goals_for
from chop.actions.search.settings import USUAL_BITS, PrecisionConfig
from chop.base.notices import assume
from chop.errors import ConfigError
from chop.problems.mixed_precision.problem import SCORES, PrecisionProblem
from chop.problems.mixed_precision.warm_start import SHARE, cached, uniforms_within, warm_start
from chop.search import Config, Constraint, Search
from chop.search.location import storage_file
from chop.train import CAUSAL_LM
from chop.workloads.chance import check_answers, check_judged
from chop.workloads.fingerprints import (
    fingerprint_of_code,
    fingerprint_of_rows,
    fingerprint_of_weights,
)
from chop.workloads.load import workload_for
from chop.workloads.workload import Training, Workload


class PrecisionSubject:
    """Model, rows and problem of a precision search, each created on first use.

    Args:
        config: settings of the search.
        workload: a trained model and rows of the caller. Default: loaded from `config`.
    """

    def __init__(self, config: PrecisionConfig, workload: Workload | None = None) -> None:
        self.config, self._workload = config, workload

    @cached_property
    def given(self) -> Workload:
        """The model and all its rows.

        Raises:
            ConfigError: if settings, model and data do not fit together.
            UnavailableError: if the model or the data set is missing.
        """
        return workload_for(self.config, self._workload)

    @cached_property
    def split(self) -> SearchRows:
        """Rows that measure trials, and a workload that does not train on them."""
        return get_rows(self.given, self.config.search_rows, self.config.epochs > 0)

    @property
    def workload(self) -> Workload:
        """Workload whose training rows exclude the rows of the search."""
        return self.split.workload

    @cached_property
    def settings(self) -> PrecisionConfig:
        """Settings with goals that the task supports."""
        return goals_for(self.config, self.workload)

    @cached_property
    def tuning(self) -> Training | None:
        """Record of the training of each trial; None if trials are not trained.

        Raises:
            ConfigError: if there is no loss to train by.
        """
        config, workload = self.settings, self.workload
        if config.epochs and not workload.can_train(config):
            raise ConfigError(
                "epochs: training needs a loss, which evaluate does not define. Add --loss "
                "file.py:fn, --task or --distill."
            )
        return workload.tuning(config.epochs, config.lr, config) if config.epochs else None

    @cached_property
    def problem(self) -> PrecisionProblem:
        """Space of formats with its measure."""
        config, workload = self.settings, self.workload
        # A pruner compares reported values in the direction of the objective.
        scores = (workload.task.metric.name, *SCORES)
        goal = next((score for score in scores if config.goals[0] == score), None)
        training = None
        if self.tuning is not None:
            training = workload.get_arguments(self.tuning) | {"device": workload.device}
        joined = workload.task.name == CAUSAL_LM if config.joined is None else config.joined
        return config.problem(workload, self.split.rows, goal, training, joined)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All inputs that determine a trial's values."""
        judge = self.workload.judge
        return {
            "weights": fingerprint_of_weights(self.workload.model),
            "train": fingerprint_of_rows(self.workload.train),
            "rows": fingerprint_of_rows(self.split.rows),
            "settings": self.config.identity(),
            **({} if judge is None else {"judge": fingerprint_of_code(judge.code)}),
            "training": self.tuning,
        }

    @cached_property
    def begin(self) -> Mapping[str, Config]:
        """Closed-form assignments by their labels in tables; measured once."""
        config, problem = self.settings, self.problem
        if not config.begins_warm:
            return {}
        steps = 3 * config.epochs * len(self.workload.train) / len(problem.evaluator)
        # Without a local storage folder, every worker would have to measure loss increases.
        is_here = storage_file(config.url) is not None
        evaluations = SHARE * config.trials * (1 + steps) if is_here else 0.0
        goals = config.all_goals()
        key = {**self.identity, "goals": [dataclasses.astuple(goal) for goal in goals]}
        return cached(
            config.folder / "no-search.json",
            key,
            lambda: warm_start(problem, self.workload.train, goals, evaluations),
        )

    @cached_property
    def search(self) -> Search:
        """The search over the formats, before its run.

        Raises:
            ConfigError: if settings do not fit the model.
            UnavailableError: if a tool for emitting circuits is missing.
        """
        config, workload = self.settings, self.workload
        if workload.judge is not None:
            check_judged(workload, config)
        problem, goals = self.problem, config.all_goals()
        problem.check_goals(goals)
        if config.emit:
            check_can_emit(config)
        begin = self.begin
        uniforms = uniforms_within(problem, goals) if config.begins_warm else {}
        if workload.judge is None:
            check_answers(problem.evaluator, problem.reference, workload, config)
        if config.budgets is None and Constraint("bits", USUAL_BITS) in goals:
            assume(
                f"The budget is bits={USUAL_BITS:g}, the default for one goal; --budgets sets "
                "another, as in --budgets bits=8."
            )
        return config.search(
            problem.space,
            problem.measure,
            goals,
            start=[*begin.values(), *uniforms.values()],
            save=lambda chosen, folder: problem.graph(chosen).export(folder / "model"),
            problem=self.identity,
        )
