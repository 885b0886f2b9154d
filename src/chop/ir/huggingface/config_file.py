"""Validation of config.json before a library builds a model from it.

transformers builds the model, without data, before it reads the weights. A hidden size of a billion
would exhaust the memory, and as many layers or labels would take forever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from chop.base.files.documents import read_json
from chop.base.notices import warn_once
from chop.base.trust import TRUST, is_trusted
from chop.errors import ConfigError, did_you_mean
from chop.ir.huggingface.folder_files import check_folder_files
from chop.ir.storage.configs import IMPLEMENTATIONS, is_installed_implementation

CONFIG = "config.json"
KV_SCALES = "kv_cache_scales"
"""Field of a config: static FP8 scales of a key-value cache, `keys` and `values` by layer."""
SIZES = re.compile(
    r"((hidden|intermediate|vocab|embedding|embed|ffn|inner|model|head|projection)_?(sizes?|dims?)"
    r"|n_embd|n_inner|d_model|d_ff|d_kv|dim)$"
)
"""Fields with weight dimensions, each of which takes at least a bit."""
COUNTS = {
    re.compile(r"(layers?|heads?|blocks?|depths?|groups?)$"): 2**14,
    re.compile(r"(num_labels|num_classes)$"): 2**20,
    re.compile(r"(image_size|patch_size|num_channels)$"): 2**14,
    re.compile(r"(position_embeddings|n_positions|n_ctx|max_length)$"): 2**27,
}
"""Upper limits of other numbers."""
LEAST_BITS, MOST_BITS = 2**23, 2**31
"""Number of bits assumed for a small weight file, and for a folder without weights."""

DTYPES = ("bfloat16", "float16", "float32")
"""Common dtypes of weights, for messages."""
METHODS = frozenset({"quant_method", "load_in_4bit", "load_in_8bit"})
"""Keys that say how weights are quantized; older releases of transformers wrote the last two."""
KERNELS = "kernels from the hub"
KERNEL_METHODS = frozenset(
    {"eetq", "fbgemm_fp8", "fp8", "gguf", "metal", "mxfp4", "mxfp8", "nvfp4"}
)
"""Transformers quantizers that run kernels from the hub if `kernels` is installed."""
KERNEL_MODELS = frozenset({"mra", "rwkv", "sam3_video", "yoso"})
"""Hugging Face models that run such kernels."""


def config_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that transformers settings classes raise for invalid values."""
    from huggingface_hub.errors import StrictDataclassError

    value_errors = (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    )
    return (OSError, ImportError, StrictDataclassError, *value_errors)


def check_config(folder: Path) -> None:
    """Compares the sizes in a config with those of the weights in the folder.

    Raises:
        ConfigError: if the config is broken, or larger than the weights.
        CheckpointError: see `check_folder_files`.
    """
    path = folder / CONFIG
    check_folder_files(folder)
    try:
        document = read_json(path, "config")
    except (OSError, ConfigError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}.") from None
    settings = document.get("quantization_config")
    if settings is not None and not (isinstance(settings, dict) and METHODS & settings.keys()):
        raise ConfigError(
            f"'{path}': quantization_config: expected an object with a quant_method, got "
            f"{settings!r:.80}; fetch the config.json that the tool wrote."
        )
    for key in ("dtype", "torch_dtype"):
        named = str(document.get(key) or "auto").removeprefix("torch.")
        if named != "auto" and not isinstance(getattr(torch, named, None), torch.dtype):
            raise ConfigError(f"'{path}': '{key}' is '{named}': {did_you_mean(named, DTYPES)}")
    files = [x for end in ("safetensors", "bin") for x in folder.glob(f"*.{end}") if x.is_file()]
    weights = 8 * sum(file.stat().st_size for file in files)
    most = max(weights, LEAST_BITS) if files else MOST_BITS
    for key, value in _leaves(document):
        if type(value) is not int:
            continue
        if SIZES.search(key) and value > most:
            has = "the weights of the folder have" if files else "expected at most"
            raise ConfigError(f"'{path}': '{key}' is {value}, {has} {most} bits.")
        limit = next((limit for name, limit in COUNTS.items() if name.search(key)), value)
        if value > limit:
            raise ConfigError(f"'{path}': '{key}' is {value}, expected {limit} at most.")


def without_fetched_code(config: Any, where: str) -> None:
    """Removes attention and expert implementations that transformers would download as code.

    Args:
        config: transformers configuration as it was read. It and its nested ones are modified.
        where: folder or name of its source, for messages.
    Raises:
        ConfigError: if its quantizer or model runs code from the hub that is not trusted.
    """
    from transformers import PreTrainedConfig

    pending, seen = [config], set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict | list):
            pending += value.values() if isinstance(value, dict) else value
        elif isinstance(value, PreTrainedConfig):
            held = object.__getattribute__(value, "__dict__")
            pending += held.values()
            _check_kernels(value, where)
            for key, (name, known) in IMPLEMENTATIONS.items():
                chosen = held.get(f"{name}_internal")
                if not is_installed_implementation(key, chosen):
                    held[f"{name}_internal"] = None
                    warn_once(
                        f"{where}: config.json asks for the {key} implementation "
                        f"{chosen!r:.100}, which would be fetched as code; the model's own is used "
                        f"instead (expected {', '.join(known)})."
                    )


def _check_kernels(config: Any, where: str) -> None:
    from transformers.utils import is_kernels_available

    settings = getattr(config, "quantization_config", None) or {}
    plain = settings if isinstance(settings, dict) else vars(settings)
    method, kind = plain.get("quant_method"), config.model_type
    is_method = isinstance(method, str) and method in KERNEL_METHODS
    if not (is_method or kind in KERNEL_MODELS) or not is_kernels_available():
        return
    if not is_trusted(KERNELS):
        setting = f"quant_method '{plain['quant_method']}'" if is_method else f"model_type '{kind}'"
        raise ConfigError(
            f"{where}: config.json has the {setting}, for which transformers fetches {KERNELS} and "
            f"runs them: if you trust these, pass {TRUST} (in Python: with "
            "chop.base.trust.trust_code():), else uninstall the package kernels."
        )


def describe_missing_key(config: Any, error: BaseException) -> str | None:
    """Returns the fields of a config whose value transformers looked up in vain, or None."""
    if not isinstance(error, KeyError):
        return None
    keys = [key for key, value in _leaves(config.to_dict()) if [value] == [*error.args]]
    return f"config.json: {keys[0]} {error} is unknown to it" if keys else None


def _leaves(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields every value that is no list or object, with its nearest key."""
    pending: list[tuple[str, Any]] = list(document.items())
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += value.items()
        elif isinstance(value, list):
            pending += ((key, item) for item in value)
        else:
            yield key, value
