"""Hugging Face configurations as plain data: a class and its attributes.

They come back with the attributes that they had. Nothing in `transformers` runs for it: its
constructors refuse settings that a model was changed to, build lists as long as a setting says, and
may fetch files.
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
# Settings that choose implementations, which transformers may fetch from elsewhere.
IMPLEMENTATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "attention": ("_attn_implementation", ("eager", "sdpa", "flex_attention", "flash_attention_2")),
    "experts": ("_experts_implementation", ("eager", "batched_mm", "grouped_mm")),
}
PACKAGES = {"flash_attention_2": "flash_attn"}
"""Packages in whose place transformers fetches code where they are not installed."""


def is_installed_implementation(key: str, value: Any) -> bool:
    """True for None and for an implementation that this machine has, so that none is fetched.

    Args:
        key: key in `IMPLEMENTATIONS`.
        value: a file's.

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
    """Writes each configuration once, however many modules hold it.

    Attributes:
        plain: one entry per configuration.
        rules: for `Encoder`.
    """

    def __init__(self) -> None:
        self.plain: list[Json] = []
        self._numbers: dict[int, int] = {}
        self.rules: Mapping[type, Callable[[Any], Json]] = {}
        # A model with a configuration has imported this; other models do not pay for it.
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
    """Makes the configurations again; modules that shared one share it again.

    Attributes:
        rules: for `Decoder`.
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

    found = allowed.own(reference) or allowed.imported(HOMES, reference, _is_record_class)
    if found is None and model_type is not None and model_type in CONFIG_MAPPING:
        found = CONFIG_MAPPING[model_type]
    if found is None:
        warnings.warn(
            f"the configuration class {reference[:200]!r} is not there; its settings are kept in a "
            "plain PretrainedConfig.",
            stacklevel=6,
        )
        plain: type = PretrainedConfig
        return plain
    if not _is_record_class(found):
        raise CheckpointError(f"'{reference}' is no class of configurations.")
    config_class: type = found
    return config_class


def _is_record_class(value: Any) -> bool:
    """A configuration, or what some hold: a dataclass for the settings of single layers."""
    return isinstance(value, type) and dataclasses.is_dataclass(value)


def _chooses_implementation(name: str) -> bool:
    return name.endswith(("_implementation", "_implementation_internal"))


def _fill(config: Any, attributes: Mapping[str, Any], implementations: Mapping[str, Any]) -> None:
    # Not `vars`: a configuration of layers that differ asks one that may have no attributes yet.
    held = object.__getattribute__(config, "__dict__")
    for name, value in attributes.items():
        if not name.isidentifier() or name.startswith("__"):
            raise CheckpointError(f"a configuration has the invalid setting {name!r}.")
        if not _chooses_implementation(name):
            held[name] = value
    for key, (name, _) in IMPLEMENTATIONS.items() if hasattr(type(config), "model_type") else ():
        chosen = implementations.get(key)
        held[f"{name}_internal"] = chosen if is_installed_implementation(key, chosen) else None
