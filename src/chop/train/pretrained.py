"""Trained built-in models, trained on first use within seconds and cached for the user."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from chop.base.files import atomic_file, build_lock
from chop.base.hub import cache_folder
from chop.config import with_checked_arguments
from chop.data import TEXT_DATASETS, get_tokenized_dataset, load_dataset
from chop.data.builtin_names import PREFIX, plain_name
from chop.errors import ConfigError, check_known, did_you_mean
from chop.models import BUILTIN_MODELS, load_model
from chop.train.rows import read_rows, split_rows
from chop.train.tasks import TASKS
from chop.train.train_loop import fit

if TYPE_CHECKING:
    from datasets import DatasetDict
    from torch import nn


@with_checked_arguments
def load_trained(
    name: str, *, seed: int = 0, progress: bool = False, held_out: float = 0.0
) -> nn.Module:
    """Returns a built-in model in evaluation mode on the CPU, trained with its recipe.

    The weights are cached as safetensors in `chop.base.hub.cache_folder()`, keyed by model, data
    set, recipe, seed and held-out share. An unreadable file is replaced by training again.

    Args:
        name: `mlp`, `cnn`, `vit`, `bert-tiny` or `gpt-tiny`.
        seed: seed of the initial weights and of training.
        progress: shows a progress bar.
        held_out: share of the training rows excluded from training: the second part of
            `split_rows(rows, held_out)`.
    Raises:
        ConfigError: if the name is not a built-in model.
    """
    name = plain_name(name)
    if name not in BUILTIN_MODELS:
        raise ConfigError(
            f"no built-in model '{name}' to train: {did_you_mean(name, BUILTIN_MODELS)}"
        )
    model = load_model(f"{PREFIX}{name}", seed=seed)
    path = _weights_path(name, model, seed, held_out)
    if not _read_into(model, path):
        with build_lock(path):  # another process may be training the same
            model = load_model(f"{PREFIX}{name}", seed=seed)
            if not _read_into(model, path):
                model = _trained(name, seed, progress, held_out)
                _write(model, path)
    return model.eval()


def _trained(name: str, seed: int, progress: bool, held_out: float) -> nn.Module:
    model = load_model(f"{PREFIX}{name}", seed=seed)
    builtin = BUILTIN_MODELS[name]
    label = f"training {name} on {builtin.dataset}" if progress else None
    rows = read_rows(default_dataset(name)["train"], TASKS[builtin.task])
    recipe = asdict(builtin.recipe)
    if held_out:
        rows, _ = split_rows(rows, held_out)
        # As many steps as on all rows: a model that has learned less is not a fair baseline.
        recipe["epochs"] = round(recipe["epochs"] / (1 - held_out))
    fit(model, rows, seed=seed, progress=label, task=builtin.task, **recipe)
    return model


@with_checked_arguments
def default_dataset(
    name: str, *, limit: int | None = None, max_length: int | None = None
) -> DatasetDict:
    """Returns the data set of a built-in model, ready for training, with texts tokenized.

    Args:
        name: a built-in model.
        limit: maximum number of rows per split.
        max_length: maximum number of tokens per text.
    """
    name = plain_name(name)
    check_known(name, BUILTIN_MODELS, "unknown built-in model")
    dataset = BUILTIN_MODELS[name].dataset
    source = f"{PREFIX}{dataset}"
    if dataset in TEXT_DATASETS:
        return get_tokenized_dataset(source, checkpoint=source, limit=limit, max_length=max_length)
    return load_dataset(source, limit=limit)


def _weights_path(name: str, model: nn.Module, seed: int, held_out: float) -> Path:
    builtin = BUILTIN_MODELS[name]
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    known = [name, builtin.dataset, asdict(builtin.recipe), seed, shapes]
    key = json.dumps([*known, held_out] if held_out else known)
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return cache_folder() / "trained" / f"{name}-{builtin.dataset}-seed{seed}-{digest}.safetensors"


def _read_into(model: nn.Module, path: Path) -> bool:
    """Loads weights into a model. Returns false if the file is missing, truncated or foreign.

    If it returns false for an existing file, some weights may be overwritten and the model is
    invalid.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model as read_model

    try:
        read_model(model, path)
    except (FileNotFoundError, SafetensorError, RuntimeError):
        return False
    return True


def _write(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_model

    with atomic_file(path) as temporary:
        save_model(model, str(temporary))  # tied weights once
