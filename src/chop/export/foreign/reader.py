"""Reader interface for other tools' folders and files: stored codes and scales by module.

Weights are not converted to floats. `chop.export.foreign.loading` builds a model of the content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.errors import CheckpointError
from chop.export.foreign.stored import Stored, coded_modules
from chop.export.foreign.weight_files import document, list_tensors
from chop.formats import NumberFormat, stored_settings
from chop.ir.huggingface.config_file import CONFIG
from chop.nn.packed.state import BUFFER_NAMES

CODES, SCALES, TENSOR_SCALE = BUFFER_NAMES["weight"]
MOST_NAMES = 8


@dataclass(frozen=True)
class Read:
    """Content of a folder or file.

    Attributes:
        config: content of `config.json`.
        tensors: float tensors by name.
        packed: packed weights by module path.
        ties: path of the module that owns the weights, by path of the tied packed module.
        inputs: input formats of packed modules by path.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    packed: Mapping[str, Stored]
    ties: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, NumberFormat] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the `config.json` of a chop folder."""
        stored = dict(self.packed) | {path: self.packed[to] for path, to in self.ties.items()}
        modules: dict[str, dict[str, Any]] = {
            path: {"weight": stored_settings(one.number_format), "packed": True}
            for path, one in stored.items()
        }
        for path, inputs in self.inputs.items():
            modules[path]["data_in"] = stored_settings(inputs)
        plain = {key: x for key, x in self.config.items() if key != "quantization_config"}
        quantization = {"quant_method": "chop", "modules": modules}
        return {**plain, "quantization_config": quantization} if modules else plain

    @property
    def weights(self) -> dict[str, Tensor]:
        """Returns the tensors of a chop folder."""
        own = dict(self.tensors)
        for path, one in self.packed.items():
            own |= {f"{path}.{CODES}": one.codes, f"{path}.{SCALES}": one.scales}
            if one.tensor_scale is not None:
                own[f"{path}.{TENSOR_SCALE}"] = one.tensor_scale
        return {name: x.contiguous() for name, x in own.items()}


@dataclass(frozen=True)
class Reader:
    """Table entry for a tool's folders or files.

    Attributes:
        name: `quant_method` of its folders.
        read: path -> content. Raises ConfigError for schemes that have no format in chop, and
            CheckpointError for broken files.
        may_be_float: accepts content without packed weights.
    """

    name: str
    read: Callable[[Path], Read]
    may_be_float: bool = False


def only_floats(path: Path, name: str) -> CheckpointError:
    """Returns the error for content without the codes that its settings announce.

    Args:
        path: folder or file.
        name: tool of the settings.
    """
    return CheckpointError(
        f"'{path}' has only float weights, but its config.json names {name}. Get the folder again, "
        "or remove quantization_config from config.json if the weights are the model's own."
    )


def read_coded(
    folder: Path,
    parse: Callable[[Any, str], Any],
    parts: Sequence[str],
    optional: Sequence[str],
    stored: Callable[[str, Mapping[str, Tensor], Any], Stored],
) -> Read:
    """Reads a folder in which each coded module has its own tensors.

    Args:
        folder: local folder of safetensors files.
        parse: (`quantization_config`, folder for messages) -> parsed settings.
        parts: name suffixes of a module's tensors, see `coded_modules`.
        optional: suffixes that a module may lack.
        stored: (path, tensors by suffix, parsed settings) -> weight.

    Raises:
        ConfigError: if chop has no format for settings or modules, which the message names.
        CheckpointError: if files are missing or broken, or do not fit `config.json`.
    """
    config = document(folder / CONFIG)
    settings = parse(config.get("quantization_config"), f"'{folder}'")
    tensors = list_tensors(folder)
    packed = coded_modules(tensors, parts, optional, lambda path, own: stored(path, own, settings))
    return Read(config, tensors, packed)
