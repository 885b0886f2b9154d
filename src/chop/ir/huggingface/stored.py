"""Conversion of quantized modules to plain data, and back on a model without weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from chop.captured.joined import joined_names
from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.layers.experts import FusedExperts
from chop.captured.overrides import why_not_its_class
from chop.config import parse
from chop.errors import ConfigError, did_you_mean
from chop.formats import OPERANDS, NumberFormat, QuantSpec
from chop.formats.parsing import parse_format, stored_settings
from chop.ir.huggingface.layers import list_extra_layers
from chop.ir.ops import get_module_row, stand_in_for
from chop.nn.hadamard import Hadamard, Rotated
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedOperator
from chop.nn.packed.base import KnownCodes
from chop.nn.packed.packing import packed_class
from chop.nn.quantized import QuantizedOperator, leaf_operators
from chop.nn.quantized.masks import MASK_BUFFERS
from chop.nn.quantized.running import RANGE_NAMES
from chop.nn.transposed import stores_transposed
from chop.private.modules import own_buffers, own_parameters, set_members

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class StoredModule:
    """Quantized or rotated module in a folder: its formats, and whether it is packed.

    Attributes:
        data_in: format of its inputs, as a mapping with `name` and its fields; None leaves them
            float.
        weight: format of its weight.
        bias: format of its bias.
        data_out: format of its results.
        packed: True if its parameters are stored as codes.
        exact: see `chop.nn.packed.pack`.
        rotation: block size by which a `Rotated` rotates its input; 0 for other modules.
        gradient: gradient rule, see `QuantSpec`; "" for the straight-through estimator. Learned
            scales ("lsq") are tensors of the folder.
    """

    data_in: Settings | None = None
    weight: Settings | None = None
    bias: Settings | None = None
    data_out: Settings | None = None
    packed: bool = field(default=False)
    exact: bool = field(default=False)
    rotation: int = field(default=0)
    gradient: str = field(default="")

    @classmethod
    def of(cls, module: QuantizedOperator, path: str) -> StoredModule:
        """Describes a module for a folder.

        Raises:
            ConfigError: if formats cannot describe it.
        """
        if isinstance(module, LoraLinear):
            raise ConfigError(
                f"save_pretrained: '{path}' has a LoRA adapter; fuse it with "
                "fuse_lora_weights_transform_pass first."
            )
        if "base_layer" in path.split("."):
            raise ConfigError(
                f"save_pretrained: '{path}' has a PEFT adapter around it; "
                "merge_and_unload() gives a model without, and its own save_pretrained writes the "
                "adapter."
            )
        if module.function is not None:
            raise ConfigError(
                f"save_pretrained: '{path}' quantizes products of an attention, which a folder "
                "cannot store; leave them float, or use mg.export."
            )
        if stores_transposed(module) and not isinstance(module, PackedOperator):
            raise ConfigError(
                f"save_pretrained: '{path}' is quantized and not packed, and its weight is "
                "transposed in the model; run pack_transform_pass first."
            )
        learned = module.spec.lsq_operands
        formats = {
            name: module.spec.number_format(name)
            if name in learned
            else module.operand_format(name)
            for name in OPERANDS
        }
        plain: dict[str, Any] = {name: _plain(x, f"'{path}'.{name}") for name, x in formats.items()}
        if module.spec.gradient != "identity":
            plain["gradient"] = module.spec.gradient
        if isinstance(module, PackedOperator):
            return cls(**plain, packed=True, exact=module.packed_exact)
        return cls(**plain)

    @classmethod
    def read(cls, plain: Any, where: str) -> StoredModule:
        """Reads a mapping from a file.

        Raises:
            ConfigError: if a key or a format is unknown, or a value has another type.
        """
        if not isinstance(plain, Mapping):
            raise ConfigError(f"{where}: expected a mapping, got {plain!r}.")
        stored = parse(cls, dict(plain), where)
        stored.spec(where)
        return stored

    def spec(self, where: str) -> QuantSpec:
        """Returns the formats.

        Raises:
            ConfigError: if one is unknown, or its fields do not fit.
        """
        given = {name: getattr(self, name) for name in OPERANDS}
        formats = {name: parse_format(x, f"{where}.{name}") for name, x in given.items() if x}
        for name in ("weight", "bias"):
            if name in formats and not formats[name].is_fitted:
                raise ConfigError(
                    f"{where}.{name}: {formats[name].label} needs calibration data, which a folder "
                    "does not have; expected numbers."
                )
        fields: dict[str, Any] = {**formats, "gradient": self.gradient or "identity"}
        return replace(QuantSpec(), **fields)

    def plain(self) -> dict[str, Any]:
        """Returns plain data for a file; missing entries mean float, not packed and not exact."""
        return {name: x for name in self.__dataclass_fields__ if (x := getattr(self, name))}


def _plain(quantizer: Any, where: str) -> Settings | None:
    if not isinstance(quantizer, NumberFormat):
        raise ConfigError(
            f"save_pretrained: {where} has {quantizer.label} in the place of a format."
        )
    return None if quantizer.is_identity else stored_settings(quantizer)


def stored_modules(model: nn.Module) -> dict[str, StoredModule]:
    """Returns the rotated and quantized modules of a model, by path; tied ones at each path.

    A rotated module precedes the layer in it.

    Raises:
        ConfigError: if formats cannot describe a module.
    """
    for path, module in model.named_modules():
        _check_experts(module, path)
        parts = module.children() if joined_names(module) else ()
        layers = [x for x in parts if isinstance(x, QuantizedOperator) and not x.spec.is_float]
        if layers and not any(isinstance(x, PackedOperator) for x in layers):
            raise ConfigError(
                f"save_pretrained: the projections of '{path}' are quantized and not packed, and "
                "share one weight in the model; run pack_transform_pass first."
            )
    rotated = {
        path: StoredModule(rotation=module.rotation.block)
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Rotated)
    }
    return rotated | {
        path: StoredModule.of(module, path)
        for path, module in quantized_leaves(model)
        if _has_formats(module)
    }


def _check_experts(module: nn.Module, path: str) -> None:
    """Raises ConfigError if only one of the two matrices of experts would be stored as codes."""
    if not isinstance(module, FusedExperts):
        return
    layers = [x for x in module.children() if isinstance(x, ExpertLinear)]
    if len({isinstance(x, PackedOperator) for x in layers}) > 1:
        raise ConfigError(
            f"save_pretrained: one of the two layers of the experts '{path}' is packed and one is "
            "not; pack both or neither, or use mg.export."
        )


def has_formats(model: nn.Module) -> bool:
    """Returns whether a model has quantized or rotated modules or adapters to describe."""
    return any(
        isinstance(module, Rotated)
        or (isinstance(module, QuantizedOperator) and _has_formats(module))
        for module in model.modules()
    )


def _has_formats(module: QuantizedOperator) -> bool:
    return not module.spec.is_float or isinstance(module, PackedOperator | LoraLinear)


def quantized_leaves(model: nn.Module) -> Iterator[tuple[str, QuantizedOperator]]:
    """Returns the quantized operators of a model, by path."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QuantizedOperator):
            yield path, module


def drop_masks(model: nn.Module) -> None:
    """Removes the masks of pruned layers and sets the masked weights to zero.

    Also fixes formats fitted by training, and removes observed ranges.
    """
    for module in leaf_operators(model).values():
        module.take_spec(module.spec.with_quantizers(**module.fits))
        for name in (*MASK_BUFFERS, *RANGE_NAMES.values()):
            own_buffers(module).pop(name, None)


def quantized_module(
    module: nn.Module, stored: StoredModule, path: str, known: KnownCodes
) -> QuantizedOperator:
    """Builds the quantized module that a folder describes from its float module.

    Args:
        module: the model's own module; on the meta device nothing is computed.
        stored: description in the folder.
        path: path of the module, for messages.
        known: codes of tied weights; read and extended.

    Raises:
        ConfigError: if the module has no such form.
    """
    make = stand_in_for(module)
    module = module if make is None else make(module)
    row, reason = get_module_row(module), why_not_its_class(module)
    if reason is not None:
        raise ConfigError(f"quantization_config: '{path}' cannot be quantized: {reason}.")
    if row.quantized is None:
        raise ConfigError(
            f"quantization_config: '{path}' is a {type(module).__name__}, which has no quantized "
            "form."
        )
    spec = stored.spec(f"quantization_config.modules['{path}']")
    layer = row.quantized.from_float(module, spec)
    for name in RANGE_NAMES.values():  # until the weights are read; a folder has none
        own_buffers(layer).pop(name, None)
    return packed_module(layer, path, stored.exact, known) if stored.packed else layer


def rotated_module(module: nn.Module, stored: StoredModule, path: str) -> Rotated:
    """Builds the rotated layer that a folder describes.

    Raises:
        ConfigError: if it is not a linear layer, or has no such rotation.
    """
    if not isinstance(module, nn.Linear) or stored != StoredModule(rotation=stored.rotation):
        raise ConfigError(
            f"quantization_config: '{path}' is a {type(module).__name__}, expected a linear layer, "
            "with only a rotation."
        )
    try:
        rotation = Hadamard(module.in_features, stored.rotation)
    except ConfigError as error:
        raise ConfigError(f"quantization_config: '{path}': {error}") from None
    return Rotated(rotation, module)


def packed_module(
    layer: QuantizedOperator, path: str, exact: bool, known: KnownCodes
) -> PackedOperator:
    """Packs a layer without trainable codes; adapters around it can be trained.

    Raises:
        ConfigError: if it cannot be packed.
    """
    cls, weight = packed_class(layer), layer.spec.weight
    if cls is None or weight.is_identity or not weight.is_fitted:
        raise ConfigError(
            f"quantization_config: '{path}' is a {type(layer).__name__} with its weight in "
            f"{weight.label}, which cannot be packed."
        )
    try:
        twin = cls.of(layer, known, exact)
    except RuntimeError:  # the format needs values, which do not exist yet
        if not layer.weight.is_meta:
            raise
        twin = _pack_zeros(cls, layer, exact)
    twin.packed_trainable = ()
    # transformers would initialize the weight of a linear layer.
    vars(twin)["_is_hf_initialized"] = True
    return twin


def _pack_zeros(cls: type[PackedOperator], layer: QuantizedOperator, exact: bool) -> PackedOperator:
    """Returns a packed layer on the meta device, with the layout of the codes of zeros."""
    parameters = {
        name: x if x is None else nn.Parameter(torch.zeros_like(x, device="cpu"))
        for name, x in own_parameters(layer).items()
    }
    set_members(layer, parameters)
    return cls.of(layer, {}, exact).to("meta")


def resolve(model: nn.Module, path: str, prefix: str) -> str | None:
    """Returns the path of a saved module in a model that may be its body, or may contain it.

    Args:
        model: the model.
        path: path in the saved model.
        prefix: name of the body, `base_model_prefix`.
    Returns: None if the model has no such module.
    """
    present = dict(model.named_modules(remove_duplicate=False))
    candidates = (path, path.removeprefix(f"{prefix}."), f"{prefix}.{path}")
    return next((name for name in candidates if name in present), None)


def missing_module(model: nn.Module, path: str) -> ConfigError:
    """Returns the error for a module that the model lacks."""
    kind = type(model).__name__
    if list_extra_layers(model, [f"{path}."]):
        return ConfigError(
            f"config.json: its {kind} has no module '{path}', because it has fewer layers than its "
            "quantization_config names: correct the number of layers, such as num_hidden_layers."
        )
    near = did_you_mean(path, [name for name, _ in model.named_modules() if name])
    return ConfigError(f"quantization_config: {kind} has no module '{path}': {near}")
