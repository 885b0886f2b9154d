"""PEFT's file format for LoRA adapters: a folder with a safetensors file and a JSON file.

Tensors are keyed by their dotted path in the original model, after `base_model.model.`. Source:
the "PEFT checkpoint format" page of the `peft` documentation, and files written by peft 0.21.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.base.files import atomic_file, write_text
from chop.base.files.documents import read_json
from chop.errors import CheckpointError
from chop.ir.storage.tensor_store import read_file

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
PREFIX = "base_model.model."
ADAPTER_KEY = re.compile(r"(.+)\.lora_([AB])\.weight")
BIAS_OF_COPY = re.compile(r"\.(modules_to_save|original_module)\.(.*\.)?bias$")
"""Pattern of biases of `modules_to_save` that PEFT writes again with `bias="all"`."""
# Keys that say how the file came about, or which layers it is for: the tensors say that too.
NOT_NEEDED = frozenset(
    {
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias"),
        *("ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out"),
        *("inference_mode",),
        *("init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha"),
        *("lora_dropout", "megatron_config", "megatron_core", "modules_to_save", "peft_type"),
        *("peft_version", "qalora_group_size", "r", "rank_pattern", "revision"),
        *("runtime_config", "target_modules", "task_type", "use_rslora"),
    }
)
# Other initializations change the base weights when the adapter is loaded.
PLAIN_INITIALIZATIONS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class LayerFile:
    """LoRA adapter of one layer.

    Attributes:
        a: float (rank, in_features).
        b: float (out_features, rank).
        alpha: numerator of the update's scale, `alpha / rank`, or `alpha / sqrt(rank)` with
            `use_rslora`.
    """

    a: Tensor
    b: Tensor
    alpha: float

    @property
    def rank(self) -> int:
        """Rank of the update."""
        return self.a.shape[0]


@dataclass(frozen=True)
class AdapterFile:
    """LoRA adapters of a model in a folder.

    Attributes:
        layers: adapters by the path of their layer.
        full: fully trained parameters by `state_dict` key.
        dropout: dropout of the adapters' inputs in training.
        use_rslora: true if updates are scaled by `alpha / sqrt(rank)`.
        modules_to_save: paths or their suffixes, as in PEFT.
        bias: "none", "lora_only" or "all".
        base_model: origin of the base model, if known.
        fan_in_fan_out: true if the original layers store their weights as (in, out).
        ensure_weight_tying: true if PEFT keeps `modules_to_save` tied that share a weight.
    """

    layers: Mapping[str, LayerFile]
    full: Mapping[str, Tensor]
    dropout: float = 0.0
    use_rslora: bool = False
    modules_to_save: tuple[str, ...] = ()
    bias: str = "none"
    base_model: str | None = None
    fan_in_fan_out: bool = False
    ensure_weight_tying: bool = False


def write_adapter(folder: Path, adapter: AdapterFile, target_modules: list[str] | str) -> None:
    """Writes both files into `folder`, each atomically."""
    from safetensors.torch import save_file

    inside = {f"{path}.bias": f"{path}.base_layer.bias" for path in adapter.layers}
    tensors = {inside.get(key, key): x for key, x in adapter.full.items()}
    for path, layer in adapter.layers.items():
        tensors |= {f"{path}.lora_A.weight": layer.a, f"{path}.lora_B.weight": layer.b}
    # Copies: the file format cannot store tensors that share memory.
    ready = {f"{PREFIX}{k}": x.detach().cpu().contiguous().clone() for k, x in tensors.items()}
    with atomic_file(folder / WEIGHTS_FILE) as temporary:
        save_file(ready, temporary, {"format": "pt"})
    config = {**_config(adapter), "target_modules": target_modules}
    write_text(folder / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n")


def read_adapter(folder: Path) -> AdapterFile:
    """Reads both files of `folder`.

    Raises:
        CheckpointError: if a file is missing or broken, or needs more than LoRA on linear layers;
            the message names the key.
    """
    config = _read_config(folder)
    tensors = _read_tensors(folder / WEIGHTS_FILE)
    parts: dict[str, dict[str, Tensor]] = {}
    full: dict[str, Tensor] = {}
    for key, value in tensors.items():
        name = key.removeprefix(PREFIX)
        if match := ADAPTER_KEY.fullmatch(name):
            parts.setdefault(match[1], {})[match[2]] = value
        elif ".lora_" in name:
            raise CheckpointError(f"'{folder}': expected adapters of linear layers, got '{key}'.")
        elif not BIAS_OF_COPY.search(name):
            # The bias of an adapted layer: PEFT keeps the layer inside its own.
            full[name.replace(".base_layer.", ".")] = value
    return AdapterFile(
        layers={path: _layer(folder, path, ab, config) for path, ab in parts.items()},
        full=full,
        dropout=config.get("lora_dropout") or 0.0,
        use_rslora=bool(config.get("use_rslora")),
        modules_to_save=tuple(config.get("modules_to_save") or ()),
        bias=config.get("bias") or "none",
        base_model=config.get("base_model_name_or_path"),
    )


def targets_for(paths: Iterable[str], all_paths: Iterable[str]) -> list[str] | str:
    """Returns `target_modules` that match exactly `paths`: a list, or a pattern if necessary.

    PEFT also matches an entry of a list as the suffix of a path.

    >>> targets_for(["fc"], ["fc", "head"]), targets_for(["fc"], ["fc", "block.fc"])
    (['fc'], '(fc)')
    """
    chosen, others = sorted(paths), set(all_paths) - set(paths)
    if any(other.endswith(f".{path}") for path in chosen for other in others):
        return f"({'|'.join(map(re.escape, chosen))})"
    return chosen


def _config(adapter: AdapterFile) -> dict[str, Any]:
    ranks = {path: layer.rank for path, layer in adapter.layers.items()}
    alphas = {path: layer.alpha for path, layer in adapter.layers.items()}
    rank, alpha = _most_common(ranks.values()), _most_common(alphas.values())
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": adapter.base_model,
        "inference_mode": True,
        "r": rank,
        "rank_pattern": {f"^{re.escape(p)}": r for p, r in ranks.items() if r != rank},
        "lora_alpha": _whole(alpha),
        "alpha_pattern": {f"^{re.escape(p)}": _whole(a) for p, a in alphas.items() if a != alpha},
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.use_rslora,
        "bias": adapter.bias,
        "modules_to_save": list(adapter.modules_to_save) or None,
        "init_lora_weights": True,
        "fan_in_fan_out": adapter.fan_in_fan_out,
        "ensure_weight_tying": adapter.ensure_weight_tying,
    }


def _most_common(values: Iterable[Any]) -> Any:
    listed = list(values)
    return max(listed, key=listed.count)


def _whole(value: float) -> float:
    """Converts alpha to an integer if it is whole, like PEFT."""
    return int(value) if float(value).is_integer() else value


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        config: dict[str, Any] = read_json(path, "config")
    except FileNotFoundError:
        raise CheckpointError(f"'{folder}' contains no adapter: it has no {CONFIG_FILE}.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}.") from None
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"'{path}': expected peft_type 'LORA', got {kind!r}.")
    for key, value in config.items():
        if key not in NOT_NEEDED and value:
            raise CheckpointError(f"'{path}': '{key}': {value!r} is not supported.")
    if config.get("init_lora_weights") not in PLAIN_INITIALIZATIONS:
        raise CheckpointError(
            f"'{path}': 'init_lora_weights': {config['init_lora_weights']!r} is not supported, as "
            "it changes the base weights; let peft convert the adapter to plain LoRA first."
        )
    return config


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise CheckpointError(f"'{path.parent}' has no {WEIGHTS_FILE}.")
    return read_file(path)


def _layer(
    folder: Path, path: str, ab: Mapping[str, Tensor], config: Mapping[str, Any]
) -> LayerFile:
    if ab.keys() != {"A", "B"}:
        raise CheckpointError(f"'{folder}': layer '{path}' has only lora_{next(iter(ab))}.")
    patterns = config.get("alpha_pattern") or {}
    own = (a for key, a in patterns.items() if re.match(rf"(.*\.)?({key})$", path))
    return LayerFile(ab["A"], ab["B"], float(next(own, config.get("lora_alpha", 8))))
