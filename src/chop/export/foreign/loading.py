"""Loader that builds packed models from the content of other tools' files.

Codes and scales are written as a chop folder, which transformers loads.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.base.files import write_json, writing
from chop.base.files.library_errors import library_errors
from chop.base.files.temporary import scratch_folder
from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.reader import Read, Reader, only_floats
from chop.export.foreign.stored_experts import join_experts
from chop.export.foreign.weight_files import WHOLE
from chop.ir.huggingface.architecture import named_class
from chop.ir.huggingface.config_file import CONFIG, check_config, without_fetched_code
from chop.ir.huggingface.generation_file import read_generation_config
from chop.ir.huggingface.misfits import other_shape
from chop.ir.huggingface.unread import Unread
from chop.ir.ops import get_module_row
from chop.private.transformers_api import without_load_report

log = logging.getLogger(__name__)


def load(
    reader: Reader, path: Path, choose: Callable[[Any], Any] | None = None, **settings: Any
) -> nn.Module:
    """Loads a folder or file as a packed model in evaluation mode.

    Args:
        reader: reader of the tool.
        path: local path.
        choose: configuration -> transformers class to build. Default: the class that it names.
        settings: overrides of configuration settings.

    Raises:
        ConfigError: if chop has no format for some part, which the message names.
        CheckpointError: if files are missing or broken, or do not fit `config.json`.
    """
    with scratch_folder("read") as temporary:
        content = reader.read(path)
        if not content.packed and not reader.may_be_float:
            raise only_floats(path, reader.name)
        with library_errors(path, str(temporary)):
            model: Any = _model(content, temporary, choose or _named, settings).eval()
    model.name_or_path = model.config.name_or_path = str(path)
    read_generation_config(model, path)
    return model  # type: ignore[no-any-return]


def _named(config: Any) -> Any:
    """Returns the class that a configuration names, or None if transformers lacks it."""
    return named_class(config, "config.json")


def _model(
    content: Read, folder: Path, choose: Callable[[Any], Any], settings: Mapping[str, Any]
) -> nn.Module:
    import transformers
    from safetensors.torch import save_file

    # Registers how transformers reads what is converted.
    from chop.ir.huggingface import quantizer as _quantizer  # noqa: F401

    write_json(folder / CONFIG, content.settings)
    check_config(folder)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, **settings)
    without_fetched_code(config, f"'{folder}'")
    kind = choose(config)
    if kind is None:
        raise ConfigError(f"'{folder}': config.json names no transformers architecture.")
    layers, weights = getattr(config, "num_hidden_layers", 0), len(content.weights)
    if isinstance(layers, int) and layers > weights:
        raise CheckpointError(f"'{folder}' has {weights} tensors for {layers} layers.")
    fitted = _fitted(content, without_data(kind, config), f"'{folder}'")
    if fitted.packed:
        config.quantization_config = fitted.settings["quantization_config"]
    with writing(folder / WHOLE):
        save_file(fitted.weights, folder / WHOLE, metadata={"format": "pt"})
    model: nn.Module
    with without_load_report():  # lines below say what it would
        model, report = kind.from_pretrained(
            folder,
            config=config,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    for note in Unread.from_report(report).check(model, f"'{folder}'", has_new_head=bool(settings)):
        log.warning("%s", note)
    return model


def _fitted(content: Read, model: nn.Module, where: str) -> Read:
    """Fits the content of a folder to a model: single experts are stacked to one layer.

    Zero biases without a place in the model are dropped: some tools write them for every layer.

    Args:
        content: content of the folder.
        model: model on the meta device with float layers.
        where: folder, for messages.

    Raises:
        ConfigError, CheckpointError: if codes do not fit the model.
    """
    names = (f"{path}.bias" for path in content.packed)
    zeros = {x for x in names if x in content.tensors and not bool(content.tensors[x].any())}
    spare = zeros - {*model.state_dict()} if zeros else zeros
    tensors = {name: x for name, x in content.tensors.items() if name not in spare}
    fitted = _tied(join_experts(replace(content, tensors=tensors), model, where), model)
    for path, module in model.named_modules(remove_duplicate=False):
        shape = fitted.packed[path].shape if path in fitted.packed else None
        weight = get_module_row(module).weight
        is_known = weight is not None and not weight.is_transposed
        if shape is not None and is_known and module.weight.shape != shape:
            raise other_shape(f"{path}.weight", shape, module.weight.shape, where)
    return fitted


def _tied(content: Read, model: Any) -> Read:
    """Ties layers that the model ties and that the folder stores once, as codes."""
    packed, ties = dict(content.packed), dict(content.ties)
    for target, source in model.all_tied_weights_keys.items():
        path, home = target.removesuffix(".weight"), source.removesuffix(".weight")
        if path in packed and home not in packed and source not in content.tensors:
            packed[home] = packed.pop(path)
        if home in packed and path not in packed and target not in content.tensors:
            ties[path] = home
    return replace(content, packed=packed, ties=ties)


def without_data(kind: Any, config: Any) -> nn.Module:
    """Returns a transformers model on the meta device with float layers.

    Args:
        kind: model class, or an `AutoModel...`.
        config: configuration of the model.
    """
    config = copy.deepcopy(config)
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        return fresh_model(kind, config)


def fresh_model(kind: Any, config: Any) -> nn.Module:
    """Returns a transformers model with new weights, without running code from the folder.

    Args:
        kind: model class, or an `AutoModel...`.
        config: configuration of the model.
    """
    from_config = getattr(kind, "from_config", None)
    # Without an answer it would ask on the terminal.
    model: nn.Module = from_config(config, trust_remote_code=False) if from_config else kind(config)
    return model
