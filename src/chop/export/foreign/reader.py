"""Reader of another tool's folders or files: codes and scales by module, as they are stored.

No weight becomes a float on the way. `chop.export.foreign.loading` makes a model of what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.export.foreign.stored import Stored, coded_modules
from chop.export.foreign.weight_files import document, list_tensors
from chop.formats import NumberFormat, stored_settings
from chop.ir.huggingface.config_file import CONFIG
from chop.nn.packed.state import BUFFER_NAMES

CODES, SCALES, TENSOR_SCALE = BUFFER_NAMES["weight"]
MOST_NAMES = 8


@dataclass(frozen=True)
class Read:
    """Contents of a folder or file.

    Attributes:
        config: as `config.json` has it.
        tensors: floats by name.
        packed: weights by path of a module.
        ties: by path of a packed module without weights of its own, the one whose weights it has.
        inputs: the formats that packed modules round their inputs to, by path.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    packed: Mapping[str, Stored]
    ties: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, NumberFormat] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """`config.json` of a folder of chop."""
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
        """Tensors of a folder of chop."""
        own = dict(self.tensors)
        for path, one in self.packed.items():
            own |= {f"{path}.{CODES}": one.codes, f"{path}.{SCALES}": one.scales}
            if one.tensor_scale is not None:
                own[f"{path}.{TENSOR_SCALE}"] = one.tensor_scale
        return {name: x.contiguous() for name, x in own.items()}


@dataclass(frozen=True)
class Reader:
    """Row of the table: reads the folders or files of a tool.

    Attributes:
        name: `quant_method` of its folders.
        read: a path -> what is there. Raises ConfigError for schemes that have no format here, and
            CheckpointError for what is broken.
        may_be_float: nothing but floats may be there.
    """

    name: str
    read: Callable[[Path], Read]
    may_be_float: bool = False


def read_coded(
    folder: Path,
    parse: Callable[[Any, str], Any],
    parts: Sequence[str],
    optional: Sequence[str],
    stored: Callable[[str, Mapping[str, Tensor], Any], Stored],
) -> Read:
    """Contents of a folder in which each coded module has tensors of its own.

    Args:
        folder: local, of safetensors.
        parse: `quantization_config` and the folder, for messages -> what it says.
        parts: ends of the names of a module's tensors, see `coded_modules`.
        optional: of those that it may have.
        stored: path, tensors by end, what the settings say -> the weight.

    Raises:
        ConfigError: settings or modules that have no format here, by name.
        CheckpointError: files are missing or broken, or do not fit what `config.json` says.
    """
    config = document(folder / CONFIG)
    settings = parse(config.get("quantization_config"), f"'{folder}'")
    tensors = list_tensors(folder)
    packed = coded_modules(tensors, parts, optional, lambda path, own: stored(path, own, settings))
    return Read(config, tensors, packed)
