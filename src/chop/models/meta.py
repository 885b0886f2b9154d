"""Transformers' models on the meta device, whose weights are read by slices."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakTensorKeyDictionary

from chop.base.files.library_errors import library_errors
from chop.distributed.load import SafetensorsSource
from chop.distributed.weight_files import stored_dtype, stored_tensors
from chop.errors import CheckpointError, check_known
from chop.export.foreign.readers import check_method
from chop.ir.huggingface.generation_file import read_generation_config
from chop.ir.huggingface.unread import Unread
from chop.models.load import AUTO_CLASSES, get_model_class, read_config
from chop.models.stored_numbers import check_numbers
from chop.private.modules import not_persistent, own_buffers
from chop.private.transformers_api import (
    get_constructor,
    may_be_unexpected,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


def meta_model(
    folder: str | Path,
    *,
    num_labels: int | None = None,
    task: str | None = None,
    dtype: torch.dtype | None = None,
) -> PreTrainedModel:
    """The model of a Hugging Face folder, in evaluation mode, without its weights.

    Parameters and persistent buffers are on the meta device, for `weights_source` to read. The
    buffers that files leave out, such as positions and rotary frequencies, are computed.

    Args:
        folder: with a config.json.
        num_labels: classes of the classification head; default, what the model has.
        task: as of `chop.models.load_model`; default, the class that the config names.
        dtype: of the parameters; default, what the config says, or else the weights' own.

    Raises:
        ConfigError: an unknown task, or a folder that holds no model.
        CheckpointError: neither `dtype` nor the config says the dtype, and there are no weights.
    """
    if task is not None:
        check_known(task, AUTO_CLASSES, "unknown task")
    config = read_config(str(folder), num_labels)
    check_method(config, f"'{folder}'")
    model_class = get_model_class(config, task, wants_labels=num_labels is not None)
    make = get_constructor(model_class)
    wanted = dtype or config.dtype or stored_dtype(folder)
    with (
        library_errors(folder, problem="makes no model"),
        torch.random.fork_rng(devices=[]),
        _parameters_on_meta(),
    ):
        model: PreTrainedModel = make(config, dtype=wanted)
    for module in model.modules():
        for name in own_buffers(module).keys() - not_persistent(module):
            buffer = own_buffers(module)[name]
            own_buffers(module)[name] = None if buffer is None else buffer.to("meta")
    read_generation_config(model, folder)
    model.eval()
    return model


def weights_source(
    model: PreTrainedModel, folder: str | Path, graph: nn.Module | None = None
) -> SafetensorsSource:
    """The weights of a model of `meta_model`, by the names that its class has for those of files.

    Args:
        model: of transformers, before it is captured; a graph of it has the same names.
        folder: see `SafetensorsSource`.
        graph: `mg.model` of a graph that is to have the weights, where layers of the model are the
            other way round than the graph's, as GPT-2's are; default, the model itself.

    Raises:
        CheckpointError: as of `SafetensorsSource`, or transformers puts a tensor of the model
            together from several of the file, and these are not the matrices of experts; or files
            have codes, or tensors that the model has no place for.
    """
    names = _FileNames(model)
    source = SafetensorsSource(
        folder, model if graph is None else graph, names.rename, names.place_of_expert
    )
    notes = names.check_used(folder)
    notes += check_numbers(model, Path(folder), names.by_file, f"'{folder}'")
    for note in notes:
        log.warning("%s: %s", folder, note)
    return source


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Inside, modules get parameters without data: one exists until it is registered, unwritten."""

    made = WeakTensorKeyDictionary()  # what is registered twice stays one parameter

    def to_meta(_: nn.Module, __: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        if parameter not in made:
            made[parameter] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        found: nn.Parameter = made[parameter]
        return found

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


class _FileNames:
    """Names in files, which may be those of older releases, and the model's.

    Args:
        model: of transformers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        from chop.ir.huggingface.conversions import Conversions

        self._model, self._conversions = model, Conversions(model)
        self._own, self._class = model.state_dict(), type(model).__name__

    def rename(self, name: str) -> str:
        """The model's name for one in a file.

        Raises:
            CheckpointError: the tensor is put together from several, no matrices of experts.
        """
        new = self._conversions.get_name(name)
        if self._conversions.is_converted(name) and self.place_of_expert(name) is None:
            raise CheckpointError(
                f"'{new}' of {self._class} is put together from '{name}' and others, "
                "which cannot be read by slices; export a graph of the model and read that."
            )
        return new

    def place_of_expert(self, name: str) -> tuple[int, ...] | None:
        """Where a matrix lies among those that are put together: its expert, and the rows of it.

        Places are in order, and tell nothing else. None of other tensors.
        """
        matrix = self._conversions.expert_matrix(name)
        return None if matrix is None else (matrix.expert, matrix.part)

    def by_file(self, _: PreTrainedModel, names: Iterable[str]) -> dict[str, str]:
        """By name in a file, the model's."""
        return {name: self._conversions.get_name(name) for name in names}

    def check_used(self, folder: str | Path) -> list[str]:
        """Sentences on tensors of a folder that belong to another head, see `Unread.check`.

        Raises:
            CheckpointError: the model has no place for others.
        """
        own = self.by_file(self._model, (name for name, _ in stored_tensors(folder)))
        ignored = [*(may_be_unexpected(self._model) or ())]
        tied = getattr(self._model, "all_tied_weights_keys", {})
        unexpected = {
            x
            for x in own.values()
            if x not in self._own and x not in tied and not any(re.search(y, x) for y in ignored)
        }
        return Unread(unexpected=unexpected).check(self._model, f"'{folder}'")
