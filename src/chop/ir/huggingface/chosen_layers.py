"""Selection of the layers of a transformers model to pack, with their formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from chop.base.notices import warn_each_time
from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.layers.experts import matrices_by_parameter
from chop.captured.overrides import why_not_its_class
from chop.errors import ConfigError
from chop.formats.recipe import Recipe
from chop.ir.huggingface.stored import missing_module
from chop.ir.ops import OPS, get_class_row, stand_in_for
from chop.ir.unreached import UnreachedWarning, list_unreached_matrices, unreached_sentence

WHERE = "quantization_config"


def layers_to_pack(
    model: Any, operators: Sequence[str] | None, recipe: Recipe
) -> dict[str, list[str]]:
    """Returns the layers to pack, each with the layers tied to it, itself first.

    Layers that are tied to a float layer stay float. Each matrix of fused experts counts as a
    layer.

    Args:
        model: a Hugging Face model on the meta device.
        operators: operator names; None selects all with a weight matrix or a table.
        recipe: layers to skip.

    Raises:
        ConfigError: if no layer remains, a pattern of `skip` matches nothing, or a layer has a
            replaced forward.
    """
    modules, experts, skipped = (
        dict(model.named_modules()),
        _expert_layers(model),
        _skipped(model, recipe),
    )
    names = {
        path
        for path, module in modules.items()
        if path not in skipped and _is_chosen(module, operators)
    }
    for path in names:
        reason = why_not_its_class(modules[path])
        if reason is not None:
            raise ConfigError(
                f"quantization_config: '{path}' cannot be quantized: {reason}, or name it in skip."
            )
    names |= _chosen_experts(experts, operators, skipped)
    sources = {
        target.removesuffix(".weight"): source.removesuffix(".weight")
        for target, source in model.all_tied_weights_keys.items()
    }
    groups: dict[str, list[str]] = {}
    for path in (*modules, *experts):
        groups.setdefault(str(sources.get(path, path)), []).append(path)
    selected = {
        member: [member, *(other for other in group if other != member)]
        for group in groups.values()
        for member in group
        if names.issuperset(group)
    }
    if not selected:
        raise ConfigError("quantization_config: every layer of the model is skipped; expected one.")
    return selected


def list_formats(
    groups: Mapping[str, Sequence[str]], format: str, recipe: Recipe
) -> dict[str, str]:
    """Returns the format of each packed layer, which its tied layers share.

    Args:
        groups: see `layers_to_pack`.
        format: default format.
        recipe: formats that override the default.

    Raises:
        ConfigError: if a pattern matches no layer, or two layers with one weight get two formats.
    """
    own = recipe.choose({path: [path] for path in groups}, WHERE)
    formats = {}
    for path, group in groups.items():
        given = {other: own[other] for other in group if other in own}
        if len({*given.values()}) > 1:
            one, other = sorted(given)[:2]
            raise ConfigError(
                f"{WHERE}.overrides: '{one}' and '{other}' share a weight, in {given[one]} and in "
                f"{given[other]}; expected one format."
            )
        formats[path] = next(iter(given.values()), format)
    return formats


def _skipped(model: nn.Module, recipe: Recipe) -> set[str]:
    """Returns the paths of modules and fused-expert layers that stay float."""
    paths = [path for path, _ in model.named_modules()]
    return recipe.skipped_paths(
        [*paths, *_expert_layers(model)], lambda x: missing_module(model, x)
    )


def _expert_layers(model: nn.Module) -> dict[str, str]:
    """Returns path -> weight name for the layers into which fused experts can be split."""
    return {
        f"{path}.{layer}": f"{path}.{name}"
        for path, module in model.named_modules()
        for name, layer in matrices_by_parameter(module).items()
    }


def _chosen_experts(
    experts: Iterable[str], operators: Sequence[str] | None, skipped: set[str]
) -> set[str]:
    if operators is not None and get_class_row(ExpertLinear).name not in operators:
        return set()
    floating = skipped.intersection(experts)
    chosen = set(experts) - floating
    halves = {path.rpartition(".")[0] for path in chosen} & {p.rpartition(".")[0] for p in floating}
    if halves:
        owner = min(halves)
        raise ConfigError(
            f"quantization_config.skip: it names one of the two layers of the experts '{owner}', "
            f"whose weights are packed together; expected '{owner}' or neither."
        )
    return chosen


def get_weights(model: nn.Module, groups: Iterable[str]) -> dict[str, str]:
    """Returns parameter name -> path of the layer that has it as its weight.

    Args:
        model: a Hugging Face model.
        groups: the paths; see `layers_to_pack`.
    """
    experts = _expert_layers(model)
    return {experts.get(path, f"{path}.weight"): path for path in groups}


def warn_about_unreached(
    model: nn.Module, groups: Mapping[str, Sequence[str]], recipe: Recipe
) -> None:
    """Warns if more than a tenth of the weights are in no packed layer.

    Args:
        model: a Hugging Face model.
        groups: see `layers_to_pack`.
        recipe: layers that the user skips.
    """
    weights = {id(x): x for x in map(model.get_parameter, get_weights(model, groups))}
    reached = sum(x.numel() for x in weights.values())
    unreached = list_unreached_matrices(model, _skipped(model, recipe).__contains__)
    text = unreached_sentence(unreached, reached, f"ChopConfig of {type(model).__name__}")
    if text is not None:
        warn_each_time(text, UnreachedWarning)


def _is_chosen(module: nn.Module, operators: Sequence[str] | None) -> bool:
    make = stand_in_for(module)
    if make is not None:
        row = next(row for row in OPS.values() if make in row.stand_ins.values())
    else:
        row = get_class_row(type(module))
    if row.weight is None or row.quantized is None:
        return False
    return operators is None or row.name in operators
