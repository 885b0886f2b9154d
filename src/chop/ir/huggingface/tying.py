"""Tied weights of packed layers in transformers models, which tie by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from chop.nn.packed import PackedOperator
from chop.nn.packed.state import BUFFER_NAMES
from chop.private.modules import own_buffers, own_parameters, set_members
from chop.private.transformers_api import set_tied_keys, tied_keys


def tie_codes(model: nn.Module) -> None:
    """Makes transformers tie the codes of packed layers instead of their weights.

    Args:
        model: a `PreTrainedModel`; its declarations of tied weights are changed.
    """
    parts = _parts(model)
    for part in parts:
        known = tied_keys(part)
        if isinstance(known, dict):
            floats = dict.fromkeys((_weight(target), _weight(x)) for target, x in known.items())
            set_tied_keys(part, dict(pair for item in floats for pair in _tied(part, *item)))
    for part in reversed(parts):
        part.all_tied_weights_keys = part.get_expanded_tied_weights_keys(all_submodels=True)


def settle_ties(model: nn.Module) -> None:
    """Updates the tying settings of configurations to match the tensors, before saving.

    After training or merging one side of a tie, the two weights differ, and one would be lost if
    the folder declared them equal. A valid tie that is not declared would leave a weight without
    data.

    Args:
        model: a `PreTrainedModel`, changed in place with its configurations.
    """
    tie_codes(model)
    parts = _parts(model)
    for config in {id(part.config): part.config for part in parts}.values():
        sharing = [part for part in parts if part.config is config]
        pairs = [(part, *pair) for part in sharing for pair in _pairs(part, config)]
        are_one = [_is_one(*pair) for pair in pairs]
        if pairs and all(are_one) != getattr(config, "tie_word_embeddings", False):
            config.tie_word_embeddings = all(are_one)
        if not all(are_one):
            for (part, target, _), is_one in zip(pairs, are_one, strict=True):
                if is_one:
                    _untie(part, target)
    tie_codes(model)


def pack_uncalled(model: nn.Module, called: Collection[str]) -> None:
    """Gives embeddings that only hold a tied weight the codes of the embedding in use.

    T5 ties the embeddings of its encoder and decoder to a third one that no forward calls.

    Args:
        model: a `PreTrainedModel`, changed in place.
        called: paths of modules that its forward calls; may be incomplete.
    """
    if not any(isinstance(module, PackedOperator) for module in model.modules()):
        return
    modules_by_path = model.named_modules(remove_duplicate=False)
    in_use = {id(module) for path, module in modules_by_path if path in called}
    for part in _parts(model):
        for pair in _pairs(part, part.config):
            paths = [name.rpartition(".")[0] for name in pair]
            modules: list[Any] = [part.get_submodule(path) for path in paths]
            packed = [x for x in modules if isinstance(x, PackedOperator)]
            for path, module in zip(paths, modules, strict=True):
                is_free = id(module) not in in_use and type(module) is nn.Embedding
                if is_free and packed and isinstance(packed[0], nn.Embedding):
                    parent, _, name = path.rpartition(".")
                    setattr(part.get_submodule(parent), name, _sharing_codes(packed[0]))


def _sharing_codes(layer: nn.Module) -> nn.Module:
    twin = copy.copy(layer)
    set_members(twin, dict(own_parameters(layer)), dict(own_buffers(layer)))
    return twin


def drop_ties(model: Any, differ: Callable[[str, str], bool]) -> None:
    """Unties weights of which a folder has two versions, as transformers does after loading.

    Args:
        model: model to be loaded; it and its configuration are changed.
        differ: returns whether the folder has two different tensors of these names.
    """
    ties = model.all_tied_weights_keys
    untied = [target for target, source in ties.items() if differ(target, source)]
    for target in untied:
        del ties[target]
    if untied and not ties:
        model.config.tie_word_embeddings = False


def _parts(model: nn.Module) -> list[Any]:
    import transformers

    return [m for m in model.modules() if isinstance(m, transformers.PreTrainedModel)]


def _pairs(part: Any, config: Any) -> list[tuple[str, str]]:
    """Returns the pairs of tensor names that a part ties by its configuration."""
    if not isinstance(tied_keys(part), dict):
        return []
    missing = object()
    previous = getattr(config, "tie_word_embeddings", missing)
    config.tie_word_embeddings = True
    try:
        return list(part.get_expanded_tied_weights_keys(all_submodels=False).items())
    except ValueError:  # a pattern that fits no tensors
        return []
    finally:
        if previous is missing:
            del config.tie_word_embeddings
        else:
            config.tie_word_embeddings = previous


def _is_one(part: Any, target: str, source: str) -> bool:
    try:
        one, other = (part.get_parameter_or_buffer(name) for name in (target, source))
    except AttributeError:  # only one side has codes
        return False
    return one is other or (
        one.shape == other.shape and one.data_ptr() == other.data_ptr() and one.data_ptr() != 0
    )


def _untie(part: nn.Module, name: str) -> None:
    """Gives a shared tensor its own memory."""
    path, _, last = name.rpartition(".")
    module = part.get_submodule(path)
    for tensors in (own_parameters(module), own_buffers(module)):
        tensor: Any = tensors.get(last)
        if tensor is not None:
            copied = tensor.detach().clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            tensors[last] = nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied


def _weight(name: str) -> str:
    """Returns the name of the weight for the name of one of its codes."""
    path, _, last = name.rpartition(".")
    owners = [operand for operand, buffers in BUFFER_NAMES.items() if last in buffers]
    return f"{path}.{owners[0]}" if owners else name


def _tied(part: nn.Module, target: str, source: str) -> list[tuple[str, str]]:
    """Returns the code pairs for a pair of names; patterns without packed layers stay."""
    ours, _, name = target.rpartition(".")
    theirs = source.rpartition(".")[0]
    modules = dict(part.named_modules(remove_duplicate=False))
    packed = modules.get(ours)
    if not isinstance(packed, PackedOperator) or name not in packed.packed_shapes:
        return [(target, source)]
    present = [
        buffer for buffer in BUFFER_NAMES[name] if own_buffers(packed).get(buffer) is not None
    ]
    return [(f"{ours}.{buffer}", f"{theirs}.{buffer}") for buffer in present]
