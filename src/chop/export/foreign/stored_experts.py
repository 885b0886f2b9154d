"""Stacks the quantized weights of single experts into layers of all experts (mixture of experts).

Tools store each expert of a mixture as separate linear layers. transformers 5 stacks their matrices
to two parameters, and chop has an `ExpertLinear` for each: its rows are those of the first expert,
then of the second. Values do not change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from chop.captured.layers.experts import matrices_by_parameter
from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.reader import Read
from chop.export.foreign.stored import Stored, get_numbers, stored_integers
from chop.formats import FP8, LearnableFormat, NumberFormat, ScaleInteger
from chop.formats.groups import WHOLE_TENSOR
from chop.ir.huggingface.conversions import EXPERT, Conversions, ExpertMatrix
from chop.private.modules import own_parameters

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Layer:
    """Layer of all experts and the modules of a folder that it is built from.

    Attributes:
        path: path of the layer.
        shape: number of experts, rows of all matrices of an expert, and columns.
        parts: number of matrices per expert.
        sources: path in the folder by numbers of expert and matrix.
    """

    path: str
    shape: tuple[int, int, int]
    parts: int
    sources: dict[tuple[int, int], str]

    @property
    def order(self) -> list[str]:
        """Returns the paths in the folder, in the order of their rows."""
        return [self.sources[place] for place in sorted(self.sources)]


def join_experts(content: Read, model: nn.Module, where: str) -> Read:
    """Fits the content of a folder to a model with one layer for all experts.

    Args:
        content: content with the paths of the folder.
        model: transformers model on the meta device, with float layers.
        where: folder, for messages.

    Raises:
        ConfigError: if experts differ in settings of the whole layer, such as the bits of inputs.
        CheckpointError: if experts are missing, or do not fit `config.json`.
    """
    packed, inputs, layers = dict[str, Stored](), dict[str, NumberFormat](), dict[str, _Layer]()
    conversions, own = Conversions(model), dict(model.named_modules(remove_duplicate=False))
    for path, stored in content.packed.items():
        name = f"{path}.weight"
        own_path = conversions.get_name(name).removesuffix(".weight")
        is_beyond = own_path.rpartition(".experts.")[0] not in own  # of a layer that is not there
        is_plain = own_path in own or EXPERT.search(name) is None or is_beyond
        if is_plain and not conversions.is_converted(name):
            packed[own_path] = stored
            if path in content.inputs:
                inputs[own_path] = content.inputs[path]
            continue
        place = conversions.expert_matrix(name)
        layer = None if place is None else _find_layer(place, own)
        if layer is None or place is None:
            raise ConfigError(
                f"{where} has codes of '{path}', which transformers' {type(model).__name__} stores "
                "in a fused layout that is not supported. Quantize the float model with chop."
            )
        layer = layers.setdefault(layer.path, layer)
        layer.sources[place.expert, place.part] = path
    _check_alone(layers, own, where)
    for path, layer in layers.items():
        _check_complete(layer, where)
        packed[path] = _joined([content.packed[x] for x in layer.order], layer, where)
        rounded = _list_inputs(layer, content.inputs, where)
        if rounded is not None:
            inputs[path] = rounded
    _warn_about_integers(layers, content.packed, packed)
    return replace(content, packed=packed, inputs=inputs)


def _find_layer(place: ExpertMatrix, own: Mapping[str, nn.Module]) -> _Layer | None:
    """Returns the fused expert layer of a matrix, or None if the model has no such experts."""
    owner, _, name = place.parameter.rpartition(".")
    module = own.get(owner)
    layer = None if module is None else matrices_by_parameter(module).get(name)
    weight = None if module is None else own_parameters(module).get(name)
    if layer is None or weight is None:
        return None
    return _Layer(f"{owner}.{layer}", tuple(weight.shape), place.parts, {})  # type: ignore[arg-type]


def _check_alone(layers: Mapping[str, _Layer], own: Mapping[str, nn.Module], where: str) -> None:
    """Raises ConfigError if some matrices of experts are codes and others are floats."""
    for path, layer in layers.items():
        owner = path.rpartition(".")[0]
        other = next(
            (x for x in matrices_by_parameter(own[owner]).values() if f"{owner}.{x}" not in layers),
            None,
        )
        if other is not None:
            raise ConfigError(
                f"{where} has codes of '{layer.order[0]}' but floats of '{owner}.{other}'; all "
                "matrices of these experts must be codes, or all floats."
            )


def _check_complete(layer: _Layer, where: str) -> None:
    count, known = layer.shape[0], layer.order[0]
    beyond = next((path for (expert, _), path in layer.sources.items() if expert >= count), None)
    if beyond is not None:
        raise CheckpointError(
            f"{where} has codes of '{beyond}', but its config.json has only {count} experts."
        )
    for part in range(layer.parts):
        for expert in range(count):
            if (expert, part) not in layer.sources:
                alike = next((x for (_, own), x in layer.sources.items() if own == part), None)
                name = (
                    f"'{EXPERT.sub(str(expert), alike)}'" if alike else f"matrix {part + 1} of it"
                )
                raise CheckpointError(f"{where} has codes of '{known}', but none of {name}.")


def _list_inputs(
    layer: _Layer, inputs: Mapping[str, NumberFormat], where: str
) -> NumberFormat | None:
    """Returns the input format of all experts of a layer, or None for float inputs.

    Different static scales become one scale per expert, see `QuantExpertLinear`.
    """
    given = [inputs.get(path) for path in layer.order]
    first: Any = given[0]
    for number, path in enumerate(layer.order):
        # All matrices of an expert read the same inputs.
        first_matrix = number - number % layer.parts
        if given[number] != given[first_matrix] or _without_scale(given[number]) != _without_scale(
            first
        ):
            other = layer.order[first_matrix if given[number] != given[first_matrix] else 0]
            raise ConfigError(
                f"{where}: '{path}' and '{other}' round their inputs differently; expected float "
                "inputs, dynamic scales per token, or a static scale per expert."
            )
    if first is not None and _follows_all(first):
        raise ConfigError(
            f"{where}: '{layer.order[0]}' has one dynamic scale for all inputs of an expert; "
            "expected dynamic scales per token."
        )
    expert_formats: list[Any] = given[:: layer.parts]
    if all(one == first for one in expert_formats):
        return first  # type: ignore[no-any-return]
    scales = tuple(one.scales[0] for one in expert_formats)
    return replace(first, granularity="channel", scales=scales)  # type: ignore[no-any-return]


def _without_scale(inputs: NumberFormat | None) -> NumberFormat | None:
    """Replaces the static scale of a format by a common one; returns other formats unchanged."""
    is_static = isinstance(inputs, LearnableFormat) and inputs.scales is not None
    return inputs.with_scales(torch.ones(1)) if is_static else inputs  # type: ignore[union-attr]


def _follows_all(inputs: NumberFormat) -> bool:
    layout: Any = inputs.layout()
    return layout.groups == WHOLE_TENSOR and getattr(inputs, "scales", None) is None


def _joined(stored: Sequence[Stored], layer: _Layer, where: str) -> Stored:
    """Returns the weight of all experts, with rows of one expert below those of another."""
    count, rows, columns = layer.shape
    expected = (rows // layer.parts, columns)
    for path, one in zip(layer.order, stored, strict=True):
        if one.shape != expected:
            raise CheckpointError(
                f"{where}: '{path}' has codes of the shape {[*(one.shape or ())]}, but config.json "
                f"requires {[*expected]}."
            )
    with_rows = [_by_rows(one) for one in stored]
    first = with_rows[0].number_format
    if any(one.number_format != first for one in with_rows) or not _is_whole(with_rows[0]):
        return _joined_integers(with_rows, layer, where)
    if not _have_one_scale(with_rows):
        return _joined_integers(with_rows, layer, where)
    codes, scales = (
        torch.cat([getattr(x, name) for x in with_rows]) for name in ("codes", "scales")
    )
    return Stored(first, codes, scales, with_rows[0].tensor_scale, (count * rows, columns))


def _by_rows(one: Stored) -> Stored:
    """Converts tensor scales and partial blocks of a weight to scales per row."""
    kind, shape = one.number_format, one.shape
    assert shape is not None
    if isinstance(kind, FP8) and kind.granularity == "block" and shape[0] % kind.group_size:
        size = kind.group_size
        scales = one.scales.view(-1, -(-shape[1] // size)).repeat_interleave(size, 0)[: shape[0]]
        grouped = replace(kind, granularity="group")
        return replace(one, number_format=grouped, scales=scales.reshape(-1))
    if not isinstance(kind, FP8 | ScaleInteger) or kind.granularity != "tensor":
        return one
    scales = one.scales.reshape(-1).expand(shape[0])
    return replace(one, number_format=replace(kind, granularity="channel"), scales=scales)


def _is_whole(one: Stored) -> bool:
    """Returns True if the codes fill whole bytes."""
    assert one.shape is not None
    return 8 * one.codes.numel() % (one.shape[0] * one.shape[1]) == 0


def _have_one_scale(stored: Sequence[Stored]) -> bool:
    """Returns True if all matrices have the same tensor scale, or none."""
    scales = [one.tensor_scale for one in stored]
    first = scales[0]
    return first is None or all(x is not None and torch.equal(first, x) for x in scales)


def _warn_about_integers(
    layers: Mapping[str, _Layer], stored: Mapping[str, Stored], joined: Mapping[str, Stored]
) -> None:
    """Warns of layers that grow because experts have different tensor scales."""
    larger = {
        path: stored[layer.order[0]].number_format
        for path, layer in layers.items()
        if stored[layer.order[0]].tensor_scale is not None and joined[path].tensor_scale is None
    }
    for path, kind in [*larger.items()][:1]:
        log.warning(
            "%s: experts have different tensor scales in %d layers, such as '%s'. Their values are "
            "stored as %s, which takes more memory.",
            *(kind.name, len(larger), path, joined[path].number_format.label),
        )


def _joined_integers(stored: Sequence[Stored], layer: _Layer, where: str) -> Stored:
    """Joins integers of different formats: the widest, with float32 scales if necessary."""
    parts = [get_numbers(one) for one in stored]
    count, rows, columns = layer.shape
    if any(part is None for part in parts) or len({part.group for part in parts if part}) > 1:
        kinds = ", ".join(dict.fromkeys(one.number_format.label for one in stored))
        raise ConfigError(
            f"{where}: experts of '{layer.path}' have weights in {kinds}; expected the same format."
        )
    known = [part for part in parts if part is not None]
    numbers = torch.cat([part.numbers for part in known])
    scales = torch.cat([part.scales for part in known])
    assert numbers.shape == (count * rows, columns)
    return stored_integers(numbers, scales, max(part.bits for part in known), known[0].group)
