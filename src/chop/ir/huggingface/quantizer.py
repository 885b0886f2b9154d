"""`quant_method: chop` in transformers: loads packed folders, and quantizes float ones.

This module contains all uses of private API of transformers 5: `ConversionOps`, module replacement
by a quantizer's operation, `all_tied_weights_keys`, and the tensors that are always read in
float32, `_keep_in_fp32_modules_strict` and `_get_dtype_plan`. `tests/ir/test_hf_folder.py` fails
first if it changes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from chop.base.notices import get_logger
from chop.errors import ChopError, ConfigError, describe, did_you_mean
from chop.ir.huggingface.conversions import names_in
from chop.private.transformers_api import (
    dtype_plan,
    float32_patterns,
    has_loaded_adapters,
    ignore_unexpected,
    set_float32_patterns,
    watch_unread,
)

if TYPE_CHECKING:
    from chop.ir.huggingface.loading import Tied
    from chop.ir.huggingface.stored import StoredModule
    from chop.ir.huggingface.unread import Unread
    from chop.nn.packed import PackedOperator

METHOD = "chop"
SETTINGS = ("format", "data_in", "operators", "overrides", "skip", "skip_vision")
KEYS = (*SETTINGS, "modules", "quant_method")
log = get_logger(__name__)


@register_quantization_config(METHOD)
class ChopConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """Quantization settings for `from_pretrained`, and the module formats stored in a folder.

    Args:
        format: weight format, as `chop.formats.parse_format_string` reads it, "mxint:width=4"; a
            number after the name is the width, "mxint4".
        data_in: format of inputs; None leaves them float.
        operators: one or several operators; all with a weight matrix or a table by default.
        overrides: weight formats by pattern, the first match wins. A pattern is a module's path or
            the end of one ("down_proj"), which includes its submodules, or a regular expression
            after "re:", as in compressed-tensors.
        skip: one or several patterns of modules that stay float with their submodules.
        skip_vision: leave a vision-language model's vision tower and projector float.
        modules: formats of each module by path, in a saved folder.
        quant_method: "chop".

    Raises:
        ConfigError: if a key, a format or an operator is unknown.

    Example:
        >>> ChopConfig("mxint4", overrides={"re:.*down_proj": "mxint8"}, skip="lm_head").format
        'mxint:width=4'
    """

    def __init__(
        self,
        format: str | None = None,
        *,
        data_in: str | None = None,
        operators: str | Sequence[str] | None = None,
        overrides: Mapping[str, str] | None = None,
        skip: str | Sequence[str] | None = None,
        skip_vision: bool = False,
        modules: Mapping[str, Any] | None = None,
        quant_method: str = METHOD,
        **unknown: Any,
    ) -> None:
        if unknown:
            key = min(unknown)
            raise ConfigError(
                f"quantization_config: unknown key '{key}': {did_you_mean(key, KEYS)}"
            )
        from chop.formats.recipe import Recipe, coded
        from chop.ir.huggingface.stored import StoredModule

        if quant_method != METHOD:
            raise ConfigError(
                f"quantization_config.quant_method: expected '{METHOD}', got "
                f"{describe(quant_method)}."
            )
        self.quant_method = quant_method
        self.format = None if format is None else coded(str(format), "quantization_config")
        self.data_in = None if data_in is None else _with_width(data_in)
        self.operators = None if operators is None else _operators(operators)
        recipe = Recipe.read(overrides, skip, "quantization_config")
        self.overrides, self.skip = dict(recipe.overrides), list(recipe.skip)
        if not isinstance(skip_vision, bool):
            raise ConfigError(f"quantization_config.skip_vision: got {describe(skip_vision)}.")
        self.skip_vision = skip_vision
        if (format is None) == (modules is None):
            raise ConfigError("quantization_config: expected a format, or the modules of a folder.")
        if modules is not None and not (modules and isinstance(modules, Mapping)):
            raise ConfigError(
                f"quantization_config.modules: expected formats by module path, got "
                f"{describe(modules)}."
            )
        self.modules: dict[str, StoredModule] = {
            path: StoredModule.read(plain, f"quantization_config.modules['{path}']")
            for path, plain in (modules or {}).items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data: the modules if they are known, otherwise the settings."""
        if self.modules:
            plain = {path: stored.plain() for path, stored in self.modules.items()}
            return {"quant_method": METHOD, "modules": plain}
        own = {name: getattr(self, name) for name in SETTINGS}
        return {"quant_method": METHOD, **{name: x for name, x in own.items() if x}}


def _with_width(text: str) -> str:
    """Parses and validates a format, and returns its text with named fields."""
    from chop.formats.format_strings import parse_format_string, with_width

    parse_format_string(text := with_width(str(text)))
    return text


def _operators(given: str | Sequence[str]) -> list[str]:
    from chop.formats.recipe import names_of_setting
    from chop.ir.ops import OPS

    names = list(names_of_setting(given, "quantization_config.operators"))
    if not names:
        raise ConfigError("quantization_config.operators: expected at least one, or None for all.")
    known = [row.name for row in OPS.values() if row.weight and row.quantized]
    for name in names:
        if name not in known:
            raise ConfigError(f"quantization_config.operators: {did_you_mean(name, known)}")
    return names


@register_quantizer(METHOD)
class ChopQuantizer(HfQuantizer):  # type: ignore[misc]
    """Installs packed layers in a transformers model before or while its weights are read.

    Args:
        quantization_config: a `ChopConfig`.
        kwargs: `pre_quantized`: True for a folder with packed modules.
    """

    quantization_config: ChopConfig

    def __init__(self, quantization_config: ChopConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.pre_quantized = bool(quantization_config.modules)
        self.tied: list[Tied] = []
        self.groups: dict[str, list[str]] = {}
        """For float weights: path of a layer -> layers tied to it, itself first."""
        self.formats: dict[str, str] = {}
        """For float weights: path of a layer -> format of its weight."""
        self.names: dict[str, str] = {}
        """For float weights: name of a weight -> path of its layer."""
        self.experts: dict[str, PackedOperator] = {}
        """For float weights: path -> expert layer that is packed already."""
        self.dtypes: dict[str, torch.dtype] = {}
        """For float weights: path of a layer -> its compute dtype."""
        self.refused: list[ChopError] = []
        """For float weights: errors, which transformers would not show."""
        self.missing: set[str] = set()
        """For float weights: names of tensors that no file has."""
        self.unread: Unread | None = None
        """For float weights: tensors that transformers has read, and those that it has not."""
        self._float32_names: Any = None

    def is_serializable(self) -> bool:
        """Returns True: a loaded model can be saved again."""
        return True

    @classmethod
    def attach(cls, model: Any) -> None:
        """Makes transformers write the formats of a model's layers when it saves the model."""
        config: Any = ChopConfig.__new__(ChopConfig)
        vars(config).update(quant_method=METHOD, modules={})
        vars(model)["hf_quantizer"] = cls(config)
        _add_tags(model)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[None, dict[str, str]]:
        """Updates the model's configuration with its present layers before it is written."""
        from chop.ir.huggingface.stored import stored_modules
        from chop.ir.huggingface.tying import settle_ties

        if has_loaded_adapters(model):  # only adapters are written
            return None, {}
        modules = stored_modules(model)
        settle_ties(model)
        _report_unpacked(model)
        if modules:
            plain = {path: stored.plain() for path, stored in modules.items()}
            self.quantization_config = ChopConfig(modules=plain)
            model.config.quantization_config = self.quantization_config
        elif hasattr(model.config, "quantization_config"):
            remove: Any = self.remove_quantization_config
            remove(model)
        return None, {}

    def dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        """Replaces quantized layers by float layers with the decoded weights.

        Args:
            model: the model, changed in place.
            dtype: dtype of the weights; None uses the compute dtype of each layer.

        Raises:
            ConfigError: if modules are not layers of the original model, such as experts.
        """
        from chop.ir.huggingface.card import TAGS
        from chop.ir.huggingface.dequantizing import decode_modules

        decode_modules(model, dtype)
        model.model_tags = [tag for tag in model.model_tags or () if tag not in TAGS] or None
        remove: Any = self.remove_quantization_config
        remove(model)
        return model

    @property
    def is_trainable(self) -> bool:
        """True: adapters around the layers, such as peft's, can be trained."""
        return True

    def param_needs_quantization(self, model: nn.Module, param_name: str, **kwargs: Any) -> bool:
        """Returns whether a float tensor is packed on reading."""
        return param_name in self.names

    def get_quantize_ops(self) -> ConversionOps:
        """Returns the operation that packs a float tensor."""
        return _PackWeight(self)

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        from chop.formats.recipe import Recipe
        from chop.ir.huggingface import chosen_layers, loading
        from chop.ir.huggingface.tying import drop_ties
        from chop.ir.huggingface.vision import check_has_vision
        from chop.ir.huggingface.weights import StoredTensors
        from chop.nn.quantized.running import RANGE_NAMES

        config, files = self.quantization_config, kwargs.get("checkpoint_files")
        if not self.pre_quantized:
            if files and all(str(file).endswith(".safetensors") for file in files):
                given = StoredTensors(model, files, names_in)
                given.check_float(model)
                drop_ties(model, given.differ)
            assert config.format is not None
            vision = check_has_vision(model, "skip_vision") if config.skip_vision else ()
            recipe = Recipe(config.overrides, (*config.skip, *vision))
            self.groups = chosen_layers.layers_to_pack(model, config.operators, recipe)
            self.formats = chosen_layers.list_formats(self.groups, config.format, recipe)
            self.names = chosen_layers.get_weights(model, self.groups)
            chosen_layers.warn_about_unreached(model, self.groups, recipe)
            watch_unread(model, self._keep_unread)
            self._read_in_float32(model, kwargs.get("dtype") or model.dtype)
            return
        stored = None if files is None else StoredTensors(model, files, names_in)
        self.tied = loading.put_modules(model, config.modules, stored)
        # Saved during training: the formats contain the fitted values.
        ignore_unexpected(model, rf"\.({'|'.join(RANGE_NAMES.values())})$")
        if stored is not None:
            stored.check_complete(model, loading.is_whole(model))

    def _keep_unread(self, info: Any) -> None:
        from chop.ir.huggingface.unread import Unread

        self.unread = Unread(info.missing_keys, info.unexpected_keys)

    def _read_in_float32(self, model: Any, dtype: torch.dtype) -> None:
        """Reads weights to be packed in float32; rounding to bfloat16 first would round twice."""
        plan = dtype_plan(model, dtype)
        for name, path in self.names.items():
            dtypes = (to for key, to in plan.items() if re.search(key.replace("*", ".*"), name))
            self.dtypes[path] = next(dtypes, model.get_parameter(name).dtype)
        self._float32_names = float32_patterns(model)
        pattern = f"^(?:{'|'.join(map(re.escape, self.names))})$"
        set_float32_patterns(model, {*(self._float32_names or ()), pattern})

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        from chop.ir.huggingface import loading
        from chop.ir.huggingface.stored import quantized_leaves, stored_modules
        from chop.ir.huggingface.tying import tie_codes
        from chop.nn.quantized.replicas import keep_ranges_local
        from chop.nn.quantized.state import add_ranges

        if not self.pre_quantized:
            set_float32_patterns(model, self._float32_names)
            if self.refused:
                raise self.refused[0]
            loading.settle_missing(model, self.missing)
            if self.unread is not None:  # transformers reports tensors that may remain
                self.unread.check(model, f"'{model.config.name_or_path}'")
        for layer in self.tied:
            layer.put(model)
        loading.put_experts(model, self.experts)
        self.experts = {}
        tie_codes(model)
        for _, module in quantized_leaves(model):
            add_ranges(module)
        keep_ranges_local(model)
        _add_tags(model)
        if not self.pre_quantized:  # the caller's settings may be used again
            self.quantization_config = copy.copy(self.quantization_config)
            self.quantization_config.modules = stored_modules(model)
            model.config.quantization_config = self.quantization_config
        return model


def _report_unpacked(model: nn.Module) -> None:
    """Logs how to write small files if weights with a format are still floats."""
    from chop.nn.packed import PackedOperator
    from chop.nn.quantized import QuantizedOperator

    layers = [
        module
        for module in model.modules()
        if isinstance(module, QuantizedOperator)
        and not isinstance(module, PackedOperator)
        and not module.spec.weight.is_identity
    ]
    if layers:
        log.warning(
            f"save_pretrained: the weights of {len(layers)} quantized layers are written as "
            "floats, as large as before. For small files, save the packed model: "
            "chop.passes.pack_transform_pass(chop.MaseGraph(model))[0].save_pretrained(folder)."
        )


def _add_tags(model: Any) -> None:
    """Adds tags to the card that `push_to_hub` of transformers writes."""
    from chop.ir.huggingface.card import TAGS

    present = model.model_tags or ()
    vars(model)["model_tags"] = [*dict.fromkeys([*present, *TAGS])]


class _PackWeight(ConversionOps):  # type: ignore[misc]
    """Replaces a layer by its packed twin when its weight has been read.

    Args:
        quantizer: quantizer of the model.
    """

    def __init__(self, quantizer: ChopQuantizer) -> None:
        self.quantizer = quantizer

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: Sequence[str] = (),
        target_patterns: Sequence[str] = (),
        *,
        full_layer_name: str = "",
        model: Any = None,
        missing_keys: set[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Packs the layer and the layers tied to it; nothing remains to be loaded.

        Args:
            input_dict: the weight, by name.
            source_patterns: names in the file.
            target_patterns: names in the model.
            full_layer_name: name of the weight in the model.
            model: the model.
            missing_keys: names still to be loaded; modified.
            kwargs: other arguments of transformers.
        """
        from chop.ir.huggingface import loading

        missing = set() if missing_keys is None else missing_keys
        self.quantizer.missing = missing
        weight = next(iter(input_dict.values()))
        weight = weight[0] if isinstance(weight, list) else weight
        if loading.is_resized_head(model, full_layer_name, weight):
            del self.quantizer.names[full_layer_name]
            return {full_layer_name: weight}
        try:
            self._pack(model, full_layer_name, weight, missing)
        except ChopError as error:  # transformers would replace it by its own message
            self.quantizer.refused.append(error)
            missing.discard(full_layer_name)
        return {}

    def _pack(self, model: Any, full_layer_name: str, weight: Any, missing: set[str]) -> None:
        from chop.ir.huggingface import loading

        loading.check_shape(model, full_layer_name, weight)
        config, path = self.quantizer.quantization_config, self.quantizer.names[full_layer_name]
        group, format = self.quantizer.groups[path], self.quantizer.formats[path]
        data_in = config.data_in
        if full_layer_name != f"{path}.weight":
            layer = loading.pack_experts(model, full_layer_name, path, weight, format, data_in)
            made, self.quantizer.experts[path] = [layer], layer
        else:
            loading.check_untouched(model, group, weight)
            made = loading.pack_layers(model, group, weight, format, data_in)
        for module in made:
            module.packed_dtype = self.quantizer.dtypes[path]
        missing.discard(full_layer_name)
        for name in group:
            missing.discard(f"{name}.weight")
            model.all_tied_weights_keys.pop(f"{name}.weight", None)
