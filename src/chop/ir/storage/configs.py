"""Hugging Face configurations as plain data: a model type and a dict of settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from chop.errors import CheckpointError
from chop.ir.storage.allowed import AllowList, reference_of
from chop.ir.storage.codec import Encoder, Json

ATTENTION = ("eager", "sdpa", "flex_attention", "flash_attention_2")


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

    def _write(self, config: Any) -> Json:
        if id(config) not in self._numbers:
            self._numbers[id(config)] = len(self.plain)
            self.plain.append(
                {
                    "class": reference_of(type(config)),
                    "model_type": config.model_type,
                    "attention": getattr(config, "_attn_implementation", None),
                    "values": Encoder().leniently(config.to_dict()),
                }
            )
        return {"$config": self._numbers[id(config)]}


class ConfigReader:
    """Makes the configurations again; modules that shared one share it again.

    Attributes:
        rules: for `Decoder`.
    """

    def __init__(self, plain: list[Json], allowed: AllowList) -> None:
        from chop.ir.storage.codec import Decoder

        decode = Decoder(allowed)
        self._configs = [_read(entry, allowed, decode) for entry in plain]
        self.rules: Mapping[str, Callable[[Any], Any]] = {"$config": self._configs.__getitem__}


def _read(entry: Json, allowed: AllowList, decode: Callable[[Json], Any]) -> Any:
    from transformers import CONFIG_MAPPING, PretrainedConfig

    kind = allowed.own(entry["class"])
    if kind is None and entry["model_type"] in CONFIG_MAPPING:
        kind = CONFIG_MAPPING[entry["model_type"]]
    # Underscored settings choose implementations, which transformers may fetch from elsewhere.
    values = {
        name: value
        for name, value in decode(entry["values"]).items()
        if name == "_name_or_path" or not (name[0] == "_" or name.endswith("_implementation"))
    }
    if entry["attention"] in ATTENTION:
        values["attn_implementation"] = entry["attention"]
    try:
        return (kind or PretrainedConfig).from_dict(values)
    except Exception as error:
        # Each configuration class checks its settings in its own way.
        raise CheckpointError(f"the {entry['model_type']} configuration is odd: {error}") from None
