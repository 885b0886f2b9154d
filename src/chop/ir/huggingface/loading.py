"""Installation of packed layers into a transformers model during loading."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from chop.captured.layers.attention import PROJECTIONS, ProjectedAttention
from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.layers.experts import LAYERS, FusedExperts, expert_layer, matrices_by_parameter
from chop.errors import ConfigError
from chop.formats import QuantSpec, parse_format_string
from chop.ir.huggingface.misfits import describe_missing, other_shape
from chop.ir.huggingface.stored import (
    StoredModule,
    missing_module,
    packed_module,
    quantized_module,
    resolve,
    rotated_module,
)
from chop.ir.huggingface.weights import StoredTensors, exclude_matching
from chop.ir.ops import get_class_row, get_module_row, stand_in_for
from chop.nn.packed import KnownCodes, PackedOperator
from chop.nn.packed.state import BUFFER_NAMES
from chop.private.modules import own_buffers, own_parameters
from chop.private.transformers_api import may_be_missing


@dataclass(frozen=True)
class Tied:
    """Layer that shares the codes of another one, installed after these have been read.

    Attributes:
        path: path of the layer.
        source: path of the layer that owns the codes.
        module: the layer.
    """

    path: str
    source: str
    module: PackedOperator

    def put(self, model: nn.Module) -> None:
        """Shares the codes and installs the layer."""
        source = own_buffers(model.get_submodule(self.source))
        buffers = own_buffers(self.module)
        buffers.update({name: source[name] for name in BUFFER_NAMES["weight"] if name in source})
        _put(model, self.path, self.module)


def put_modules(
    model: Any, modules: Mapping[str, StoredModule], stored_in: StoredTensors | None
) -> list[Tied]:
    """Installs the quantized modules that a folder describes, without data.

    Args:
        model: a Hugging Face model on the meta device, changed in place.
        modules: modules by path in the saved model.
        stored_in: tensors of the folder, checked against the modules; None skips the check.
    Returns: the layers to install after the weights have been read. Until then their paths
        are empty, because transformers ties only parameters.

    Raises:
        ConfigError: if the model has no such module, or the module has no such form.
        CheckpointError: if codes are missing or have another size.
    """
    _split_modules(model, modules)
    whole = is_whole(model)
    packed: dict[str, PackedOperator] = {}
    # A rotated module wraps its layer.
    for saved, stored in sorted(modules.items(), key=lambda item: not item[1].rotation):
        path = resolve(model, saved, model.base_model_prefix)
        if path is None and whole:
            raise missing_module(model, saved)
        if path is None:  # the head of another task
            continue
        if stored.rotation:
            _put(model, path, rotated_module(model.get_submodule(path), stored, path))
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


def _split_modules(model: nn.Module, modules: Iterable[str]) -> None:
    """Splits torch attention modules and fused experts whose layers are named."""
    split = [path.rpartition(".") for path in modules]
    owners = {owner for owner, _, name in split if name in (*PROJECTIONS, *LAYERS)}
    for path, module in list(model.named_modules()):
        if not any(f".{owner}".endswith(f".{path}") for owner in owners):
            continue
        if isinstance(module, nn.MultiheadAttention):
            _put(model, path, ProjectedAttention.around(module, {}))
        elif matrices_by_parameter(module):
            _put(model, path, FusedExperts.around(module, {}))


def is_whole(model: Any) -> bool:
    """Returns whether a model has the class that config.json names, not its body or a sibling.

    Raises:
        ConfigError: if transformers has no class of that name.
    """
    import transformers

    names = model.config.architectures or [type(model).__name__]
    for name in names:
        if name != type(model).__name__ and not hasattr(transformers, str(name)):
            raise ConfigError(
                f"config.json: architectures: '{name}' is not a transformers class; expected "
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
        elif (path in packed or source in packed) and _has_both(stored_in, path, source):
            del model.all_tied_weights_keys[target]
        elif path in packed or source in packed:
            raise ConfigError(
                f"quantization_config: '{path}' and '{source}' share a weight, and only one of "
                "them is packed; expected both or neither."
            )
    return tied


def _has_both(stored_in: StoredTensors | None, path: str, source: str) -> bool:
    """Returns whether the files have separate weights, codes or floats, for two layers."""
    ends = (BUFFER_NAMES["weight"][0], "weight")
    return stored_in is not None and all(
        any(stored_in.has(f"{place}.{end}") for end in ends) for place in (path, source)
    )


def _check_alike(path: str, one: PackedOperator, source: str, other: PackedOperator) -> None:
    formats = [module.spec.number_format("weight") for module in (one, other)]
    if formats[0].key != formats[1].key:
        raise ConfigError(
            f"quantization_config: '{path}' and '{source}' share a weight, in {formats[0].label} "
            f"and in {formats[1].label}; expected one format."
        )


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def check_untouched(model: nn.Module, group: Sequence[str], weight: Tensor) -> None:
    """Raises ConfigError if tied layers have been packed with another weight."""
    made = model.get_submodule(group[0])
    if isinstance(made, PackedOperator):
        stored = made.spec.number_format("weight")
        if not torch.equal(stored.round(weight).to(made.packed_dtype), made.weight):
            raise ConfigError(
                f"quantization_config: the folder has a weight of '{group[0]}' and another one of "
                f"'{group[1]}', but its config.json ties them; expected tie_word_embeddings=False."
            )


def is_resized_head(model: Any, name: str, weight: Tensor) -> bool:
    """Returns whether a task head's weight has another size, which transformers reports."""
    in_body = model.base_model is model or name.startswith(f"{model.base_model_prefix}.")
    return (
        not in_body
        and model.get_output_embeddings() is None
        and weight.shape != _expected_shape(model, name, weight)
    )


def check_shape(model: Any, name: str, weight: Tensor) -> None:
    """Raises CheckpointError if the size of a weight differs from that in the model."""
    expected = _expected_shape(model, name, weight)
    if weight.shape != expected:
        raise other_shape(name, weight.shape, expected, f"'{model.config.name_or_path}'")


def _expected_shape(model: Any, name: str, weight: Tensor) -> torch.Size:
    """Returns the shape of a parameter in the model; its own if it is sharded or packed already."""
    path, _, own = name.rpartition(".")
    parameter = own_parameters(model.get_submodule(path)).get(own)
    return weight.shape if parameter is None or isinstance(parameter, DTensor) else parameter.shape


def settle_missing(model: Any, missing: Collection[str]) -> None:
    """Handles parameters of packed layers that no file has; transformers leaves them undefined.

    Args:
        model: model after its weights have been read.
        missing: names of tensors that no file has.

    Raises:
        CheckpointError: if required tensors are missing.
    """
    packed = {x for x, module in model.named_modules() if isinstance(module, PackedOperator)}
    tied = {x for x, source in model.all_tied_weights_keys.items() if source not in missing}
    undefined = sorted(x for x in {*missing} - tied if x.rpartition(".")[0] in packed)
    if needed := exclude_matching(undefined, may_be_missing(model)):
        raise describe_missing(model, needed, f"'{model.config.name_or_path}'")
    for name in undefined:  # a bias
        nn.init.zeros_(model.get_parameter(name))


def pack_layers(
    model: nn.Module, group: Sequence[str], weight: Tensor, format: str, data_in: str | None
) -> list[PackedOperator]:
    """Replaces tied layers by their packed twins.

    Args:
        model: the model, changed in place.
        group: paths of the layers.
        weight: their shared float weight.
        format: format of the weight.
        data_in: format of the inputs of layers that have some; None leaves them float.
    Returns: the twins.

    Raises:
        ConfigError: if the weight has values that are not finite.
    """
    _check_finite(group[0], weight)
    known: KnownCodes = {}
    spec = _spec(format, data_in)
    shared, made = nn.Parameter(weight, requires_grad=False), []
    for path in group:
        module = model.get_submodule(path)
        own_parameters(module)["weight"] = shared
        make = stand_in_for(module)
        module = module if make is None else make(module)
        row = get_module_row(module)
        assert row.quantized is not None
        layer = row.quantized.from_float(module, spec)
        made.append(packed_module(layer, path, False, known))
        _put(model, path, made[-1])
    return made


def _check_finite(path: str, weight: Tensor) -> None:
    if not weight.isfinite().all():
        raise ConfigError(f"quantization_config: '{path}' has weights that are not finite.")


def _spec(format: str, data_in: str | None) -> QuantSpec:
    given = {"weight": format, "data_in": data_in}
    return QuantSpec().with_quantizers(
        **{operand: parse_format_string(text) for operand, text in given.items() if text}
    )


def pack_experts(
    model: nn.Module, name: str, path: str, weight: Tensor, format: str, data_in: str | None
) -> PackedOperator:
    """Packs a layer of fused experts, which `put_experts` installs.

    Args:
        model: the model.
        name: name of the parameter with the layer's weight.
        path: path of the layer.
        weight: values of the parameter.
        format: format of the weight.
        data_in: format of the inputs; None leaves them float.

    Raises:
        ConfigError: if the weight has values that are not finite.
    """
    _check_finite(path, weight)
    owner, _, own = name.rpartition(".")
    layer = expert_layer(model.get_submodule(owner), own, weight.detach(), {})
    row = get_class_row(ExpertLinear)
    assert row.quantized is not None
    return packed_module(row.quantized.from_float(layer, _spec(format, data_in)), path, False, {})


def put_experts(model: nn.Module, made: Mapping[str, PackedOperator]) -> None:
    """Replaces fused experts by packed layers after their other parameters have been read.

    Args:
        model: the model, changed in place.
        made: packed layers by path, from `pack_experts`.
    """
    for owner in dict.fromkeys(path.rpartition(".")[0] for path in made):
        module = model.get_submodule(owner)
        layers = {}
        for name, layer in matrices_by_parameter(module).items():
            layers[layer] = made[f"{owner}.{layer}"]
            bias = own_parameters(module).get(f"{name}_bias")
            if bias is not None:  # it had no data when the layer was packed
                own_parameters(layers[layer])["bias"] = bias
        _put(model, owner, FusedExperts.around(module, {}, layers))
