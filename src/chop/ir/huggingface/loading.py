"""Packed layers in a model of transformers that is being loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.attention import PROJECTIONS, ProjectedAttention
from chop.captured.overrides import why_not_its_class
from chop.errors import ConfigError
from chop.formats import QuantSpec, parse_format_string
from chop.ir.huggingface.stored import (
    StoredModule,
    missing_module,
    packed_module,
    quantized_module,
    resolve,
)
from chop.ir.huggingface.weights import StoredTensors
from chop.ir.ops import OPS, of_layer, of_module, stand_in_for
from chop.ir.unreached import UnreachedWarning, unreached_matrices_of, unreached_sentence
from chop.nn.packed import KnownCodes, PackedOperator
from chop.nn.packed.base import BUFFER_NAMES
from chop.notices import warn_each_time
from chop.private.modules import buffers_of, parameters_of


@dataclass(frozen=True)
class Tied:
    """A layer whose codes are another's, which is put in its place when these have been read.

    Attributes:
        path: of the layer.
        source: the path of the other one.
        module: the layer.
    """

    path: str
    source: str
    module: PackedOperator

    def put(self, model: nn.Module) -> None:
        """Shares the codes, and puts the layer in its place."""
        source = buffers_of(model.get_submodule(self.source))
        buffers = buffers_of(self.module)
        buffers.update({name: source[name] for name in BUFFER_NAMES["weight"] if name in source})
        _put(model, self.path, self.module)


def put_modules(
    model: Any, modules: Mapping[str, StoredModule], stored_in: StoredTensors | None
) -> list[Tied]:
    """Puts quantized modules without data in the places that a folder says.

    Args:
        model: a model of transformers on the meta device; it is changed.
        modules: by path in the model that was saved.
        stored_in: the tensors of the folder, which have to fit; None: they are not known.
    Returns: the layers that are to be put when the weights have been read. Until then nothing is
        at their paths, because transformers ties parameters alone.

    Raises:
        ConfigError: the model has no such module, or the module no such form.
        CheckpointError: codes are missing, or of another size.
    """
    _take_apart(model, modules)
    whole = is_whole(model)
    packed: dict[str, PackedOperator] = {}
    for saved, stored in modules.items():
        path = resolve(model, saved, model.base_model_prefix)
        if path is None and whole:
            raise missing_module(model, saved)
        if path is None:  # the head of another task
            continue
        if stored_in is not None and stored.packed:
            stored_in.check_room(path, model.get_submodule(path))
        made = quantized_module(model.get_submodule(path), stored, path, {})
        _put(model, path, made)
        if isinstance(made, PackedOperator):
            packed[path] = made
    tied = _tied(model, packed, stored_in)
    for one in tied:
        del packed[one.path]
        _put(model, one.path, nn.Module())
    for path, module in packed.items() if stored_in else ():
        assert stored_in is not None
        stored_in.check(path, module)
    return tied


def _take_apart(model: nn.Module, modules: Iterable[str]) -> None:
    """Makes layers of those attentions of torch whose projections a folder names."""
    owners = {path.rpartition(".")[0] for path in modules if path.endswith(PROJECTIONS)}
    for path, module in list(model.named_modules()):
        named = any(f".{owner}".endswith(f".{path}") for owner in owners)
        if named and isinstance(module, nn.MultiheadAttention):
            _put(model, path, ProjectedAttention.around(module, {}))


def is_whole(model: Any) -> bool:
    """Whether a model is of the class that a folder's config.json names, not its body or a sibling.

    Raises:
        ConfigError: it names a class that transformers does not have.
    """
    import transformers

    names = model.config.architectures or [type(model).__name__]
    for name in names:
        if name != type(model).__name__ and not hasattr(transformers, str(name)):
            raise ConfigError(
                f"config.json: architectures: '{name}' is no class of transformers; expected "
                f"'{type(model).__name__}' or a model with the same body."
            )
    return type(model).__name__ in names


def _tied(
    model: Any, packed: Mapping[str, PackedOperator], stored_in: StoredTensors | None
) -> list[Tied]:
    tied = []
    for target, source in list(model.all_tied_weights_keys.items()):
        path, source = target.removesuffix(".weight"), source.removesuffix(".weight")
        if path in packed and source in packed:
            del model.all_tied_weights_keys[target]
            if stored_in is None or not stored_in.has(f"{path}.{BUFFER_NAMES['weight'][0]}"):
                _check_alike(path, packed[path], source, packed[source])
                tied.append(Tied(path, source, packed[path]))
        elif path in packed or source in packed:
            raise ConfigError(
                f"quantization_config: '{path}' and '{source}' have one weight, and only one of "
                "them is packed; expected both or neither."
            )
    return tied


def _check_alike(path: str, one: PackedOperator, source: str, other: PackedOperator) -> None:
    formats = [module.spec.number_format("weight") for module in (one, other)]
    if formats[0].key != formats[1].key:
        raise ConfigError(
            f"quantization_config: '{path}' and '{source}' have one weight, in {formats[0].label} "
            f"and in {formats[1].label}; expected one format."
        )


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def layers_to_pack(
    model: Any, operators: Sequence[str] | None, skip: Sequence[str]
) -> dict[str, list[str]]:
    """The layers whose weights become codes, each with those that are tied to it, itself first.

    A layer that is tied to one that stays float stays float too.

    Args:
        model: a model of transformers on the meta device.
        operators: the names of their operators; None: all with a weight matrix or a table.
        skip: paths, or ends of paths, of those to leave, and of modules that hold them.

    Raises:
        ConfigError: nothing is left, an entry of `skip` names nothing, or what a layer computes
            is not what its class says.
    """
    modules = dict(model.named_modules())
    for entry in skip:
        if not any(_ends(path, entry) for path in modules):
            raise missing_module(model, entry)
    names = {
        path
        for path, module in modules.items()
        if not _is_left(path, skip) and _is_chosen(module, operators)
    }
    for path in names:
        reason = why_not_its_class(modules[path])
        if reason is not None:
            raise ConfigError(
                f"quantization_config: '{path}' cannot be quantized: {reason}, or name it in skip."
            )
    sources = {
        target.removesuffix(".weight"): source.removesuffix(".weight")
        for target, source in model.all_tied_weights_keys.items()
    }
    groups: dict[str, list[str]] = {}
    for path in modules:
        groups.setdefault(str(sources.get(path, path)), []).append(path)
    found = {
        member: [member, *(other for other in group if other != member)]
        for group in groups.values()
        for member in group
        if names.issuperset(group)
    }
    if not found:
        raise ConfigError("quantization_config: no layer of the model is left to quantize.")
    return found


def warn_of_unreached(
    model: nn.Module, groups: Mapping[str, Sequence[str]], skip: Sequence[str]
) -> None:
    """Warns where more than a tenth of the weights are in no layer that becomes codes.

    Args:
        model: a model of transformers.
        groups: see `layers_to_pack`.
        skip: paths, or ends of paths, of modules that the user leaves.
    """
    weights = {id(x): x for path in groups for x in [model.get_parameter(f"{path}.weight")]}
    reached = sum(x.numel() for x in weights.values())
    unreached = unreached_matrices_of(model, lambda path: _is_left(path, skip))
    text = unreached_sentence(unreached, reached, f"ChopConfig of {type(model).__name__}")
    if text is not None:
        warn_each_time(text, UnreachedWarning)


def _is_left(path: str, skip: Sequence[str]) -> bool:
    """Whether a module, or one that holds it, is named."""
    steps = path.split(".")
    parents = (".".join(steps[: n + 1]) for n in range(len(steps)))
    return any(_ends(parent, entry) for parent in parents for entry in skip)


def _ends(path: str, entry: str) -> bool:
    return path == entry or path.endswith(f".{entry}")


def _is_chosen(module: nn.Module, operators: Sequence[str] | None) -> bool:
    make = stand_in_for(module)
    if make is not None:
        row = next(row for row in OPS.values() if make in row.stand_ins.values())
    else:
        row = of_module(type(module))
    if row.weight is None or row.quantized is None:
        return False
    return operators is None or row.name in operators


def check_untouched(model: nn.Module, group: Sequence[str], weight: Tensor) -> None:
    """Raises ConfigError where tied layers have been packed with another weight."""
    made = model.get_submodule(group[0])
    if isinstance(made, PackedOperator):
        stored = made.spec.number_format("weight")
        if not torch.equal(stored.round(weight).to(made.packed_dtype), made.weight):
            raise ConfigError(
                f"quantization_config: the folder has a weight of '{group[0]}' and another one of "
                f"'{group[1]}', and its config.json says that they are one; expected "
                "tie_word_embeddings=False."
            )


def pack_layers(
    model: nn.Module, group: Sequence[str], weight: Tensor, format: str, data_in: str | None
) -> list[PackedOperator]:
    """Replaces tied layers by their packed twins.

    Args:
        model: the model; it is changed.
        group: the paths of the layers.
        weight: the float weight of them all.
        format: of the weight.
        data_in: of the inputs of those that have some; None leaves them float.
    Returns: the twins.

    Raises:
        ConfigError: the weight has values that are not finite.
    """
    if not weight.isfinite().all():
        raise ConfigError(f"quantization_config: '{group[0]}' has weights that are not finite.")
    known: KnownCodes = {}
    given = {"weight": format, "data_in": data_in}
    spec = QuantSpec().with_quantizers(
        **{operand: parse_format_string(text) for operand, text in given.items() if text}
    )
    shared, made = nn.Parameter(weight, requires_grad=False), []
    for path in group:
        module = model.get_submodule(path)
        parameters_of(module)["weight"] = shared
        make = stand_in_for(module)
        module = module if make is None else make(module)
        row = of_layer(module)
        assert row.quantized is not None
        layer = row.quantized.from_float(module, spec)
        made.append(packed_module(layer, path, False, known))
        _put(model, path, made[-1])
    return made
