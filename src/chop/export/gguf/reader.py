"""GGUF reader: files of llama.cpp as packed layers, code by code.

Types of blocks that no format has become floats, which is told. Settings of the model come from
transformers' own reading of the metadata.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.base.files.library_errors import library_errors
from chop.base.files.temporary import scratch_folder
from chop.errors import (
    CheckpointError,
    ChopError,
    ConfigError,
    enumerate_names,
    first_line,
)
from chop.export.foreign.loading import without_data
from chop.export.foreign.reader import MOST_NAMES, Read, Reader
from chop.export.foreign.stored import Stored
from chop.export.gguf.architectures import ARCHITECTURES, Architecture
from chop.export.gguf.config import unread_settings
from chop.export.gguf.header import (
    MOST_TEXTS,
    Header,
    TensorPlace,
    gguf_file,
    read_header,
    write_part,
)
from chop.export.gguf.names import Named, get_heads, named_parameters, scale_name
from chop.export.gguf.rope import frequency_divisors
from chop.export.gguf.split import DEFAULT, PRE, set_split, without_others
from chop.export.gguf.stored import read_blocks
from chop.export.gguf.target import TARGET
from chop.ir.huggingface.config_file import config_errors

log = logging.getLogger(__name__)

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DIVISORS, NVFP4 = "rope_freqs.weight", "NVFP4"
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3_FACTORS = (8.0, 32.0)
"""Of Llama 3.1 and 3.2: a file has what they come to, and not the settings."""
SPLIT, HEAD, TOKENS = "split.count", "output.weight", "tokenizer.ggml.tokens"
KIND, OF_BYTES = "tokenizer.ggml.model", "gpt2"
OTHERWISE = "texts may be split otherwise than in llama.cpp."
VOCABULARY = (TOKENS, *(f"tokenizer.ggml.{x}" for x in ("token_type", "scores", "merges")))
"""Arrays of a tokenizer."""


def read(path: Path) -> Read:
    """What a file holds.

    Args:
        path: of the file, or a folder with it alone.

    Raises:
        ConfigError: the model is of an unknown architecture, or its settings have no form here.
        CheckpointError: the file is broken, or does not fit its own settings.
        UnavailableError: gguf is not installed.
    """
    from transformers import AutoModelForCausalLM

    TARGET.require()
    file = gguf_file(path)
    if file is None:
        raise CheckpointError(f"'{path}': expected one file of GGUF.")
    header = read_header(file)
    config = _config(file, header)
    architecture = ARCHITECTURES[config.model_type]
    with library_errors(path):
        model = without_data(AutoModelForCausalLM, config)
    return _Weights(file, header).read(model, architecture, config)


def read_config(path: Path) -> Any:
    """The configuration of transformers for a file.

    Args:
        path: as `read`.

    Raises:
        ConfigError, CheckpointError, UnavailableError: as `read`.
    """
    TARGET.require()
    file = gguf_file(path)
    assert file is not None
    return _config(file, read_header(file))


def read_tokenizer(path: Path) -> Any:
    """The tokenizer of transformers for a file; None: it has none, or one that is not known.

    Args:
        path: as `read`.

    Raises:
        CheckpointError, UnavailableError: as `read`.
    """
    from transformers import AutoTokenizer

    TARGET.require()
    file = gguf_file(path)
    assert file is not None
    header = read_header(file)
    kept = [*header.metadata, *(x for x in VOCABULARY if header.arrays.get(x, 0) <= MOST_TEXTS)]
    kept = [key for key in kept if key in header.pairs]
    if TOKENS not in kept:
        return None
    with scratch_folder("gguf") as folder:
        write_part(file, header, kept, folder / file.name)
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(
                folder, gguf_file=file.name, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # kinds that are not known raise their own
            log.warning("%s: its tokenizer cannot be read: %s", file, first_line(error))
            return None
    tokenizer = without_others(tokenizer, header.arrays[TOKENS])
    pre = str(header.metadata.get(PRE, DEFAULT))
    if header.metadata.get(KIND) == OF_BYTES and not set_split(tokenizer, pre):
        log.warning("%s: %s is '%.80s', which is not known: %s", file, PRE, pre, OTHERWISE)
    return tokenizer


def _config(file: Path, header: Header) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = {one.name for one in ARCHITECTURES.values() if not one.has_experts}
    name = header.metadata.get("general.architecture")
    if name in {one.name for one in ARCHITECTURES.values()} - known:
        raise ConfigError(
            f"'{file}' is a mixture of experts, which is written and not read: "
            "transformers' from_pretrained reads it as floats, with gguf_file."
        )
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"'{file}' is of the architecture {name!r:.80}, which is not read; those that are: "
            f"{', '.join(sorted(known))}."
        )
    _check_header(file, name, header)
    try:
        config = _plain_config(file, header)
        settings = unread_settings(config, header.metadata, header.tensors, f"'{file}'")
        for key, value in settings.items():
            setattr(config, key, value)
    except ChopError:
        raise
    except config_errors() as error:
        message = f"'{file}' has settings that make no model: {first_line(error)}"
        raise CheckpointError(message) from error
    found = ARCHITECTURES[config.model_type]
    if found.has_window:
        config.sliding_window = header.metadata.get(f"{name}.attention.sliding_window")
    config.dtype = torch.float32
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    return config


def _check_header(file: Path, name: str, header: Header) -> None:
    """Raises where a file is a part of one, or says of a model what no configuration can hold."""
    parts, layers = header.metadata.get(SPLIT, 1), header.metadata.get(f"{name}.block_count", 0)
    if parts != 1:
        raise ConfigError(
            f"'{file}' is one of {parts!r:.20} files of a model: expected one file, as "
            "llama-gguf-split --merge makes."
        )
    if isinstance(layers, int) and layers > len(header.tensors):
        raise CheckpointError(
            f"'{file}' has {len(header.tensors)} tensors, and {name}.block_count is {layers}."
        )
    by_layer = [key for key in header.arrays if key.startswith(f"{name}.")]
    if by_layer:
        raise ConfigError(f"'{file}': expected one number in '{by_layer[0]:.80}', got an array.")


def _plain_config(file: Path, header: Header) -> Any:
    """As transformers reads it, which does not get to see arrays and tensors."""
    import transformers

    with scratch_folder("gguf") as folder:
        write_part(file, header, header.metadata, folder / file.name)
        config = transformers.AutoConfig.from_pretrained(
            folder, gguf_file=file.name, trust_remote_code=False
        )
    config.name_or_path = str(file.parent)
    config.tie_word_embeddings = HEAD not in header.tensors
    key = f"{header.metadata['general.architecture']}.vocab_size"
    if key not in header.metadata and TOKENS in header.arrays:
        config.vocab_size = header.arrays[TOKENS]
    return config


class _Weights:
    """The tensors of a file.

    Args:
        file: of GGUF.
        header: its own.
    """

    def __init__(self, file: Path, header: Header) -> None:
        self._file, self._places = file, dict(header.tensors)
        self._data = np.memmap(file, mode="r")
        self._floats: list[str] = []

    def read(self, model: Any, architecture: Architecture, config: Any) -> Read:
        """All that a model needs.

        Args:
            model: without data.
            architecture: its own.
            config: its own; it is changed where the file has divisors of frequencies.
        """
        self._take_divisors(config)
        tensors, packed, ties = dict[str, Tensor](), dict[str, Stored](), dict[str, str]()
        left = dict(self._places)
        head, table = model.get_output_embeddings(), model.get_input_embeddings()
        of_table = next(path for path, x in model.named_modules() if x is table)
        for named in named_parameters(model, architecture):
            if named.module is head and config.tie_word_embeddings:
                ties[named.path] = of_table
                continue
            place = left.pop(str(named.name), None)
            if place is None:
                raise CheckpointError(
                    f"'{self._file}' lacks '{named.name}', which its settings say is there."
                )
            found = self._weight(named, place, config)
            own = left.pop(scale_name(str(named.name)), None) if place.type_name == NVFP4 else None
            if own is not None:
                found = self._scaled(found, own, named)
            if isinstance(found, Stored):
                packed[named.path] = found
            else:
                tensors[f"{named.path}.{named.operand}"] = found
        if left:
            raise ConfigError(
                f"'{self._file}' has '{min(left):.80}', for which a {type(model).__name__} of "
                "these settings has no place."
            )
        self._tell_floats()
        ties = ties if of_table in packed else {}
        return Read(config.to_dict(), tensors, packed, ties)

    def _weight(self, named: Named, place: TensorPlace, config: Any) -> Stored | Tensor:
        from transformers.pytorch_utils import Conv1D

        x: Any = getattr(named.module, named.operand)
        is_turned = isinstance(named.module, Conv1D) and named.operand == "weight"
        expected = tuple(x.shape)[::-1] if is_turned else tuple(x.shape)
        if place.shape != expected:
            raise CheckpointError(
                f"'{self._file}': '{named.name}' has the shape {place.shape}, by its settings "
                f"{expected}."
            )
        data = self._bytes(place)
        if named.is_interleaved:
            heads = get_heads(named.path, config)
            rows = np.arange(len(data)).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
            data = data[torch.from_numpy(rows)]
        found = self._decoded(named, place, data)
        if isinstance(found, Tensor) and named.is_less_one:
            found = found - 1
        return found.t() if isinstance(found, Tensor) and is_turned else found

    def _scaled(self, found: Stored | Tensor, place: TensorPlace, named: Named) -> Stored | Tensor:
        """A weight times the scale that has a tensor of its own."""
        scale = self._bytes(place).view(-1)
        if place.type_name != "F32" or math.prod(place.shape) != 1:
            raise CheckpointError(f"'{self._file}': expected one float for '{named.name}'.")
        value = scale.view(torch.float32)[0]
        if not bool(value.isfinite()) or value <= 0:
            raise CheckpointError(f"'{self._file}': the scale of '{named.name}' is {value:.9g}.")
        if isinstance(found, Stored):
            return replace(found, tensor_scale=value)
        return found * value

    def _bytes(self, place: TensorPlace) -> Tensor:
        """uint8 (rows, bytes of a row)."""
        rows = place.shape[0] if len(place.shape) > 1 else 1
        part = self._data[place.start : place.start + place.size]
        return torch.from_numpy(np.array(part)).view(rows, -1)

    def _decoded(self, named: Named, place: TensorPlace, data: Tensor) -> Stored | Tensor:
        if place.type_name in FLOATS:
            return data.view(FLOATS[place.type_name]).float().view(place.shape)
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

        kind = GGMLQuantizationType[place.type_name]
        try:
            blocks = data.view(len(data), -1, GGML_QUANT_SIZES[kind][1])
            is_matrix = named.operand == "weight" and len(place.shape) == 2
            found = read_blocks(place.type_name, blocks) if is_matrix else None
            if found is not None:
                return found
            self._floats.append(f"{named.name} ({place.type_name})")
            with np.errstate(invalid="ignore", over="ignore"):
                values = quants.dequantize(data.numpy(), kind)
            if not np.isfinite(values).all():
                raise ValueError("some of its values are NaN or infinite")
        except (NotImplementedError, KeyError):
            raise ConfigError(
                f"'{self._file}': '{named.name}' is {place.type_name}, which has no form here."
            ) from None
        except ValueError as error:
            raise CheckpointError(f"'{self._file}': '{named.name}': {error}.") from error
        return torch.from_numpy(values).float().view(place.shape)

    def _tell_floats(self) -> None:
        if self._floats:
            names = enumerate_names(sorted(self._floats), MOST_NAMES)
            log.warning(
                "%s: no format has the blocks of, which become floats: %s", self._file, names
            )

    def _take_divisors(self, config: Any) -> None:
        """Finds the scaling of rotary embeddings whose divisors a file has.

        Raises:
            ConfigError: none has them.
        """
        place = self._places.pop(DIVISORS, None)
        if place is None:
            return
        given = (
            self._bytes(place).view(torch.float32).view(-1) if place.type_name == "F32" else None
        )
        rope = dict(config.rope_parameters or {})
        candidates = [rope] + [
            {**rope, **LLAMA3, "rope_type": "llama3", "factor": x} for x in LLAMA3_FACTORS
        ]
        for candidate in candidates:
            config.rope_parameters = candidate
            found = frequency_divisors(config)
            is_alike = found is not None and given is not None and found.shape == given.shape
            if is_alike and torch.allclose(found, given, rtol=1e-5):  # type: ignore[arg-type]
                return
        raise ConfigError(
            f"'{self._file}': '{DIVISORS}' scales rotary embeddings in an unknown way."
        )


READER = Reader(TARGET.name, read, may_be_float=True)
