"""Gradual pruning during training."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chop.config import convert, parse
from chop.errors import ConfigError, check_known
from chop.ir.graph import MaseGraph
from chop.nn.quantized.masks import SALIENCY
from chop.nn.sparsity import SCORES, ScoreInputs
from chop.passes.base import check_graph
from chop.private.modules import own_buffers
from chop.pruning.settings import PruneConfig, WeightPruning
from chop.pruning.unstructured import Target, count_masked, mask_lowest, take_targets

if TYPE_CHECKING:
    from transformers import TrainerCallback


def constant(done: float) -> float:
    """Returns the full sparsity at once."""
    return 1.0


def cubic(done: float) -> float:
    """Returns a sparsity that rises fast while redundant weights remain, and then slowly.

    The value is the fraction between initial and final sparsity after the share `done` of the
    pruning steps.

    Source: Zhu and Gupta 2017, arXiv:1710.01878, equation 1.
    """
    return 1.0 - (1.0 - done) ** 3


PRUNING_SCHEDULES = {"constant": constant, "cubic": cubic}


class GradualPruning:
    """Raises the sparsity of a graph's weights during training; masked weights stay masked.

    Use `fit(mg.model, data, on_step=GradualPruning(mg, config))`, or, with a Hugging Face Trainer,
    `trainer.add_callback(GradualPruning(mg, config).callback())`. At the end exactly the configured
    share is masked, per layer or, with scope `global`, over all layers.

    Weights that are already masked stay masked and count. The `state_dict` of the model holds the
    state of the schedule: the masks and, for gradient methods, a buffer `weight_saliency` per
    layer. To resume, create the same `GradualPruning` and load the state, or create it for a graph
    read from a checkpoint.

    Args:
        mg: graph; its layers become operators with masks, in place.
        config: settings of `prune_transform_pass`, with `weight` only and granularity
            `elementwise`. Gradient methods use the gradients of the training.
        schedule: `cubic` or `constant`.
        begin: share of all steps before pruning begins.
        end: share of all steps at which the full sparsity is reached.
        every: steps between two updates of the masks.

    Raises:
        ConfigError: if a setting is invalid or cannot be scheduled, or a gradient method meets a
            frozen weight.
        GraphError: if `mg` is not a graph.
    """

    def __init__(
        self,
        mg: MaseGraph,
        config: Mapping[str, Any] | PruneConfig,
        *,
        schedule: str = "cubic",
        begin: float = 0.0,
        end: float = 0.8,
        every: int = 10,
    ) -> None:
        check_graph("GradualPruning", mg)
        # Training brings the data that some methods look at.
        given = {"batches": (), **config} if isinstance(config, Mapping) else config
        settings = parse(PruneConfig, given, "GradualPruning")
        weight = _schedulable(settings)
        begin, end = convert(begin, float, "begin"), convert(end, float, "end")
        every = convert(every, int, "every")
        check_known(schedule, PRUNING_SCHEDULES, "unknown pruning schedule")
        if not 0 <= begin < end <= 1 or every < 1:
            raise ConfigError(
                "GradualPruning: expected 0 <= begin < end <= 1 and every >= 1, got "
                f"begin={begin}, end={end}, every={every}."
            )
        self.settings, self.schedule = weight, PRUNING_SCHEDULES[schedule]
        self.begin, self.end, self.every = begin, end, every
        self.targets, _ = take_targets(mg, settings, weight)
        self.looks_at_gradients = SCORES[weight.method].needs == "gradients"
        self._check_targets()
        for target in self.targets if self.looks_at_gradients else ():
            _saliency(target)
        self._reached = 0.0
        self._prune(0.0)

    def __call__(self, step: int, steps: int) -> None:
        """Updates the masks before optimizer step `step` of `steps`, counted from 1."""
        for target in self.targets if self.looks_at_gradients else ():
            if target.weight.grad is not None:
                saliency = _saliency(target)
                saliency += target.weight.detach() * target.weight.grad
        done = (step / steps - self.begin) / (self.end - self.begin)
        share = self.schedule(min(done, 1.0)) if done > 0 else 0.0
        if share > self._reached and (step % self.every == 0 or done >= 1):
            self._prune(share)
            self._reached = share

    def _prune(self, share: float) -> None:
        due = [
            dataclasses.replace(target, sparsity=target.sparsity * share) for target in self.targets
        ]
        # Each choice draws the same numbers, so that a run which is resumed makes the same ones.
        generator = torch.Generator().manual_seed(self.settings.seed)
        score_inputs = {
            target.path: ScoreInputs(
                generator, _saliency(target) if self.looks_at_gradients else None
            )
            for target in self.targets
        }
        mask_lowest(due, self.settings, score_inputs, includes_masked=True)

    def _check_targets(self) -> None:
        """Checks that all weights get gradients. Warns if too many weights are already masked."""
        frozen = [target.path for target in self.targets if not target.weight.requires_grad]
        if self.looks_at_gradients and frozen:
            raise ConfigError(
                f"GradualPruning: method '{self.settings.method}' needs gradients, and the "
                f"weight of '{frozen[0]}' is frozen; choose 'l1-norm', or exclude '{frozen[0]}'."
            )
        masked = sum(int(target.masked.sum()) for target in self.targets)
        due = sum(round(target.sparsity * target.weight.numel()) for target in self.targets)
        if masked > due:
            warnings.warn(
                f"GradualPruning: {masked} weights are masked already, and the settings ask for "
                f"{due}; they stay masked.",
                stacklevel=3,
            )

    def report(self) -> dict[str, Any]:
        """Returns the current masks as `sparsity`, `hidden`, `weights`, and `layers` by path."""
        return count_masked(self.targets)

    def callback(self) -> TrainerCallback:
        """Returns a callback for a `transformers.Trainer` of the graph's model."""
        from transformers import TrainerCallback

        pruning = self

        class PruningCallback(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(
                self, args: Any, state: Any, control: Any, **kwargs: Any
            ) -> None:
                pruning(state.global_step + 1, state.max_steps)

        return PruningCallback()


def _saliency(target: Target) -> Tensor:
    """Returns the buffer with the sum of weight * gradient, initialized to zeros."""
    module = target.modules[0]
    if own_buffers(module).get(SALIENCY) is None:
        module.register_buffer(SALIENCY, torch.zeros_like(target.weight.detach()))
    saliency: Tensor = module.get_buffer(SALIENCY)
    return saliency


def _schedulable(settings: PruneConfig) -> WeightPruning:
    """Returns the weight settings after checking that sparsity can rise step by step."""
    weight = settings.weight
    if weight is None or settings.activation is not None:
        raise ConfigError("GradualPruning: expected 'weight' and no 'activation'.")
    if weight.granularity != "elementwise":
        reason = f"expected granularity 'elementwise', got '{weight.granularity}'"
    elif SCORES[weight.method].needs == "inputs":
        reason = f"method '{weight.method}' needs layer inputs, which are not available in training"
    else:
        return weight
    raise ConfigError(f"GradualPruning: {reason}; prune at once with prune_transform_pass.")
