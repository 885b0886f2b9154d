"""GGUF files as float models, without transformers' reader.

The gguf library decodes the tensors. Files of architectures that transformers does not read are
compared with a graph by this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.export.gguf.architectures import ARCHITECTURES
from chop.export.gguf.config import stated_config, unread_settings
from chop.export.gguf.header import Header
from chop.export.gguf.names import Named, get_heads, named_parameters

QUERY_BIAS = "blk.0.attn_q.bias"


def is_read_by_transformers(header: Header) -> bool:
    """Returns True if transformers reads the file; it does not reorder biases of a Llama's rows."""
    name = header.metadata.get("general.architecture")
    kinds = [one for one in ARCHITECTURES.values() if one.name == name]
    is_turned = any(one.permutes for one in kinds) and QUERY_BIAS in header.tensors
    return not is_turned and all(one.is_read for one in kinds)


def read_floats(path: Path, header: Header) -> nn.Module:
    """Loads a model in float32; tensor scales of NVFP4 are not applied.

    Raises:
        CheckpointError: if the file lacks a tensor.
    """
    from gguf import GGUFReader, quants
    from transformers import AutoConfig, AutoModelForCausalLM

    config = stated_config(header.metadata, header.tensors)
    if config is None:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    settings = unread_settings(config, header.metadata, header.tensors, f"'{path}'")
    for key, value in settings.items():
        setattr(config, key, value)
    architecture = ARCHITECTURES[config.model_type]
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    head = model.get_output_embeddings() if config.tie_word_embeddings else None
    tensors = {x.name: x for x in GGUFReader(path).tensors}
    for named in named_parameters(model, architecture):
        if named.module is head and named.operand == "weight":
            continue
        tensor = tensors.get(str(named.name))
        if tensor is None:
            raise CheckpointError(f"'{path}' lacks the tensor '{named.name}'.")
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        parameter = getattr(named.module, named.operand)
        with torch.no_grad():
            stored = _as_transformers_has(torch.tensor(values), named, config)
            parameter.copy_(stored.view_as(parameter))
    loaded: nn.Module = model.eval()
    return loaded


def _as_transformers_has(values: Tensor, named: Named, config: Any) -> Tensor:
    """Restores the order of rows and subtracts the 1 that engines expect in norms."""
    if named.is_interleaved:
        heads = get_heads(named.path, config)
        halves: Tensor = values.unflatten(0, (heads, -1, 2)).transpose(1, 2)
        return halves.flatten(0, 2)
    return values - 1 if named.is_less_one else values
