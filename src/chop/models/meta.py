"""transformers models on the meta device, with weights that are read by slices."""

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
    """Builds the model of a Hugging Face folder in evaluation mode, without its weights.

    Parameters and persistent buffers are on the meta device, to be filled by `weights_source`.
    Buffers outside the files, such as positions and rotary frequencies, are computed.

    Args:
        folder: folder with a config.json.
        num_labels: classes of the classification head; by default those of the model.
        task: task as in `chop.models.load_model`; by default the class in the config.
        dtype: dtype of the parameters; by default that of the config, else that of the weights.

    Raises:
        ConfigError: if the task is unknown, or the folder holds no model.
        CheckpointError: if neither `dtype` nor the config gives a dtype, and there are no weights.
    """
    if task is not None:
        check_known(task, AUTO_CLASSES, "unknown task")
    config = read_config(str(folder), num_labels)
    check_method(config, f"'{folder}'")
    model_class = get_model_class(config, task, wants_labels=num_labels is not None)
    make = get_constructor(model_class)
    wanted = dtype or config.dtype or stored_dtype(folder)
    with (
        library_errors(folder, problem="does not create a model"),
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
    """Returns the weights of a `meta_model`, under the names of its class.

    Args:
        model: Hugging Face model before capture; its graph has the same names.
        folder: see `SafetensorsSource`.
        graph: `mg.model` of the graph that gets the weights, if it stores layers transposed, as for
            GPT-2; by default the model itself.

    Raises:
        CheckpointError: for the reasons of `SafetensorsSource`, or if transformers joins several
            tensors of the file that are not the matrices of experts, or if files have codes or
            tensors without a place in the model.
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
    """Context in which modules get parameters without data; each is allocated until registered."""

    made = WeakTensorKeyDictionary()  # a parameter registered twice stays shared

    def to_meta(_: nn.Module, __: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        if parameter not in made:
            made[parameter] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        on_meta: nn.Parameter = made[parameter]
        return on_meta

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


class _FileNames:
    """Names in files, possibly of older releases, and the corresponding names in the model.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        from chop.ir.huggingface.conversions import Conversions

        self._model, self._conversions = model, Conversions(model)
        self._own, self._class = model.state_dict(), type(model).__name__

    def rename(self, name: str) -> str:
        """Returns the model's name for a name in a file.

        Raises:
            CheckpointError: if the tensor is joined from several that are not matrices of experts.
        """
        new = self._conversions.get_name(name)
        if self._conversions.is_converted(name) and self.place_of_expert(name) is None:
            raise CheckpointError(
                f"'{new}' of {self._class} is assembled from '{name}' and others, "
                "which cannot be read by slices; export a graph of the model and read that."
            )
        return new

    def place_of_expert(self, name: str) -> tuple[int, ...] | None:
        """Returns the position of an expert's matrix in the joined tensor; None for other tensors.

        Positions are only ordered: expert first, then rows.
        """
        matrix = self._conversions.expert_matrix(name)
        return None if matrix is None else (matrix.expert, matrix.part)

    def by_file(self, _: PreTrainedModel, names: Iterable[str]) -> dict[str, str]:
        """Returns name in a file -> name in the model."""
        return {name: self._conversions.get_name(name) for name in names}

    def check_used(self, folder: str | Path) -> list[str]:
        """Returns warnings about a folder's tensors for another head, see `Unread.check`.

        Raises:
            CheckpointError: if the model has no place for other tensors.
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
