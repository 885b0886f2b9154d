"""Hugging Face Trainer with fast, quiet and offline defaults."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from chop.base.files.temporary import scratch_prefix
from chop.config import Range, convert, with_checked_arguments
from chop.data import get_tokenizer, load_dataset, required_label_column
from chop.errors import ChopError, ConfigError, UnavailableError, did_you_mean, first_line
from chop.train.metrics import find_metric
from chop.train.model_io import LABELS, input_columns
from chop.train.rows import padding_token
from chop.train.tasks import IGNORED

if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import EvalPrediction, PreTrainedTokenizerBase, Trainer, TrainingArguments

    from chop.train.classification import Collator


@with_checked_arguments
def get_trainer(
    model: nn.Module,
    tokenized_dataset: DatasetDict,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    evaluate_metric: str | Sequence[str] = "accuracy",
    output_dir: str | Path | None = None,
    use_mps_device: bool = False,
    report_to: str | list[str] = "none",
    num_train_epochs: Annotated[float, Range(0)] = 1,
    *,
    train_batch_size: Annotated[int, Range(1)] = 8,
    eval_batch_size: Annotated[int, Range(1)] = 128,
    learning_rate: Annotated[float, Range(0)] = 5e-5,
    seed: Annotated[int, Range(0, 2**32 - 1)] = 42,
    **training_arguments: Any,
) -> Trainer:
    """Returns a `transformers.Trainer` of a classifier: `.train()`, `.evaluate()["eval_accuracy"]`.

    A script written for MASE trains to the same weights, because batch size, learning rate,
    schedule, seed and row order equal those of MASE's trainer, which are the defaults of
    `transformers.TrainingArguments`. Evaluation differs: batches are larger, metrics work offline,
    and checkpoints are written only on request. For texts of different lengths,
    `train_sampling_strategy="group_by_length"` is faster, with another row order. Models of a few
    million parameters need `learning_rate=3e-4`: one epoch at 5e-5 hardly changes them.

    Source of the defaults: `get_trainer` in `src/chop/tools/huggingface.py` of github.com/DeepWok/
    mase, and `transformers.TrainingArguments`.

    Args:
        model: a Hugging Face model, a plain module or a captured graph, see
            `chop.train.model_io`. Columns that its `forward` does not take are skipped.
        tokenized_dataset: splits `train` and `test`; token columns are padded per batch.
        tokenizer: tokenizer or its name, saved with checkpoints; provides the padding token.
        evaluate_metric: one or several of `chop.train.metrics.METRICS`.
        output_dir: folder for the latest epoch's checkpoint; default, no checkpoint.
        use_mps_device: trains on Apple's GPU; otherwise a CUDA GPU is used if present.
        report_to: logging target, `"none"`, `"tensorboard"` and so on.
        num_train_epochs: passes over `train`.
        train_batch_size: rows per training step on each device.
        eval_batch_size: rows per evaluation step.
        learning_rate: initial learning rate, which decays linearly to zero.
        seed: seed of the row order, of dropout and of the global generators.
        training_arguments: any further field of `transformers.TrainingArguments`.
    Raises:
        ConfigError: if a metric or argument is unknown, a split is missing or columns are wrong; in
            training, if labels are not classes, which `chop.train.fit` supports.
        UnavailableError: if `use_mps_device` is set without an Apple GPU.
    """
    if not isinstance(model, nn.Module):
        advice = "load a model by name with chop.models.load_model"
        if not isinstance(model, str):
            advice = "for a MaseGraph, pass mg.model"
        raise ConfigError(f"model: expected a module, got {type(model).__name__}; {advice}.")
    if output_dir is not None and Path(output_dir).is_file():
        raise ConfigError(f"output_dir: '{output_dir}' is a file, expected a folder.")
    asked = convert(evaluate_metric, str | Sequence[str], "evaluate_metric")
    names = [asked] if isinstance(asked, str) else list(asked)
    scores = {name: find_metric(name) for name in names}
    splits = load_dataset(tokenized_dataset)
    tokenizer = None if tokenizer is None else get_tokenizer(tokenizer)
    collator = _collator(model, splits["train"].column_names, tokenizer)
    settings = {
        **_fast_defaults(use_mps_device),
        "report_to": report_to,
        "num_train_epochs": num_train_epochs,
        "per_device_train_batch_size": train_batch_size,
        "per_device_eval_batch_size": eval_batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        **training_arguments,
    }
    from chop.train.classification import ClassificationTrainer

    try:
        trainer = ClassificationTrainer(
            model=model,
            args=_arguments(settings, output_dir),
            data_collator=collator,
            train_dataset=splits["train"],
            eval_dataset=splits["test"],
            processing_class=tokenizer,
            compute_metrics=lambda prediction: _scored(prediction, scores),
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        )
    except ChopError:
        raise
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise ConfigError(f"get_trainer: {first_line(error).rstrip('.')}.") from error
    if output_dir is None:
        weakref.finalize(trainer, shutil.rmtree, str(trainer.args.output_dir), ignore_errors=True)
    return trainer


def _scored(
    prediction: EvalPrediction, scores: Mapping[str, Callable[[Tensor, Tensor], float]]
) -> dict[str, float]:
    labels = torch.as_tensor(prediction.label_ids)
    counts = labels != IGNORED
    predicted, labels = torch.as_tensor(prediction.predictions)[counts], labels[counts]
    return {name: score(predicted, labels) for name, score in scores.items()}


def _collator(
    model: nn.Module, columns: list[str], tokenizer: PreTrainedTokenizerBase | None
) -> Collator:
    from chop.train.classification import Collator

    label = required_label_column(columns)
    inputs = input_columns(model, [*(name for name in columns if name != label), LABELS])
    named = None if tokenizer is None else tokenizer.pad_token_id
    fed = {name: label if column == LABELS else column for name, column in inputs.items()}
    return Collator(fed, label, padding_token(model) if named is None else named)


def _fast_defaults(use_mps_device: bool) -> dict[str, Any]:
    if use_mps_device and not torch.backends.mps.is_available():
        raise UnavailableError("use_mps_device: PyTorch finds no Apple GPU on this machine.")
    return {
        "use_cpu": not (use_mps_device or torch.cuda.is_available()),
        "logging_strategy": "epoch",
        "save_total_limit": 1,
        "label_names": [LABELS],
        # The collator picks the columns: the Trainer would drop those that feed `forward(x)`.
        "remove_unused_columns": False,
        # It only helps with a GPU, and warns without one.
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def _arguments(settings: dict[str, Any], output_dir: str | Path | None) -> TrainingArguments:
    from transformers import TrainingArguments

    known = {field.name for field in fields(TrainingArguments) if field.init}
    for name in settings.keys() - known:
        own = inspect.signature(get_trainer).parameters
        nearest = did_you_mean(name, (known | own.keys()) - {"training_arguments"})
        raise ConfigError(f"get_trainer: unknown argument '{name}': {nearest}")
    hints = get_type_hints(TrainingArguments)
    for name in settings:
        if set(get_args(hints[name]) or (hints[name],)) <= {bool, int, float, type(None)}:
            convert(settings[name], hints[name], f"get_trainer: {name}")
    settings.setdefault("save_strategy", "no" if output_dir is None else "epoch")
    folder = (
        tempfile.mkdtemp(prefix=scratch_prefix("trainer"))
        if output_dir is None
        else str(output_dir)
    )
    return TrainingArguments(output_dir=folder, **settings)
