"""Hugging Face configurations as plain data: a class and its attributes.

Attributes are restored without running code of `transformers`, whose constructors reject some
changed settings, build lists of any declared length, and may download files.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chop.base.installed import version
from chop.errors import CheckpointError
from chop.ir.storage.allowed import AllowList, get_reference
from chop.ir.storage.codec import Encoder, Json, NotPlainError

HOMES = re.compile(
    r"transformers\.(models\.\w+\.configuration_\w+|(integrations\.heterogeneity\.)?"
    r"configuration_utils)"
)
# Settings of implementations, which transformers may download.
IMPLEMENTATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "attention": ("_attn_implementation", ("eager", "sdpa", "flex_attention", "flash_attention_2")),
    "experts": ("_experts_implementation", ("eager", "batched_mm", "grouped_mm")),
}
PACKAGES = {"flash_attention_2": "flash_attn"}
"""Packages that transformers replaces by downloaded code if they are not installed."""


def is_installed_implementation(key: str, value: Any) -> bool:
    """Returns whether an implementation is None or installed, so that none is downloaded.

    Args:
        key: a key of `IMPLEMENTATIONS`.
        value: implementation named in a file.

    >>> is_installed_implementation("attention", "sdpa")
    True
    >>> is_installed_implementation("attention", "somebody/kernels")
    False
    """
    if value is None:
        return True
    known = isinstance(value, str) and value in IMPLEMENTATIONS[key][1]
    return known and (value not in PACKAGES or version(PACKAGES[value]) is not None)


class ConfigWriter:
    """Writer of configurations; each is written once, even if several modules share it.

    Attributes:
        plain: one entry per configuration.
        rules: rules for `Encoder`.
    """

    def __init__(self) -> None:
        self.plain: list[Json] = []
        self._numbers: dict[int, int] = {}
        self.rules: Mapping[type, Callable[[Any], Json]] = {}
        # Imported already for a model with a configuration; other models avoid the cost.
        transformers = sys.modules.get("transformers.configuration_utils")
        if transformers is not None:
            self.rules = {transformers.PretrainedConfig: self._write}
        self._encode = Encoder(self.rules, functions=False)

    def _write(self, config: Any) -> Json:
        if id(config) not in self._numbers:
            number = self._numbers[id(config)] = len(self.plain)
            entry: dict[str, Json] = {
                "class": get_reference(type(config)),
                "model_type": getattr(config, "model_type", None),
                **{key: getattr(config, name, None) for key, (name, _) in IMPLEMENTATIONS.items()},
            }
            self.plain.append(entry)  # the configurations inside this one come after it
            entry["attributes"] = dict(self._attributes(config))
            return {"$config": number}
        return {"$config": self._numbers[id(config)]}

    def _attributes(self, config: Any) -> Iterator[tuple[str, Json]]:
        for name, value in vars(config).items():
            if _chooses_implementation(name):
                continue
            try:
                yield name, self._encode(value)
            except NotPlainError:
                if _is_record_class(type(value)) and HOMES.fullmatch(type(value).__module__):
                    yield name, self._write(value)
                elif callable(getattr(value, "to_dict", None)):
                    yield name, self._encode.leniently(value.to_dict())


class ConfigReader:
    """Reader of configurations; sharing between modules is restored.

    Attributes:
        rules: rules for `Decoder`.
    """

    def __init__(self, plain: list[Json], allowed: AllowList) -> None:
        from chop.ir.storage.codec import Decoder

        configs = [_bare(entry, allowed) for entry in plain]
        self.rules: Mapping[str, Callable[[Any], Any]] = {"$config": configs.__getitem__}
        decode = Decoder(allowed, self.rules)
        for config, entry in zip(configs, plain, strict=True):
            given = {key: entry.get(key) for key in IMPLEMENTATIONS}
            _fill(config, {n: decode(x) for n, x in entry["attributes"].items()}, given)


def _bare(entry: Json, allowed: AllowList) -> Any:
    cls: Any = _get_class(entry["class"], entry["model_type"], allowed)
    return cls.__new__(cls)


def _get_class(reference: str, model_type: str | None, allowed: AllowList) -> type:
    from transformers import CONFIG_MAPPING, PretrainedConfig

    candidate = allowed.own(reference) or allowed.imported(HOMES, reference, _is_record_class)
    if candidate is None and model_type is not None and model_type in CONFIG_MAPPING:
        candidate = CONFIG_MAPPING[model_type]
    if candidate is None:
        warnings.warn(
            f"the configuration class {reference[:200]!r} is missing; its settings are in a "
            "plain PretrainedConfig.",
            stacklevel=6,
        )
        plain: type = PretrainedConfig
        return plain
    if not _is_record_class(candidate):
        raise CheckpointError(f"'{reference}' is not a configuration class.")
    config_class: type = candidate
    return config_class


def _is_record_class(value: Any) -> bool:
    """Returns whether a value is a configuration or a dataclass of layer settings."""
    return isinstance(value, type) and dataclasses.is_dataclass(value)


def _chooses_implementation(name: str) -> bool:
    return name.endswith(("_implementation", "_implementation_internal"))


def _fill(config: Any, attributes: Mapping[str, Any], implementations: Mapping[str, Any]) -> None:
    # Not `vars`: configurations of heterogeneous layers compare ones without attributes.
    held = object.__getattribute__(config, "__dict__")
    for name, value in attributes.items():
        if not name.isidentifier() or name.startswith("__"):
            raise CheckpointError(f"a configuration has the invalid setting {name!r}.")
        if not _chooses_implementation(name):
            held[name] = value
    for key, (name, _) in IMPLEMENTATIONS.items() if hasattr(type(config), "model_type") else ():
        chosen = implementations.get(key)
        held[f"{name}_internal"] = chosen if is_installed_implementation(key, chosen) else None
