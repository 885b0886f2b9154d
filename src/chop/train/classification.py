"""Trainer subclass behind `get_trainer`. Importing it imports transformers.

Shapes: B rows, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from chop.errors import ConfigError, first_line
from chop.kernels.matmul_precision import matmul_precision
from chop.nn import cached_weights
from chop.nn.quantized.state import SCALE_NAMES
from chop.train.model_io import LABELS, loss_and_logits
from chop.train.rows import pad
from chop.train.tasks import IGNORED, LEAVE_OUT
from chop.train.token_ids import check_token_ids


@dataclass(frozen=True)
class Collator:
    """Collator that builds batches of model inputs and class `labels`.

    Attributes:
        columns: model parameter to data set column.
        label: name of the label column.
        pad_id: padding token ID.
    """

    columns: dict[str, str]
    label: str
    pad_id: int

    def __call__(self, items: list[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Stacks rows and pads them to the longest one."""
        batch = {
            parameter: pad(
                parameter, [torch.as_tensor(item[column]) for item in items], self.pad_id
            )
            for parameter, column in self.columns.items()
        }
        return {**batch, LABELS: torch.tensor([_get_class(item[self.label]) for item in items])}


def _get_class(label: Any) -> int:
    """Checks that a label is a single non-negative whole number."""
    if np.ndim(label) > 0 or int(label) != label:
        given = f"labels of shape {np.shape(label)}" if np.ndim(label) else f"the label {label}"
        raise ConfigError(
            f"get_trainer trains classifiers, got {given}; use chop.train.fit for other tasks."
        )
    if label < 0 and label != IGNORED:
        raise ConfigError(f"get_trainer: got the label {int(label)}; {LEAVE_OUT}")
    return int(label)


class ClassificationTrainer(Trainer):  # type: ignore[misc]
    """Trainer that also accepts models without `labels` or with plain logits as output."""

    # The loss below is the mean of one batch.
    loss_is_scaled_for_ga = False

    data_collator: Collator
    model: nn.Module

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss, and with `return_outputs` also `{"loss": scalar, "logits": (B, C)}`."""
        labels = inputs[LABELS]
        fed = {name: inputs[name] for name in self.data_collator.columns}
        try:
            output = model(**fed)
        except (IndexError, RuntimeError):
            check_token_ids(model, {name: x for name, x in fed.items() if name != LABELS})
            raise
        loss, logits = loss_and_logits(output, labels)
        smoothing = self.args.label_smoothing_factor
        if smoothing and model.training:
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    @contextmanager
    def compute_loss_context_manager(self) -> Iterator[None]:
        """Context of `compute_loss`, with a sentence for an index that the model does not have."""
        try:
            with super().compute_loss_context_manager():
                yield
        except IndexError as error:
            raise ConfigError(
                f"get_trainer: the model rejects the rows ({first_line(error).rstrip('.')}). "
                "Labels must be less than the number of its classes, and token IDs less than its "
                "vocabulary: tokenize with the tokenizer of this model."
            ) from error

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Returns the names of decayed parameters, without learned scales of operators."""
        names = super().get_decay_parameter_names(model)
        return [name for name in names if not name.endswith(tuple(SCALE_NAMES.values()))]

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluates with float32 products at full precision and weights quantized once."""
        with matmul_precision("highest"), cached_weights(self.model):
            return super().evaluation_loop(*args, **kwargs)
