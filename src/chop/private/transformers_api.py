"""Fence around transformers' private API.

Known for transformers 5; `tests/private/test_fences.py` fails first where a name is gone.
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
"""The modules that a capture patches, where they are imported."""
LOAD_REPORT = "LOAD REPORT"
"""In the table that transformers logs of tensors that were not read."""
FAILED_CONVERSION = re.compile(r"^(\S+) *\|.*CONVERSION", re.MULTILINE)
EXPERTS = "_experts_implementation_internal"
"""The attribute of a configuration that names how experts are called."""
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
"""What a capture replaces in `MASKING`."""
MAYBE_AUTOCAST = "maybe_autocast"
"""What a capture replaces in `GENERIC` and in the modules that import it."""


def broadcast_grid(masking: Any, indices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Indices of batch, head, query and key, each along an axis of its own."""
    grid: Sequence[Tensor] = masking._non_vmap_expansion_sdpa(*indices)
    return grid


def attention_functions(modeling: Any) -> dict[str, Callable[..., Any]]:
    """Attention functions by name; the table that every model reads."""
    functions: dict[str, Callable[..., Any]] = modeling.AttentionInterface._global_mapping
    return functions


def attention_name(config: Any) -> str:
    """The name of the attention function that a configuration asks for."""
    return str(config._attn_implementation)


def is_of_flex_attention(model: Any) -> bool:
    """Whether a model, or a layer of one, has a configuration that asks for flex_attention."""
    config = getattr(model, "config", None)
    return getattr(config, "_attn_implementation", None) == "flex_attention"


def set_attention_name(config: Any, name: str) -> None:
    """Makes models of a configuration call the attention function of this name, unchecked."""
    config._attn_implementation = name


def get_constructor(model_class: Any) -> Callable[..., Any]:
    """What makes a model from a configuration: of an auto class, or of a class of models."""
    make: Callable[..., Any] = getattr(model_class, "from_config", None) or model_class._from_config
    return make


def is_model_class(value: Any) -> bool:
    """Returns whether something is a class of models, or an auto class that chooses one."""
    from transformers import PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    bases = PreTrainedModel, _BaseAutoModelClass
    return isinstance(value, type) and issubclass(value, bases) and value not in bases


def tied_keys(model: Any) -> Any:
    """What a model's class says of tied weights: a dict of target and source, a list, or None."""
    return model._tied_weights_keys


def set_tied_keys(model: Any, keys: dict[str, str]) -> None:
    """Makes a model say other things of its tied weights."""
    model._tied_weights_keys = keys


def has_loaded_adapters(model: Any) -> bool:
    """Whether a model has adapters of peft, which it saves alone."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def dtype_plan(model: Any, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The dtypes, by pattern of a parameter's name, that a model keeps whatever it is loaded in."""
    plan: dict[str, torch.dtype] = model._get_dtype_plan(dtype)
    return plan


def kept_in_float32(model: Any) -> Any:
    """Patterns of the modules that stay in float32 in bfloat16 and float16 too, or None."""
    return model._keep_in_fp32_modules_strict


def keep_in_float32(model: Any, patterns: Any) -> None:
    """Sets what `kept_in_float32` gives."""
    model._keep_in_fp32_modules_strict = patterns


@contextmanager
def without_load_report() -> Iterator[list[str]]:
    """Inside, transformers does not print its table of tensors that were not read.

    All else that it warns of is printed. The caller has to say what the table would.

    Yields: the tables, as they come.
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
    """Names the tensors that could not be joined from those of files; None: no table says so.

    Args:
        tables: tables of `without_load_report`.
    """
    names = [x for table in tables for x in FAILED_CONVERSION.findall(table)]
    if not names:
        return None
    return f"the parts of '{names[0]}' are incomplete or differ in size"


def gguf_splits() -> dict[str, str]:
    """The expressions that transformers parts texts by, by `tokenizer.ggml.pre`."""
    from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

    return dict(mapping.GGUF_PRE_TOKENIZER_SPLITS)


def watch_unread(model: Any, on_read: Callable[[Any], None]) -> None:
    """Calls a function with what is left when transformers has read the weights of a model.

    Args:
        model: model to be read.
        on_read: takes the `missing_keys` and `unexpected_keys` of `from_pretrained`.
    """
    name = "_adjust_missing_and_unexpected_keys"
    adjust = getattr(model, name)

    def adjust_and_report(loading_info: Any) -> None:
        vars(model).pop(name)
        adjust(loading_info)
        on_read(loading_info)

    vars(model)[name] = adjust_and_report


def may_be_missing(model: Any) -> Any:
    """Patterns of the tensors that a checkpoint may lack, or None."""
    return model._keys_to_ignore_on_load_missing


def may_be_unexpected(model: Any) -> Any:
    """Patterns of the tensors that only a checkpoint may have, or None."""
    return model._keys_to_ignore_on_load_unexpected


def ignore_unexpected(model: Any, pattern: str) -> None:
    """Adds a pattern of the tensors that only a checkpoint may have."""
    model._keys_to_ignore_on_load_unexpected = {*(may_be_unexpected(model) or ()), pattern}


def wrap_resized(wrap: Callable[[Any, Any, Callable[..., Any]], Any]) -> None:
    """Replaces how a model makes its table and its output layer for a vocabulary of another size.

    Args:
        wrap: takes (the model, the layer, a function that makes the layer of transformers from it)
            and gives the new layer.
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
"""What transformers' experts say of themselves, as attributes of the instance."""
EXPERT_PARALLEL = "_is_expert_parallel"
APPLY_GATE = "_apply_gate"
DISPATCH = "get_interface"
"""What the forward calls that `use_experts_implementation` gives to a class of experts."""


@dataclass(frozen=True)
class ExpertTraits:
    """How a module of fused experts lays out its matrices.

    Attributes:
        has_gate: the first matrix is `gate_up_proj`, else `up_proj`.
        has_bias: each matrix has a bias, of its name with `_bias`.
        is_transposed: matrices are (inputs, outputs).
    """

    has_gate: bool
    has_bias: bool
    is_transposed: bool


def expert_traits(module: Any) -> ExpertTraits | None:
    """The traits of fused experts that go through transformers' experts interface.

    None of all other modules, of experts with a norm behind them, and of a part of the experts.
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
    """What a class of gated experts makes of the result of the first matrix.

    Args:
        experts_class: the class.
        module: has the attributes of its instances.
        x: (..., 2 * intermediate size).
    Returns: (..., intermediate size).
    """
    gate: Callable[..., Tensor] = getattr(experts_class, APPLY_GATE)
    return gate(module, x)


def is_stack_of_experts(converter: Any) -> bool:
    """Whether a `WeightConverter` stacks matrices of experts, of each one below the other."""
    from transformers.core_model_loading import Concatenate, MergeModulelist

    operations = converter.operations
    if [type(x) for x in operations] not in ([MergeModulelist], [MergeModulelist, Concatenate]):
        return False
    is_of_experts = all("experts." in pattern for pattern in converter.source_patterns)
    return is_of_experts and [x.dim for x in operations] == [0, 1][: len(operations)]


def conversion_rules(model: Any) -> tuple[list[Any], list[Any]]:
    """The rules by which tensors of files become those of a model: renamings, and conversions."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    entries = get_model_conversion_mapping(model)
    renamings = [x for x in entries if isinstance(x, WeightRenaming)]
    return renamings, [x for x in entries if isinstance(x, WeightConverter)]


def renamed_source(
    name: str, rules: tuple[list[Any], list[Any]], prefix: str, known: Mapping[str, Any]
) -> tuple[str, str | None]:
    """The name in a model of a tensor of files, and the pattern of its conversion, or None.

    Args:
        name: in the files.
        rules: result of `conversion_rules`.
        prefix: `base_model_prefix` of the model.
        known: the state dict of the model.
    """
    from transformers.core_model_loading import rename_source_key

    found: tuple[str, str | None] = rename_source_key(name, *rules, prefix, known)
    return found
