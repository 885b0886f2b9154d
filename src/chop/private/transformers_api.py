"""Private API of transformers.

Tested with transformers 5; `tests/private/test_fences.py` fails first if a name is missing.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MASKING, MODELING, GENERIC = (
    "transformers.masking_utils",
    "transformers.modeling_utils",
    "transformers.utils.generic",
)
"""Modules that a capture patches where they are imported."""
LOAD_REPORT = "LOAD REPORT"
"""Marker of transformers' logged table of tensors that were not loaded."""
FAILED_CONVERSION = re.compile(r"^(\S+) *\|.*CONVERSION", re.MULTILINE)
EXPERTS = "_experts_implementation_internal"
"""Configuration attribute that selects the experts implementation."""
FIND_PACKED = "find_packed_sequence_indices"
VMAP_EXPANSION = "_vmap_expansion_sdpa"
VMAP_CONTEXT = "TransformGetItemToIndex"
IGNORE_CAUSAL_MASK = "_ignore_causal_mask_sdpa"
PREPARE_PADDING_MASK = "prepare_padding_mask"
PREPROCESS = "_preprocess_mask_arguments"
MASKING_NAMES = (
    *(FIND_PACKED, VMAP_EXPANSION, VMAP_CONTEXT, IGNORE_CAUSAL_MASK, PREPARE_PADDING_MASK),
    PREPROCESS,
)
"""Names that a capture replaces in `MASKING`."""
MAYBE_AUTOCAST = "maybe_autocast"
"""Name that a capture replaces in `GENERIC` and in modules that import it."""


class GenerateNotices:
    """Base of caches with a method that runs when `generate` receives the cache a second time."""

    def on_second_generate(self) -> None:
        """Runs before the second and each later `generate` with this cache."""
        raise NotImplementedError

    @property
    def _is_user_defined(self) -> bool:
        """True after a `generate` has received the cache."""
        return bool(vars(self).get("is_received", False))

    @_is_user_defined.setter
    def _is_user_defined(self, value: bool) -> None:
        if self._is_user_defined:
            self.on_second_generate()
        vars(self)["is_received"] = value


def broadcast_grid(masking: Any, indices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns indices of batch, head, query and key, each along its own axis."""
    grid: Sequence[Tensor] = masking._non_vmap_expansion_sdpa(*indices)
    return grid


def attention_functions(modeling: Any) -> dict[str, Callable[..., Any]]:
    """Returns the attention functions by name, as the table that all models use."""
    functions: dict[str, Callable[..., Any]] = modeling.AttentionInterface._global_mapping
    return functions


def attention_name(config: Any) -> str:
    """Returns the name of the attention function that a configuration selects."""
    return str(config._attn_implementation)


def is_of_flex_attention(model: Any) -> bool:
    """Returns whether the configuration of a model or one of its layers selects flex_attention."""
    config = getattr(model, "config", None)
    return getattr(config, "_attn_implementation", None) == "flex_attention"


def set_attention_name(config: Any, name: str) -> None:
    """Selects an attention function in a configuration without validation."""
    config._attn_implementation = name


def get_constructor(model_class: Any) -> Callable[..., Any]:
    """Returns the function that builds a model from a configuration, for auto and model classes."""
    make: Callable[..., Any] = getattr(model_class, "from_config", None) or model_class._from_config
    return make


def is_model_class(value: Any) -> bool:
    """Returns whether a value is a model class or an auto class."""
    from transformers import PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    bases = PreTrainedModel, _BaseAutoModelClass
    return isinstance(value, type) and issubclass(value, bases) and value not in bases


def tied_keys(model: Any) -> Any:
    """Returns the tied weights of a model's class: a dict of target and source, a list, or None."""
    return model._tied_weights_keys


def set_tied_keys(model: Any, keys: dict[str, str]) -> None:
    """Replaces the tied weights that a model declares."""
    model._tied_weights_keys = keys


def has_loaded_adapters(model: Any) -> bool:
    """Returns whether a model has loaded peft adapters, which it then saves without its weights."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def dtype_plan(model: Any, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Returns parameter-name pattern -> dtype that a model keeps in any loading dtype."""
    plan: dict[str, torch.dtype] = model._get_dtype_plan(dtype)
    return plan


def float32_patterns(model: Any) -> Any:
    """Returns patterns of modules that stay in float32 under bfloat16 and float16, or None."""
    return model._keep_in_fp32_modules_strict


def set_float32_patterns(model: Any, patterns: Any) -> None:
    """Sets the patterns returned by `float32_patterns`."""
    model._keep_in_fp32_modules_strict = patterns


@contextmanager
def without_load_report() -> Iterator[list[str]]:
    """Context manager that suppresses transformers' table of tensors that were not loaded.

    Other warnings are printed. The caller has to report the content of the table.

    Yields: the tables as they are logged.
    """
    logger, tables = logging.getLogger(MODELING), list[str]()

    def is_other(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if LOAD_REPORT in text:
            tables.append(text)
        return LOAD_REPORT not in text

    logger.addFilter(is_other)
    try:
        yield tables
    finally:
        logger.removeFilter(is_other)


def failed_conversions(tables: Sequence[str]) -> str | None:
    """Returns the tensors that could not be assembled from those in the files, or None.

    Args:
        tables: tables of `without_load_report`.
    """
    names = [x for table in tables for x in FAILED_CONVERSION.findall(table)]
    if not names:
        return None
    return f"the parts of '{names[0]}' are incomplete or differ in size"


def gguf_splits() -> dict[str, str]:
    """Returns the pre-tokenizer patterns of transformers by `tokenizer.ggml.pre`."""
    from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

    return dict(mapping.GGUF_PRE_TOKENIZER_SPLITS)


def watch_unread(model: Any, on_read: Callable[[Any], None]) -> None:
    """Calls a function with the unmatched keys after transformers has loaded a model's weights.

    Args:
        model: model to load.
        on_read: receives the `missing_keys` and `unexpected_keys` of `from_pretrained`.
    """
    name = "_adjust_missing_and_unexpected_keys"
    adjust = getattr(model, name)

    def adjust_and_report(loading_info: Any) -> None:
        vars(model).pop(name)
        adjust(loading_info)
        on_read(loading_info)

    vars(model)[name] = adjust_and_report


def may_be_missing(model: Any) -> Any:
    """Returns patterns of tensors that a checkpoint may lack, or None."""
    return model._keys_to_ignore_on_load_missing


def may_be_unexpected(model: Any) -> Any:
    """Returns patterns of tensors that only a checkpoint may have, or None."""
    return model._keys_to_ignore_on_load_unexpected


def ignore_unexpected(model: Any, pattern: str) -> None:
    """Adds a pattern of tensors that only a checkpoint may have."""
    model._keys_to_ignore_on_load_unexpected = {*(may_be_unexpected(model) or ()), pattern}


def wrap_resized(wrap: Callable[[Any, Any, Callable[..., Any]], Any]) -> None:
    """Replaces how a model resizes its embedding and output layer for a new vocabulary.

    Args:
        wrap: takes the model, the layer, and transformers' function for the resized layer, and
            returns the new layer.
    """
    from transformers.modeling_utils import PreTrainedModel

    model: Any = PreTrainedModel

    def wrapped(make: Any) -> Any:
        @functools.wraps(make)
        def resized(self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
            return wrap(self, layer, lambda old: make(self, old, *args, **kwargs))

        return resized

    for name in ("_get_resized_embeddings", "_get_resized_lm_head"):
        setattr(model, name, wrapped(getattr(model, name)))


EXPERT_TRAITS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm")
"""Attributes by which experts in transformers describe themselves."""
EXPERT_PARALLEL = "_is_expert_parallel"
APPLY_GATE = "_apply_gate"
DISPATCH = "get_interface"
"""Function called by the forward of classes under `use_experts_implementation`."""


@dataclass(frozen=True)
class ExpertTraits:
    """Matrix layout of a fused-experts module.

    Attributes:
        has_gate: True if the first matrix is `gate_up_proj`, False for `up_proj`.
        has_bias: True if each matrix has a bias, named with `_bias`.
        is_transposed: True for matrices of shape (inputs, outputs).
    """

    has_gate: bool
    has_bias: bool
    is_transposed: bool


def expert_traits(module: Any) -> ExpertTraits | None:
    """Returns the traits of fused experts that use transformers' experts interface.

    Returns None for other modules, for experts followed by a norm, and for a subset of the experts.
    """
    own = vars(module)
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    if code is None or DISPATCH not in code.co_names or "forward" in own:
        return None
    if not all(name in own for name in (*EXPERT_TRAITS, EXPERT_PARALLEL)):
        return None
    if own["has_post_expert_norm"] or own[EXPERT_PARALLEL]:
        return None
    return ExpertTraits(*(bool(own[name]) for name in EXPERT_TRAITS[:3]))


def apply_gate(experts_class: Any, module: Any, x: Tensor) -> Tensor:
    """Applies the gate of an experts class to the result of the first matrix.

    Args:
        experts_class: the class.
        module: provides the attributes of an instance.
        x: (..., 2 * intermediate size).
    Returns: (..., intermediate size).
    """
    gate: Callable[..., Tensor] = getattr(experts_class, APPLY_GATE)
    return gate(module, x)


def is_stack_of_experts(converter: Any) -> bool:
    """Returns whether a `WeightConverter` stacks the matrices of experts."""
    from transformers.core_model_loading import Concatenate, MergeModulelist

    operations = converter.operations
    if [type(x) for x in operations] not in ([MergeModulelist], [MergeModulelist, Concatenate]):
        return False
    is_of_experts = all("experts." in pattern for pattern in converter.source_patterns)
    return is_of_experts and [x.dim for x in operations] == [0, 1][: len(operations)]


def conversion_rules(model: Any) -> tuple[list[Any], list[Any]]:
    """Returns the rules that map file tensors to model tensors: renamings and conversions."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    entries = get_model_conversion_mapping(model)
    renamings = [x for x in entries if isinstance(x, WeightRenaming)]
    return renamings, [x for x in entries if isinstance(x, WeightConverter)]


def tensors_in_files(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors that transformers writes to files for some of a model's tensors.

    Args:
        model: any model of transformers.
        tensors: tensors by name in the model.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(tensors)))


def renamed_source(
    name: str, rules: tuple[list[Any], list[Any]], prefix: str, known: Mapping[str, Any]
) -> tuple[str, str | None]:
    """Returns the model name of a file tensor, and the pattern of its conversion or None.

    Args:
        name: name in the files.
        rules: result of `conversion_rules`.
        prefix: `base_model_prefix` of the model.
        known: the state dict of the model.
    """
    from transformers.core_model_loading import rename_source_key

    source: tuple[str, str | None] = rename_source_key(name, *rules, prefix, known)
    return source
