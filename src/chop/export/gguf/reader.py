"""GGUF reader: llama.cpp files as packed layers, code by code.

Block types without a format in chop, such as the IQ types, are decoded to float32 by gguf, with a
warning. Model settings are read by transformers.
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
from chop.export.gguf.config import stated_config, unread_settings
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
"""Factors of Llama 3.1 and 3.2, of which a file stores only the resulting divisors."""
SPLIT, HEAD, TOKENS = "split.count", "output.weight", "tokenizer.ggml.tokens"
KIND, BYTE_LEVEL = "tokenizer.ggml.model", "gpt2"
OTHERWISE = "texts may be split otherwise than in llama.cpp."
VOCABULARY = (TOKENS, *(f"tokenizer.ggml.{x}" for x in ("token_type", "scores", "merges")))
"""Arrays of a tokenizer."""


def read(path: Path) -> Read:
    """Reads a file.

    Args:
        path: GGUF file, or folder that contains only that file.

    Raises:
        ConfigError: if the architecture is unknown, or if chop does not support its settings.
        CheckpointError: if the file is broken, or does not fit its own settings.
        UnavailableError: if gguf is not installed.
    """
    from transformers import AutoModelForCausalLM

    TARGET.require()
    file = gguf_file(path)
    if file is None:
        raise CheckpointError(f"'{path}': expected one GGUF file.")
    header = read_header(file)
    config = _config(file, header)
    architecture = ARCHITECTURES[config.model_type]
    with library_errors(path):
        model = without_data(AutoModelForCausalLM, config)
    return _Weights(file, header).read(model, architecture, config)


def read_config(path: Path) -> Any:
    """Reads the transformers configuration of a file.

    Args:
        path: see `read`.

    Raises:
        ConfigError, CheckpointError, UnavailableError: see `read`.
    """
    TARGET.require()
    file = gguf_file(path)
    assert file is not None
    return _config(file, read_header(file))


def read_tokenizer(path: Path) -> Any:
    """Reads the transformers tokenizer of a file; None if it has none, or an unknown one.

    Args:
        path: see `read`.

    Raises:
        CheckpointError, UnavailableError: see `read`.
    """
    from transformers import AutoTokenizer

    TARGET.require()
    file = gguf_file(path)
    assert file is not None
    header = read_header(file)
    keys = [*header.metadata, *(x for x in VOCABULARY if header.arrays.get(x, 0) <= MOST_TEXTS)]
    keys = [key for key in keys if key in header.pairs]
    if TOKENS not in keys:
        return None
    with scratch_folder("gguf") as folder:
        write_part(file, header, keys, folder / file.name)
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(
                folder, gguf_file=file.name, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # unknown kinds raise their own
            log.warning("%s: its tokenizer cannot be read: %s", file, first_line(error))
            return None
    tokenizer = without_others(tokenizer, header.arrays[TOKENS])
    pre = str(header.metadata.get(PRE, DEFAULT))
    if header.metadata.get(KIND) == BYTE_LEVEL and not set_split(tokenizer, pre):
        log.warning("%s: %s is '%.80s', which is unknown: %s", file, PRE, pre, OTHERWISE)
    return tokenizer


def _config(file: Path, header: Header) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = {one.name for one in ARCHITECTURES.values() if not one.has_experts}
    name = header.metadata.get("general.architecture")
    if name in {one.name for one in ARCHITECTURES.values()} - known:
        raise ConfigError(
            f"'{file}' is a mixture of experts, which chop writes but does not read. Use "
            "transformers' from_pretrained with gguf_file to read it as floats."
        )
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"'{file}' has the architecture {name!r:.80}, which is not supported; expected one of "
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
        message = f"'{file}' has settings from which no model can be built: {first_line(error)}"
        raise CheckpointError(message) from error
    architecture = ARCHITECTURES[config.model_type]
    if architecture.has_window:
        config.sliding_window = header.metadata.get(f"{name}.attention.sliding_window")
    config.dtype = torch.float32
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    return config


def _check_header(file: Path, name: str, header: Header) -> None:
    """Raises an error for one part of a split file, or for settings beyond any configuration."""
    parts, layers = header.metadata.get(SPLIT, 1), header.metadata.get(f"{name}.block_count", 0)
    if parts != 1:
        raise ConfigError(
            f"'{file}' is one of {parts!r:.20} files of a model. Merge them by "
            "llama-gguf-split --merge."
        )
    if isinstance(layers, int) and layers > len(header.tensors):
        raise CheckpointError(
            f"'{file}' has {len(header.tensors)} tensors, but {name}.block_count is {layers}."
        )
    derived = {f"{x.name}.{key}" for x in ARCHITECTURES.values() for key in x.derived}
    by_layer = [key for key in header.arrays if key.startswith(f"{name}.")]
    by_layer += [x for x, y in header.metadata.items() if isinstance(y, list) and x not in derived]
    if by_layer:
        raise ConfigError(f"'{file}': expected one number in '{by_layer[0]:.80}', got an array.")


def _plain_config(file: Path, header: Header) -> Any:
    """Returns the configuration as transformers reads it from a copy without arrays and tensors."""
    import transformers

    config = stated_config(header.metadata, header.tensors)
    if config is None:
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
    """Tensors of a file.

    Args:
        file: GGUF file.
        header: its header.
    """

    def __init__(self, file: Path, header: Header) -> None:
        self._file, self._places = file, dict(header.tensors)
        self._data = np.memmap(file, mode="r")
        self._floats: list[str] = []

    def read(self, model: Any, architecture: Architecture, config: Any) -> Read:
        """Reads all weights of a model.

        Args:
            model: model without data.
            architecture: its architecture.
            config: its configuration; updated if the file has divisors of frequencies.
        """
        self._take_divisors(config)
        tensors, packed, ties = dict[str, Tensor](), dict[str, Stored](), dict[str, str]()
        unread = dict(self._places)
        head, table = model.get_output_embeddings(), model.get_input_embeddings()
        embedding_path = next(path for path, x in model.named_modules() if x is table)
        for named in named_parameters(model, architecture):
            if named.module is head and config.tie_word_embeddings:
                ties[named.path] = embedding_path
                continue
            place = unread.pop(str(named.name), None)
            if place is None:
                raise CheckpointError(
                    f"'{self._file}' lacks '{named.name}', which its settings list."
                )
            weight = self._weight(named, place, config)
            own = (
                unread.pop(scale_name(str(named.name)), None) if place.type_name == NVFP4 else None
            )
            if own is not None:
                weight = self._scaled(weight, own, named)
            if isinstance(weight, Stored):
                packed[named.path] = weight
            else:
                tensors[f"{named.path}.{named.operand}"] = weight
        if unread:
            raise ConfigError(
                f"'{self._file}' has the tensor '{min(unread):.80}', which a "
                f"{type(model).__name__} with these settings does not have."
            )
        self._warn_about_floats()
        ties = ties if embedding_path in packed else {}
        return Read(config.to_dict(), tensors, packed, ties)

    def _weight(self, named: Named, place: TensorPlace, config: Any) -> Stored | Tensor:
        from transformers.pytorch_utils import Conv1D

        x: Any = getattr(named.module, named.operand)
        is_turned = isinstance(named.module, Conv1D) and named.operand == "weight"
        expected = tuple(x.shape)[::-1] if is_turned else tuple(x.shape)
        if x.ndim == 3:  # of a depthwise convolution: stored without the axis of size 1
            expected = expected[::2]
        if place.shape != expected:
            raise CheckpointError(
                f"'{self._file}': '{named.name}' has the shape {place.shape}, but the settings "
                f"require {expected}."
            )
        data = self._bytes(place)
        if named.is_interleaved:
            heads = get_heads(named.path, config)
            rows = np.arange(expected[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
            data = data.view(len(rows), -1)[torch.from_numpy(rows)].view(data.shape)
        weight = self._decoded(named, place, data)
        if not isinstance(weight, Tensor):
            return weight
        weight = weight - 1 if named.is_less_one else weight
        return weight.t() if is_turned else weight.view(x.shape)

    def _scaled(self, weight: Stored | Tensor, place: TensorPlace, named: Named) -> Stored | Tensor:
        """Multiplies a weight by the scale that is stored as its own tensor."""
        scale = self._bytes(place).view(-1)
        if place.type_name != "F32" or math.prod(place.shape) != 1:
            raise CheckpointError(f"'{self._file}': expected one float for '{named.name}'.")
        value = scale.view(torch.float32)[0]
        if not bool(value.isfinite()) or value <= 0:
            raise CheckpointError(f"'{self._file}': the scale of '{named.name}' is {value:.9g}.")
        if isinstance(weight, Stored):
            return replace(weight, tensor_scale=value)
        return weight * value

    def _bytes(self, place: TensorPlace) -> Tensor:
        """Reads the bytes of a tensor: uint8 (rows, bytes per row)."""
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
            weight = read_blocks(place.type_name, blocks) if is_matrix else None
            if weight is not None:
                return weight
            self._floats.append(f"{named.name} ({place.type_name})")
            with np.errstate(invalid="ignore", over="ignore"):
                values = quants.dequantize(data.numpy(), kind)
            if not np.isfinite(values).all():
                raise ValueError("some of its values are NaN or infinite")
        except (NotImplementedError, KeyError):
            raise ConfigError(
                f"'{self._file}': '{named.name}' is {place.type_name}, which is not supported."
            ) from None
        except ValueError as error:
            raise CheckpointError(f"'{self._file}': '{named.name}': {error}.") from error
        return torch.from_numpy(values).float().view(place.shape)

    def _warn_about_floats(self) -> None:
        if self._floats:
            names = enumerate_names(sorted(self._floats), MOST_NAMES)
            log.warning(
                "%s: block types of %s are not supported. They become float32 with the same "
                "values, which takes more memory. Blocks of Q2_K to Q6_K, Q4_0 or Q8_0 stay codes.",
                *(self._file, names),
            )

    def _take_divisors(self, config: Any) -> None:
        """Determines the scaling of rotary embeddings from a file's frequency divisors.

        Raises:
            ConfigError: if no scaling has these divisors.
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
            divisors = frequency_divisors(config)
            is_alike = divisors is not None and given is not None and divisors.shape == given.shape
            if is_alike and torch.allclose(divisors, given, rtol=1e-5):  # type: ignore[arg-type]
                return
        raise ConfigError(
            f"'{self._file}': '{DIVISORS}' scales rotary embeddings in an unknown way."
        )


READER = Reader(TARGET.name, read, may_be_float=True)
