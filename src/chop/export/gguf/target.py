"""GGUF target: files of packed weights in blocks for llama.cpp and transformers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.base.files import atomic_file
from chop.base.files.temporary import scratch_folder
from chop.errors import ConfigError
from chop.export.coded import coded_weight
from chop.export.foreign.loading import without_data
from chop.export.gguf.architectures import ARCHITECTURES, Architecture
from chop.export.gguf.blocks import Blocks, pack_blocks
from chop.export.gguf.config import check_architecture, node_metadata, unread_settings
from chop.export.gguf.floats import is_read_by_transformers, read_floats
from chop.export.gguf.header import Header, TensorPlace, read_header, write_part
from chop.export.gguf.k_blocks import pack_k_blocks
from chop.export.gguf.names import SCALE, Named, get_heads, named_parameters, scale_name
from chop.export.gguf.rope import frequency_divisors
from chop.export.gguf.tokenizer import Vocabulary, get_vocabulary
from chop.export.packed_model import get_runner, get_weights, packed_model
from chop.export.refusals import refuse
from chop.export.target import Runner, Target
from chop.formats import KQuant
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator

if TYPE_CHECKING:
    from gguf import GGUFWriter

WAY_OUT = (
    "Quantize these modules to mxint:width=8, mxint:width=4, group_integer, group_affine of up to "
    "5 bits or mxfp:width=4 (rows of a multiple of 32 values), nvfp4 (64) or k_quant (256), or "
    "keep them in float."
)
FILE_TYPES = {
    "Q8_0": "MOSTLY_Q8_0",
    "Q5_0": "MOSTLY_Q5_0",
    "Q5_1": "MOSTLY_Q5_1",
    "Q4_0": "MOSTLY_Q4_0",
    "Q4_1": "MOSTLY_Q4_1",
    "Q6_K": "MOSTLY_Q6_K",
    "Q5_K": "MOSTLY_Q5_K_S",
    "Q4_K": "MOSTLY_Q4_K_S",
    "Q3_K": "MOSTLY_Q3_K_S",
    "Q2_K": "MOSTLY_Q2_K_S",
    "NVFP4": "MOSTLY_NVFP4",
    "MXFP4": "MOSTLY_MXFP4_MOE",
    "F16": "MOSTLY_F16",
    "BF16": "MOSTLY_BF16",
    "F32": "ALL_F32",
}
"""Names in gguf's `LlamaFileType` by the block type of most bytes."""
MLP = ".ffn_"
"""Part of the names of an MLP's tensors."""
MOVED = "offsets of groups are rounded to float16, which changes weights by up to {:.1g}"
NO_TOKENIZER = "none: engines can process only token ids"


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes a transformers language model; packed weights keep their codes.

    Norms, biases and unpacked weights stay floats. A head that is tied to the embedding is omitted:
    engines tie it again.

    Args:
        mg: graph; it is not changed.
        path: path of the file.
        tokenizer: BPE tokenizer, or None to write no tokenizer.
    Returns: `path`, `tensors` (type by GGUF name), `bytes`, `tokenizer` and `notes`.

    Raises:
        ConfigError: if GGUF cannot store some parts, which the message names; no file is written.
        UnavailableError: if gguf is not installed.
        WriteError: if the disk is full or read-only.
    """
    from transformers import PreTrainedConfig, ProcessorMixin

    TARGET.require()
    if isinstance(mg.model.record.config, PreTrainedConfig):
        check_architecture(mg.model.record.config)  # before the advice to quantize
    model, unheld = packed_model(mg, TARGET.name)
    config: Any = model.config
    architecture = check_architecture(config)
    if model.get_output_embeddings() is None:
        raise ConfigError(
            f"gguf: expected a language model with a head, got a {type(model).__name__}; "
            "load the model with AutoModelForCausalLM."
        )
    if isinstance(tokenizer, ProcessorMixin):
        tokenizer = getattr(tokenizer, "tokenizer", None)
    vocabulary = None if tokenizer is None else get_vocabulary(tokenizer, config.vocab_size)
    tensors, reasons = _tensors(model, architecture)
    refuse(TARGET.name, reasons | unheld, WAY_OUT)
    metadata = {
        "general.name": Path(config.name_or_path or "").name or type(model).__name__,
        **node_metadata(config, architecture),
    }
    with atomic_file(path) as temporary:
        _write_file(temporary, architecture, metadata, vocabulary, tensors)
    summary = NO_TOKENIZER if vocabulary is None else vocabulary.summary
    moved = max((blocks.moved for blocks in tensors.values()), default=0.0)
    return {
        "path": path,
        "tensors": {name: blocks.type_name for name, blocks in tensors.items()},
        "bytes": path.stat().st_size,
        "tokenizer": summary,
        "notes": [f"tokenizer: {summary}", *([MOVED.format(moved)] if moved else [])],
    }


def refusals(mg: MaseGraph) -> dict[str, str]:
    """Returns why a file cannot store modules, by path; see `chop.export.target.Target`."""
    model, unheld = packed_model(mg, TARGET.name)
    return _tensors(model, check_architecture(model.config))[1] | unheld


def read(path: Path) -> Runner:
    """Loads the model of a file with `read_model`."""
    return get_runner(read_model(path))


def read_model(path: Path) -> nn.Module:
    """Loads the model in float32, with transformers if it reads such files.

    Transformers ignores some settings of a file: the head size of Qwen3, sizes of GPT-2, rotary
    embeddings, soft caps of Gemma. This function passes them. It also multiplies weights by the
    tensor scales of NVFP4, which transformers ignores or rejects. Weights of other architectures,
    and biases of Llamas, are decoded by the gguf library.

    Raises:
        UnavailableError: if gguf is not installed.
    """
    TARGET.require()
    header = read_header(path)
    if not is_read_by_transformers(header):
        model = read_floats(path, header)
        _multiply_by_scales(model, header.tensors, path)
        return model
    scales = [name for name in header.tensors if name.endswith(SCALE)]
    if not scales:
        return _read_by_transformers(path, header)
    with scratch_folder("gguf") as folder:
        part, others = folder / path.name, [x for x in header.tensors if x not in scales]
        write_part(path, header, header.pairs, part, others)
        model = _read_by_transformers(part, header)
    _multiply_by_scales(model, {name: header.tensors[name] for name in scales}, path)
    return model


def _read_by_transformers(path: Path, header: Header) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    place, name = path.parent, path.name
    config = AutoConfig.from_pretrained(place, gguf_file=name)
    settings = unread_settings(config, header.metadata, header.tensors, f"'{path}'")
    for key, value in settings.items():
        setattr(config, key, value)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, dtype=torch.float32, config=config
    )
    return model.eval()


def _multiply_by_scales(model: Any, scales: Mapping[str, TensorPlace], path: Path) -> None:
    """Multiplies weights by scales stored as their own tensors, which transformers ignores."""
    data = np.memmap(path, mode="r")
    for named in named_parameters(model, ARCHITECTURES[model.config.model_type]):
        place = scales.get(scale_name(str(named.name)))
        if place is not None and named.operand == "weight":
            scale = data[place.start : place.start + place.size].view(np.float32).item()
            with torch.no_grad():
                getattr(named.module, named.operand).mul_(scale)


TARGET = Target(
    name="gguf",
    engines="llama.cpp, transformers",
    takes=(
        "weights in mxint, group_integer, group_affine of up to 5 bits, 4-bit mxfp, nvfp4 and "
        "k_quant"
    ),
    library="gguf",
    extra="gguf",
    suffix=".gguf",
    write=write,
    read=read,
    refusals=refusals,
    formats=(
        *(f"group_integer:width={bits}" for bits in range(2, 9)),
        *(f"group_affine:width={bits}" for bits in range(2, 6)),
        *(f"k_quant:width={bits}" for bits in range(2, 7)),
        *("mxint:width=4", "mxint:width=8", "mxfp:width=4", "nvfp4"),
    ),
    weights=lambda path: get_weights(read_model(path)),
    is_timed=False,
)


def _tensors(model: Any, architecture: Architecture) -> tuple[dict[str, Blocks], dict[str, str]]:
    """Returns the tensors of a file by name, and the reasons for unsupported modules by path."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    tied = _tied_head(model)
    tensors: dict[str, Blocks] = {}
    expected = _parameters_of_kind(model)
    reasons = _missing(model, expected, architecture)
    for named in named_parameters(model, architecture):
        if named.module is tied and named.operand == "weight" and not architecture.has_head:
            continue
        stored = _stored(named.module, named.operand)
        kind, is_known = architecture.name, named.key in expected
        if named.module is head and named.operand == "weight" and architecture.is_tied:
            reasons[named.path] = f"engines use the embedding of a {kind}, which has other codes"
        elif named.name is None or not is_known:
            reasons[named.path] = f"a GGUF {kind} has no tensor for its {named.operand}"
        elif isinstance(stored, str):
            reasons[named.path] = stored
        elif stored.scale is not None and named.module is table:
            reasons[named.path] = "engines do not support a tensor scale for embeddings"
        elif stored.scale is not None and named.experts:
            reasons[named.path] = "its tensor scale is shared by all experts"
        elif stored.scale is not None and MLP in named.name and not architecture.has_mlp_scales:
            reasons[named.path] = f"llama.cpp ignores tensor scales of the MLP of a {kind}"
        else:
            tensors[named.name] = _as_engines_have(stored, named, model.config)
            if stored.scale is not None:
                tensors[scale_name(named.name)] = Blocks(
                    "F32", np.array([stored.scale], np.float32)
                )
    divisors = frequency_divisors(model.config)
    if divisors is not None:
        tensors["rope_freqs.weight"] = Blocks("F32", divisors.numpy())
    return tensors, reasons


def _parameters_of_kind(model: Any) -> set[str]:
    """Returns the parameter names of a new model with this configuration."""
    from transformers import AutoModelForCausalLM

    plain = without_data(AutoModelForCausalLM, model.config)
    return {name for name, _ in plain.named_parameters(remove_duplicate=False)}


def _missing(model: Any, expected: set[str], architecture: Architecture) -> dict[str, str]:
    present = {x.key for x in named_parameters(model, architecture)}
    lacking = (name.rpartition(".") for name in sorted(expected - present))
    return {
        path: f"a GGUF {architecture.name} requires its {operand}, which the model lacks"
        for path, _, operand in lacking
    }


def _tied_head(model: Any) -> nn.Module | None:
    """Returns the head if its weight is the embedding's."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    kinds = [isinstance(module, PackedOperator) for module in (head, table)]
    if any(kinds):
        is_one = all(kinds) and _is_one(head.encoded("weight").codes, table.encoded("weight").codes)
        same_format = is_one and head.spec.weight == table.spec.weight
        return head if same_format else None
    return head if _is_one(head.weight, table.weight) else None


def _is_one(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.data_ptr() == other.data_ptr() != 0)


def _stored(module: Any, operand: str) -> Blocks | str:
    """Returns a parameter in GGUF form, (out, in), or the reason why that is impossible."""
    from transformers.pytorch_utils import Conv1D

    if operand == "weight" and isinstance(module, PackedOperator):
        number_format = module.spec.weight
        if isinstance(number_format, KQuant):
            return pack_k_blocks(number_format, module.encoded("weight"))
        weight = coded_weight(module, zero_points=True)
        blocks = weight if isinstance(weight, str) else pack_blocks(weight)
        return blocks if isinstance(blocks, str) else _known(blocks)
    values: Tensor = getattr(module, operand).detach().cpu()
    values = values.flatten(0, -2) if values.ndim == 3 else values
    if values.ndim < 2 or isinstance(module, nn.Conv1d):  # llama.cpp convolves float32 only
        return Blocks("F32", values.float().numpy())
    values = (values.t() if isinstance(module, Conv1D) else values).contiguous()
    if values.dtype == torch.bfloat16:
        return Blocks("BF16", values.view(torch.uint8).numpy())
    if values.dtype in (torch.float32, torch.float16):
        return Blocks("F32" if values.dtype == torch.float32 else "F16", values.numpy())
    return f"its {operand} is {values.dtype}, instead of float32, float16 or bfloat16"


def _known(blocks: Blocks) -> Blocks | str:
    """Returns the blocks, or the reason why the installed gguf library cannot write them."""
    from gguf import GGMLQuantizationType

    if blocks.type_name in GGMLQuantizationType.__members__:
        return blocks
    return f"{blocks.type_name} needs gguf 0.19 or newer: pip install --upgrade gguf"


def _as_engines_have(stored: Blocks, named: Named, config: Any) -> Blocks:
    """Interleaves rows of projections and adds 1 to norms if engines expect that.

    Matrices of experts are separated to (experts, rows, ...).
    """
    if named.experts:
        stacked = stored.data.reshape(named.experts, -1, stored.data.shape[-1])
        halves = np.split(stacked, 2, axis=1) if named.half is not None else [stacked]
        return replace(stored, data=np.ascontiguousarray(halves[named.half or 0]))
    if named.is_vector:
        return replace(stored, data=stored.data.reshape(-1))
    if named.is_interleaved:
        heads = get_heads(named.path, config)
        rows = np.arange(len(stored.data)).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
        return replace(stored, data=stored.data[rows])
    return replace(stored, data=stored.data + np.float32(1)) if named.is_less_one else stored


def _write_file(
    path: Path,
    architecture: Architecture,
    metadata: Mapping[str, int | float | str | list[int]],
    vocabulary: Vocabulary | None,
    tensors: Mapping[str, Blocks],
) -> None:
    from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType

    writer = GGUFWriter(path, architecture.name)
    for key, value in metadata.items():
        _add_value(writer, key, value)
    writer.add_file_type(LlamaFileType[FILE_TYPES[_most_common_type(tensors)]])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    _add_tokenizer(writer, vocabulary)
    for name, blocks in tensors.items():
        writer.add_tensor(name, blocks.data, raw_dtype=GGMLQuantizationType[blocks.type_name])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_value(writer: GGUFWriter, key: str, value: int | float | str | list[int]) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _most_common_type(tensors: Mapping[str, Blocks]) -> str:
    sizes: Counter[str] = Counter()
    for blocks in tensors.values():
        sizes[blocks.type_name] += blocks.data.nbytes
    return sizes.most_common(1)[0][0]


def _add_tokenizer(writer: GGUFWriter, vocabulary: Vocabulary | None) -> None:
    if vocabulary is None:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores is None:
        writer.add_token_merges(vocabulary.merges)
    else:
        writer.add_token_scores(vocabulary.scores)
    for key, value in vocabulary.ids.items():
        _add_value(writer, f"tokenizer.ggml.{key}", value)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)
