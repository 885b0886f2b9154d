"""Mixed-precision problem: the format of each layer of a trained model.

Only formats are searched. Fractions and exponent biases are derived from training rows, once for
each layer, operand and format. A trial switches formats in place, rounds only weights that have not
been rounded in that format before, and runs the model on prepared batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, check_known, did_you_mean
from chop.export.joined_layers import joined_layers
from chop.formats import INPUT_OPERANDS, NumberFormat, parse_format_string
from chop.ir.graph import MaseGraph
from chop.nn import cached_weights
from chop.problems.mixed_precision.candidates import Ranges, Rule, format_candidates
from chop.problems.mixed_precision.costs import COSTS, Costs, bit_width
from chop.problems.mixed_precision.layers import FLOAT, Formats, Layers
from chop.search.objective import Goals, NotANumberError, Report
from chop.search.space import Choice, Config, SearchSpace
from chop.train import Task, calibration_batches, find_task, fit_and_report, read_rows
from chop.train.distillation.settings import with_teacher
from chop.train.evaluator import Evaluator, kl_divergence
from chop.train.judge import Judge
from chop.train.rows import take_split
from chop.train.tasks import JUDGED_TASK

if TYPE_CHECKING:
    from chop.problems.mixed_precision.circuit import CircuitCosts, CircuitSettings

Cost = Callable[[MaseGraph], float]
"""Custom metric of a quantized graph, such as latency or chip area."""

Targets = dict[str, tuple[str, tuple[str, ...]]]
PER = ("layer", "operand")
Score = str
"""Name of the task metric, "loss" or "kl"."""
METRIC = "metric"
"""Placeholder for the name of the task metric."""
SCORES = ("loss", "kl")
"""Scores in addition to the task metric; kl only for classes."""
MEMORY_BYTES = 2**31
"""Memory limit of the cache of rounded weights."""
REPORTS = 4
"""Number of progress reports of a trial with enough batches."""
SECOND_FORMAT = "8.mse"
FOLD = "fold"
"""Choice of the circuit's fold, if there are several."""
CUSTOM_METRICS = {
    "hardware_cost": "hardware cost of the graph",
    "latency_ms": "a measured time: chop.problems.mixed_precision.latency.packed_latency(batch)",
}
"""Metrics that require a user's function -> their meaning."""


class PrecisionProblem:
    """Search problem over the formats of a model's layers.

    Args:
        mg: graph of a trained classifier with metadata. It is not modified.
        train: rows for calibration.
        rows: labeled rows on which configurations are measured.
        formats: candidates: formats, format strings, or names that stand for a whole
            `search_space`; see `chop.problems.mixed_precision.candidates.format_candidates`.
        ranges: values of format fields that replace those of the `search_space`.
        operators: names of the operators to quantize. None selects all modules with a weight
            matrix.
        operands: operands in the chosen formats.
        per: one choice for each "layer", or for each "operand" of it. A weight shared by several
            layers belongs to the choice of the first.
        joined: lets layers that inference engines fuse, such as q_proj, k_proj and v_proj of an
            attention (see `chop.export.joined_layers`), share a choice with the name of the first.
        bias: format of the biases, which are few and need more bits than weights.
        rule: calibration rule of scales.
        calibration_rows: number of calibration rows from `train`.
        batch_size: rows per step. None selects a fast size.
        goal: score reported during a trial for pruners: "metric" for the task metric, "loss" or
            "kl". None reports nothing.
        custom_metrics: name -> function of the quantized graph. The functions run in each trial, on
            a copy.
        task: task of the model. None infers it from the labels.
        training: arguments of `chop.train.fit` including `batch_size`. Each configuration is
            trained on `train`, from the same weights, before it is measured. The default teacher of
            `distill` is the model of `mg`. None measures the rounded model without training.
        evaluate: function of the model, or `chop.train.Judge`, that replaces the scores on `rows`.
            Its name is the name of the number.
        circuit: target of a circuit whose costs are measured as well. All operators then have
            formats; those without a choice use `circuit.others`.
    Raises:
        ConfigError: if a name or field is unknown, or there is nothing to choose.

    Attributes:
        space: one choice for each layer or operand, `fc1` or `fc1.weight`. Its costs add up to
            `bits`.
        targets: choice -> its layer and the operands in its format.
        layers: switchable layers of the graph.
        folds: text -> fold option of the circuit. Empty without a circuit.
    """

    def __init__(
        self,
        mg: MaseGraph,
        train: Any,
        rows: Any,
        *,
        formats: Sequence[str | NumberFormat] = ("integer",),
        ranges: Ranges | None = None,
        operators: Sequence[str] | None = None,
        operands: Sequence[str] = ("data_in", "weight"),
        per: Literal["layer", "operand"] = "layer",
        joined: bool = False,
        bias: str | NumberFormat = SECOND_FORMAT,
        rule: Rule = "mse",
        calibration_rows: int = 256,
        batch_size: int | None = None,
        goal: Score | None = METRIC,
        custom_metrics: Mapping[str, Cost] | None = None,
        task: str | Task | None = None,
        training: Mapping[str, Any] | None = None,
        circuit: CircuitSettings | None = None,
        evaluate: Judge | Callable[[nn.Module], Any] | None = None,
    ) -> None:
        for operand in operands:
            check_known(operand, INPUT_OPERANDS, "operands: unknown")
        check_known(per, PER, "per: got")
        self.options = format_candidates(formats, ranges, rule)
        self.judge: Judge | None = None
        if evaluate is not None:
            self.judge = evaluate if isinstance(evaluate, Judge) else Judge.of(evaluate)
            own = JUDGED_TASK if task is None else find_task(task)
            task = dataclasses.replace(own, metric=self.judge.metric)
        asked = None if task is None else find_task(task)
        table = read_rows(take_split(train, "train"), asked)
        self._train_rows = table
        self.training = None if training is None else with_teacher(training, mg.model)
        self._trained: tuple[Config, MaseGraph] | None = None
        batches = list(calibration_batches(mg.model, table, rows=calibration_rows))
        self.layers = Layers(mg, batches, operators, rule, is_whole=circuit is not None)
        self.costs = Costs(self.layers)
        self.bias = parse_format_string(bias) if isinstance(bias, str) else bias
        self.custom_metrics = dict(custom_metrics or {})
        groups = joined_layers(self.layers.searched) if joined else []
        self._joined = {first: others for first, *others in groups}
        self.targets = self._find_targets(operands, per)
        self._others = FLOAT if circuit is None else parse_format_string(circuit.others)
        self._fixed = self._find_fixed()
        self.circuit, self.folds, self._base = self._circuit(circuit, batches)
        choices = [self._choice(name) for name in self.targets]
        if len(self.folds) > 1:
            choices.append(Choice(FOLD, self.folds))
        self.space = SearchSpace(tuple(choices))
        self._keep_weights()
        self.evaluator = Evaluator(self.layers.mg.model, rows, batch_size=batch_size, task=task)
        self.goal = self.scores[0] if goal == METRIC else goal
        if self.goal is not None and self.goal not in self.scores:
            raise ConfigError(f"goal: got '{goal}': {did_you_mean(goal, self.scores)}")
        self.layers.switch({})
        # A judge needs no answers, whose shapes may not be comparable.
        self.reference = self.evaluator.logits() if self.judge is None else torch.empty(0)

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores measured on answers."""
        task = self.evaluator.task
        if self.judge is not None:
            return (task.metric.name,)
        return (task.metric.name, *SCORES) if task.is_categorical else (task.metric.name, "loss")

    def _find_targets(self, operands: Sequence[str], per: str) -> Targets:
        targets: Targets = {}
        joined = {x for others in self._joined.values() for x in others}
        for name in self.layers.searched:
            own = () if name in joined else self._own_operands(name, operands)
            if per == "operand":
                targets |= {f"{name}.{operand}": (name, (operand,)) for operand in own}
            elif own:
                targets[name] = (name, own)
        if not targets:
            raise ConfigError(f"operands: no layer has {' or '.join(operands)}.")
        return targets

    def _own_operands(self, layer: str, operands: Sequence[str]) -> tuple[str, ...]:
        """Returns the operands of a layer with their own format."""
        shared = {(x, "weight") for others in self.layers.sharing.values() for x in others}
        own = self.layers.by_name[layer].operands
        return tuple(x for x in own if x in operands and (layer, x) not in shared)

    def _choice(self, name: str) -> Choice:
        layer, operands = self.targets[name]
        first = next(n for n, (target, _) in self.targets.items() if target == layer)
        # The first choice of a layer carries the cost of operands without a choice.
        fixed = sum(
            self.costs.share(member, operand, fmt)
            for member in (layer, *self._joined.get(layer, ()))
            for operand, fmt in self._fixed[member].items()
            if name == first
        )
        cost = {
            text: fixed
            + sum(
                self.costs.share(member, operand, fmt)
                for member, own in self._members(layer, operands).items()
                for operand in own
            )
            for text, fmt in self.options.items()
        }
        return Choice(name, self.options, cost)

    def _find_fixed(self) -> dict[str, Formats]:
        """Returns layer -> formats of the operands without a choice."""
        chosen = {
            (member, operand)
            for layer, operands in self.targets.values()
            for member, own in self._members(layer, operands).items()
            for operand in own
        }
        return {
            name: {
                operand: self.bias
                if operand == "bias" and name in self.layers.searched
                else self._others
                for operand in layer.operands
                if (name, operand) not in chosen
            }
            for name, layer in self.layers.by_name.items()
        }

    def _keep_weights(self) -> None:
        model = self.layers.mg.model
        size = sum(parameter.nbytes for parameter in model.parameters())
        count = max(1, min(len(self.options) + 1, MEMORY_BYTES // max(size, 1)))
        self._contexts = contextlib.ExitStack()  # closed with the problem
        self._contexts.enter_context(cached_weights(model, formats=count))

    def formats(self, config: Config) -> dict[str, Formats]:
        """Returns the formats of each layer by operand, without calibrated scales."""
        self.space.check(config)
        return self._formats(config)

    def _formats(self, config: Config) -> dict[str, Formats]:
        formats: dict[str, Formats] = dict(self._fixed)
        for name in filter(config.__contains__, self.targets):
            for layer, operands in self.rounded(name).items():
                chosen = dict.fromkeys(operands, self.options[config[name]])
                formats[layer] = {**formats[layer], **chosen}
        return formats

    def rounded(self, name: str) -> dict[str, tuple[str, ...]]:
        """Returns layer -> operands that use the format of a choice."""
        members = self._members(*self.targets[name])
        for layer, operands in [*members.items()]:
            others = self.layers.sharing.get(layer, ()) if "weight" in operands else ()
            members |= {x: (*members.get(x, ()), "weight") for x in others}
        return members

    def _members(self, layer: str, operands: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the operands of a layer and of the layers joined to it."""
        members = (layer, *self._joined.get(layer, ()))
        return {member: self._own_operands(member, operands) for member in members}

    def only(self, name: str, text: str) -> dict[str, Formats]:
        """Returns formats that quantize one choice and leave the rest float."""
        option = self.options[text]
        return {x: dict.fromkeys(operands, option) for x, operands in self.rounded(name).items()}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of a choice and an option."""
        return [(name, text) for name in self.targets for text in self.options]

    def bits(self, name: str, text: str) -> float:
        """Returns the bits per element of a choice's weight, or of its other operands."""
        layer, operands = self.targets[name]
        weight = self.layers.by_name[layer].parameters().get("weight")
        if weight is not None and "weight" in operands:
            return bit_width(self.options[text], weight.shape)
        shapes = [shape for _, shape in self.layers.by_name[layer].inputs.values()]
        return bit_width(self.options[text], shapes[0] if shapes else torch.Size())

    def _circuit(
        self, settings: CircuitSettings | None, batches: Sequence[Mapping[str, Any]]
    ) -> tuple[CircuitCosts | None, dict[str, int], Config]:
        """Returns circuit costs, fold options, and the configuration of fewest bits.

        The fold of the fewest parts is first.

        Raises:
            ConfigError: if no formats have a circuit.
        """
        if settings is None:
            return None, {}, dict.fromkeys(self.targets, next(iter(self.options)))
        # Imported lazily: only circuits need it.
        from chop.problems.mixed_precision.circuit import CircuitCosts, begin

        costs = CircuitCosts(self.layers, batches, settings)
        folds, base = begin(costs, self.targets, tuple(self.options), self._formats)
        return costs, {str(fold): fold for fold in reversed(folds)}, base

    def compute_costs(self, config: Config) -> dict[str, float]:
        """Returns the costs among `chop.problems.mixed_precision.costs.COSTS` of a configuration.

        Circuit costs are included if the problem has a circuit.

        Raises:
            NotANumberError: if the configuration has no circuit.
        """
        formats = self.formats(config)
        return self.costs(formats) | self._circuit_costs(formats, config)

    def _circuit_costs(self, formats: Mapping[str, Formats], config: Config) -> dict[str, float]:
        if self.circuit is None:
            return {}
        return self.circuit(formats, self.max_fold(config))

    def max_fold(self, config: Config) -> int:
        """Returns the maximum number of cycles per sample of a circuit component."""
        return self.folds[config.get(FOLD, next(iter(self.folds)))]

    def uniform(self, text: str, fold: str | None = None) -> Config:
        """Returns the configuration with the same option for all choices.

        Args:
            text: text of the option.
            fold: key of `folds`. None uses the one with the fewest parts.
        Raises:
            ConfigError: if there is no such option.
        """
        return self._at_fold(dict.fromkeys(self.targets, text), fold)

    def base(self, fold: str | None = None) -> Config:
        """Returns the configuration with the option of fewest bits for all choices.

        With a circuit, it has the fewest bits among those that have one.
        """
        return self._at_fold(self._base, fold)

    def _at_fold(self, mix: Config, fold: str | None) -> Config:
        config = dict(mix)
        if FOLD in self.space.by_name:
            config[FOLD] = next(iter(self.folds)) if fold is None else fold
        self.space.check(config)
        return config

    def graph(self, config: Config, report: Report | None = None) -> MaseGraph:
        """Returns the quantized graph of a configuration with scales and metadata.

        It is trained if the problem has `training`. The latest trained graph is cached.
        """
        if self.training is None:
            return self.layers.graph(self.formats(config))
        if self._trained is None or self._trained[0] != config:
            mg = self.layers.graph(self.formats(config))

            def value() -> float:
                return self._numbers(mg.model)[self.goal or METRIC]

            reporter = report if self.goal is not None else None
            training = {**self.training, "task": self.evaluator.task}
            fit_and_report(mg.model, self._train_rows, training, reporter, value)
            self._trained = dict(config), mg
        return self._trained[1]

    def model(self, config: Config | None, report: Report | None = None) -> nn.Module:
        """Returns the model of a configuration; None gives the float model.

        Without `training`, all calls return the same module, which the next call switches.
        """
        if config is not None and self.training is not None:
            return self.graph(config, report).model
        self.layers.switch({} if config is None else self.formats(config))
        return self.layers.mg.model

    def pass_args(self, config: Config) -> dict[str, Any]:
        """Returns the settings of `quantize_transform_pass` for the same graph, with scales.

        Raises:
            ConfigError: if a layer consists of several operators with separate scales.
        """
        return {"by": "name", **self.layers.rules(self.formats(config))}

    def measure(self, config: Config, report: Report) -> dict[str, float]:
        """Measures the scores and costs of a configuration.

        Returns: the task metric by its name (`accuracy`), `loss` (mean cross entropy in nats for
            classes), `kl` for classes (mean divergence from the float model's answers in nats),
            the costs of `chop.problems.mixed_precision.costs.Costs`, and each custom metric.
        """
        costs = self.compute_costs(config)  # raises before the run if there is no circuit
        model = self.model(config, report)
        on_batch = None if self.training else self._reporter(report)
        numbers = self._numbers(model, on_batch) | costs
        if self.custom_metrics:
            mg = self.graph(config)
            numbers |= {name: float(metric(mg)) for name, metric in self.custom_metrics.items()}
        return numbers

    def score(self, formats: Mapping[str, Formats]) -> dict[str, float]:
        """Returns metric, loss and divergence of the model in these formats."""
        self.layers.switch(formats)
        return self._numbers(self.layers.mg.model)

    def _numbers(
        self, model: nn.Module, on_batch: Callable[[list[Tensor]], None] | None = None
    ) -> dict[str, float]:
        """Returns the scores of a model from its answers or from the judge.

        Raises:
            NotANumberError: if the judge fails on the model, which fails only its trial.
        """
        if self.judge is None:
            return self._scores(self.evaluator.of(model).logits(on_batch))
        metric = self.evaluator.task.metric
        try:
            rows, _ = self.judge.rows(model)
        except ConfigError as error:
            raise NotANumberError(str(error)) from error
        return {metric.name: metric.score(rows, rows)}

    def _scores(self, logits: Tensor) -> dict[str, float]:
        """Returns the scores of the answers so far, compared with the first rows."""
        scores = self.evaluator.scores(logits)
        if self.evaluator.task.is_categorical:
            scores["kl"] = kl_divergence(self.reference[: len(logits)], logits)
        return scores

    def _reporter(self, report: Report | None) -> Callable[[list[Tensor]], None] | None:
        """Returns a callback that reports the score so far a few times in long trials."""
        goal = self.goal
        if report is None or goal is None:
            return None
        steps = len(self.evaluator.batches)
        due = {steps * part // (REPORTS + 1) for part in range(1, REPORTS + 1)}

        def on_batch(answers: list[Tensor]) -> None:
            if steps > 2 * REPORTS and len(answers) in due:
                report(len(answers), self._scores(torch.cat(answers))[goal])

        return on_batch

    def check_goals(self, goals: Goals) -> None:
        """Raises ConfigError if a goal is not measured."""
        circuit_names = [name for name, cost in COSTS.items() if cost.is_of_circuit]
        known = (*self.scores, *COSTS, *self.custom_metrics)
        for goal in goals:
            if goal.name in circuit_names and self.circuit is None:
                raise ConfigError(
                    f"goal '{goal.name}': expected the target of a circuit: "
                    "circuit=chop.problems.mixed_precision.circuit.CircuitSettings()."
                )
            if goal.name in known:
                continue
            if goal.name in CUSTOM_METRICS:
                raise ConfigError(
                    f"goal '{goal.name}': expected a function of the quantized graph that gives "
                    f"{CUSTOM_METRICS[goal.name]}: custom_metrics={{'{goal.name}': function}}."
                )
            raise ConfigError(f"goal '{goal.name}': {did_you_mean(goal.name, known)}")
