"""Compression of a model in memory: each format rounds its graph, the smallest is trained back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from chop.actions.compress.card import write_model_card
from chop.actions.compress.measure import FLOAT, QUANTIZED, TRAINING, Measured, measure
from chop.actions.compress.ptq import (
    check_recipe,
    describe_skipped,
    method_title,
    quantize_after_training,
    quantize_layers,
)
from chop.actions.compress.report import with_saved
from chop.actions.compress.samples import check_samples, with_texts
from chop.actions.compress.saving import save_model
from chop.actions.compress.settings import CompressConfig
from chop.actions.compress.table import Candidate
from chop.actions.compress.verdict import list_points, write_verdict
from chop.actions.job import Output, load_with_validation
from chop.errors import ConfigError
from chop.formats import INPUT_OPERANDS, parse_format_string
from chop.formats.recipe import Recipe
from chop.ir.graph import MaseGraph
from chop.ir.huggingface.vision import check_has_vision, vision_modules
from chop.models.load import continues_texts
from chop.report.report import Report, announce, say
from chop.runs.progress import Stages
from chop.train.distillation.loss import check_same_outputs
from chop.train.distillation.teacher import Teacher
from chop.train.feed import Feed
from chop.train.rows import has_pictures_in_text
from chop.train.task import JUDGED
from chop.train.tasks import CAUSAL_LM
from chop.workloads.chance import check_scores, warn_about_large_drop
from chop.workloads.workload import Workload, raise_to_graph

BACKWARD, ROUNDED = 3, 1.5
"""Costs of training on a row, and of rounding in training, relative to evaluating the row."""
SAVED_SHARE = 0.5
"""Minimum share of the rounding loss that training must win back to recover a format."""


@dataclass(frozen=True)
class WholeModel:
    """Model with its rows, compressed in memory."""

    saves_all: ClassVar[bool] = False
    config: CompressConfig
    workload: Workload

    @classmethod
    def load(cls, config: CompressConfig, workload: Workload | None) -> Self:
        """Loads the model that settings name, or uses a workload of the caller."""
        loaded = load_with_validation(config, workload)
        is_judged = loaded.task.name == JUDGED  # a function judges, so that no task is known
        continues = loaded.task.name == CAUSAL_LM or (is_judged and continues_texts(loaded.model))
        return cls(config.with_operands(is_language_model=continues), loaded)

    @staticmethod
    def interruption_note(config: CompressConfig) -> str:
        """Returns the closing sentence of an interrupted run."""
        return (
            f"no results were saved in {config.out}/; results of an earlier run, if any, are "
            "unchanged. Run the same command to start again."
        )

    def measure(self) -> Measured:
        """Measures the float graph, the rounded ones, and those trained back."""
        config, workload = self.config, self.workload
        self._check()
        announce(workload.title, "capturing the model as a graph")
        mg = raise_to_graph(workload)
        recipe = self._recipe(mg)
        # Reports a wrong layer name before any evaluation.
        check_recipe(mg, config.operators, recipe)
        mixed = (
            quantize_layers(mg, config.layers, workload, config.calibration_rows)
            if config.layers
            else None
        )
        with Stages(*self._expected()) as stages:
            exact = measure(mg, FLOAT, FLOAT, workload, stages)
            scores = {"": exact.scores["test"]} if exact.is_judged else exact.scores
            check_scores(scores, workload, config)
            warn_about_large_drop(exact.scores["validation"], workload, config.max_drop)
            rounded = [self._round(mg, text, recipe, stages) for text in config.formats]
            if mixed is not None:
                rounded.append(measure(mixed, "PTQ", "mixed", workload, stages))
            trained = self._train_back(exact, rounded, stages)
        return Measured(exact, rounded, trained, self._why_untrained(exact, rounded, trained))

    def save(
        self, report: Report[dict[str, Any]], exact: Candidate, chosen: Candidate, output: Output
    ) -> Report[dict[str, Any]]:
        """Writes the checkpoint, the transformers folder, the ONNX file and the drawing."""
        config, workload = self.config, self.workload
        saved = save_model(exact, chosen, workload, config, output.results)
        write_model_card(output.results, saved.packed, exact, chosen, workload, config)
        report = with_saved(report, exact, saved, workload, config)
        if config.samples:
            report = with_texts(report, exact, chosen, workload, config)
        verdict = write_verdict(chosen, exact, report.result, workload)
        points = list_points(report.result, config)
        return replace(report, closing=[*report.closing, verdict, *points])

    def _check(self) -> None:
        """Raises ConfigError if settings ask for something that the task does not have."""
        epochs = self.config.qat_epochs
        if has_pictures_in_text(self.workload.train) and epochs != 0:
            raise ConfigError(
                "--qat-epochs: training on texts with images is not supported, since a graph "
                "takes one at a time; expected --qat-epochs 0."
            )
        check_samples(self.config, self.workload)
        if epochs and not self.workload.can_train(self.config):
            raise ConfigError(
                "--qat-epochs: training needs a loss, which --evaluate does not define. Add "
                "--loss file.py:fn, --task or --distill, or set --qat-epochs 0."
            )
        teacher, few = self.workload.teacher, self.workload.train.spread(3)
        if epochs and teacher is not None and self.config.distill_alpha != 0:
            feed = Feed(self.workload.model, few, len(few), self.workload.task)
            check_same_outputs(feed, Teacher.of(teacher))

    def _recipe(self, mg: MaseGraph) -> Recipe:
        """Returns the exceptions from each format; a vision tower without images stays float.

        Raises:
            ConfigError: if `skip_vision` is set for a model without a vision tower.
        """
        config, model = self.config, self.workload.model
        vision = vision_modules(model)
        if config.skip_vision:
            check_has_vision(model, "--skip-vision")
            say(f"--skip-vision: {', '.join(vision)} stay in float.")
        called = [f"{node.target}." for node in mg.nodes if node.op == "call_module"]
        reached = [path for path in vision if any(name.startswith(f"{path}.") for name in called)]
        if vision and not reached:
            say(f"The rows have no images: {', '.join(vision)} stay in float and unused.")
        if not config.skip_vision:
            return config.recipe
        return replace(config.recipe, skip=(*config.recipe.skip, *reached))

    def _expected(self) -> tuple[list[str], dict[str, float], int]:
        """Returns the kinds of stages, the cost of each in evaluated rows, and the number of steps.

        Training formats back is one step, since their number is not known before they are measured.
        """
        config, workload = self.config, self.workload
        formats = len(config.formats) + bool(config.layers)
        is_trained = config.qat_epochs != 0 and workload.can_train(config)
        trained = is_trained * (formats if config.qat == "all" else 1)
        kinds = [FLOAT, *[QUANTIZED] * formats, *[TRAINING, QUANTIZED] * trained]
        rows = (workload.validation, workload.test)
        evaluated = sum(len(split) for split in rows if split is not None)
        epochs = workload.tuning(config.qat_epochs, config.qat_lr, config)["epochs"]
        training = ROUNDED * BACKWARD * epochs * len(workload.train)
        costs = {FLOAT: evaluated, QUANTIZED: ROUNDED * evaluated, TRAINING: max(1, training)}
        return kinds, costs, 1 + formats + is_trained

    def _round(self, mg: MaseGraph, text: str, recipe: Recipe, stages: Stages) -> Candidate:
        config = self.config
        number_format = parse_format_string(text)
        # Rounding to nearest writes no weights, so candidates share those of the float graph.
        shares = not config.method
        skipped: dict[str, Mapping[str, str]] = {}
        quantized = quantize_after_training(
            mg.sharing_copy() if shares else mg,
            number_format,
            config.operators,
            self.workload,
            config.calibration_rows,
            config.method,
            inplace=shares,
            leaves_calls=config.has_default_operators,
            recipe=recipe,
            operands=config.operands or INPUT_OPERANDS,
            rotation=config.rotation or "group",
            on_skipped=skipped.__setitem__,
        )
        method = method_title(config.method)
        label = number_format.label + (", overrides" if config.overrides else "")
        skipped_note = describe_skipped(quantized, skipped)
        return measure(quantized, method, label, self.workload, stages, skipped_note=skipped_note)

    def _train_back(
        self, exact: Candidate, rounded: Sequence[Candidate], stages: Stages
    ) -> list[Candidate]:
        """Trains all formats, or the smallest beyond `max_drop` and the next if training fails.

        Formats larger than one that needs no training are skipped: they would not be saved.
        """
        config, workload = self.config, self.workload
        best, metric, trains_all = exact.row.validation, workload.task.metric, config.qat == "all"
        within = [metric.within(c.row.validation, best, config.max_drop) for c in rounded]
        saved = [c.row.bits for c, is_within in zip(rounded, within, strict=True) if is_within]
        most = min(saved, default=math.inf)
        lost = [
            candidate
            for candidate, is_within in zip(rounded, within, strict=True)
            if trains_all or (not is_within and candidate.row.bits <= most)
        ]
        lost.sort(key=lambda candidate: (candidate.row.bits, metric.key(candidate.row.validation)))
        training = workload.tuning(config.qat_epochs, config.qat_lr, config)
        if not lost or not training["epochs"]:
            stages.expect(())
            return []
        trained: list[Candidate] = []
        with stages.step():
            for number, candidate in enumerate(lost):
                remaining = len(lost) - number if trains_all else 1
                stages.expect([TRAINING, QUANTIZED] * remaining)
                graph, label = candidate.graph.copy(), candidate.row.format
                with stages.stage(TRAINING, f"training {label}") as advance:
                    workload.fit(graph.model, training, advance)
                trained.append(measure(graph, "QAT", label, workload, stages))
                won = metric.gain(trained[-1].row.validation, candidate.row.validation)
                lost_by_rounding = metric.gain(best, candidate.row.validation)
                if not trains_all and won > SAVED_SHARE * lost_by_rounding:
                    break
        return trained

    def _why_untrained(
        self, exact: Candidate, rounded: Sequence[Candidate], trained: Sequence[Candidate]
    ) -> str | None:
        """Returns the reason why no format was trained, or None if one was."""
        if trained:
            return None
        if self.config.qat_epochs == 0:
            return "No QAT: --qat-epochs is 0."
        if not self.workload.can_train(self.config):
            return (
                "No QAT: training needs a loss, which --evaluate does not define. Add --loss "
                "file.py:fn, --task or --distill."
            )
        where = "" if self.workload.judge else " on the validation rows"
        drop, metric = self.config.max_drop, self.workload.task.metric
        if not all(metric.within(c.row.validation, exact.row.validation, drop) for c in rounded):
            return (
                f"No QAT: a format is within --max-drop {drop:g} of float{where}, and those that "
                "lose more are larger. --qat all trains every format."
            )
        formats = "the format is" if len(rounded) == 1 else f"all {len(rounded)} formats are"
        return f"No QAT: {formats} within --max-drop {drop:g} of float{where}."
