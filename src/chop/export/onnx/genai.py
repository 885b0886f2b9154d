"""`genai_config.json`: description of a decoder's ONNX file for onnxruntime-genai.

Source: `onnxruntime_genai/models/builders/base.py`, `make_genai_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chop.base.files import atomic_files, write_json
from chop.base.files.documents import read_json
from chop.base.files.reading import NotReadableError
from chop.captured.huggingface.cache_names import POSITIONS
from chop.errors import enumerate_names
from chop.export.graphs.cache import IDS, LOGITS, MASK, PARTS, PAST, PRESENT, part_name
from chop.export.language_model import (
    get_generation_settings,
    is_generator,
    save_tokenizer,
    why_not_generated,
)
from chop.export.onnx.session import SESSION_CONFIG
from chop.export.refusals import MOST_LISTED
from chop.ir.graph import MaseGraph

FILE, TOKENIZER = "genai_config.json", "tokenizer.json"
TYPE = "decoder"
"""Type for decoders of any architecture with these inputs and outputs."""
SEARCH: Mapping[str, Any] = {
    "do_sample": False,
    "early_stopping": False,
    "length_penalty": 1.0,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
}
"""Search settings of both libraries, with the defaults of `generate` of transformers."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
WITHOUT_EFFECT = {
    *("_from_model_config", "transformers_version", "max_length", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate"),
}
"""Settings that change no token, or that the file expresses by its limit of the length."""


def write_genai_files(
    mg: MaseGraph, path: Path, shapes: Mapping[str, Sequence[int]], tokenizer: Any
) -> tuple[list[Path], list[str]]:
    """Writes `genai_config.json` and the tokenizer of a decoder next to its file.

    Args:
        mg: graph of the file.
        path: path of the ONNX file.
        shapes: shapes of its inputs and outputs by name; 0 for dynamic axes.
        tokenizer: tokenizer of the model, or None.
    Returns: written files, and notes for their users. Graphs of other models have neither.
    """
    inputs = [name for name in shapes if name != LOGITS and not name.startswith(f"{PRESENT}.")]
    if not is_generator(mg):
        _remove_older(path)
        return [], []
    if reason := why_not_generated(mg, inputs) or _why_not_opened(mg, shapes):
        _remove_older(path)
        return [], [f"onnxruntime-genai cannot run the file, because {reason}"]
    settings = get_generation_settings(mg)
    with atomic_files(path.parent, FILE) as fresh:
        used = save_tokenizer(tokenizer, fresh)
        is_readable = used is None or (fresh / TOKENIZER).is_file()
        write_json(fresh / FILE, genai_config(mg, path.name, shapes, settings))
        names = sorted(file.name for file in fresh.iterdir())
    notes = []
    if not is_readable:
        notes.append(f"onnxruntime-genai reads only tokenizers with a {TOKENIZER}: pass token ids")
    known = {*SEARCH, *TOKENS, *WITHOUT_EFFECT}
    if others := [name for name, x in settings.items() if name not in known and x]:
        listed = enumerate_names(others, MOST_LISTED)
        notes.append(f"{FILE} cannot express {listed} of the generation settings")
    return [path.with_name(name) for name in names], notes


def genai_config(
    mg: MaseGraph,
    file: str,
    shapes: Mapping[str, Sequence[int]],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the content of `genai_config.json`.

    Args:
        mg: graph of a decoder with a cache.
        file: name of the ONNX file.
        shapes: see `write_genai_files`.
        settings: content of `generation_config.json`.
    """
    config = mg.model.record.config.get_text_config()
    length = config.max_position_embeddings
    tokens = {name: _first_given(settings.get(name), getattr(config, name)) for name in TOKENS}
    if tokens["pad_token_id"] is None:  # the library pads batches
        tokens["pad_token_id"] = _first(tokens["eos_token_id"])
    search = {name: _first_given(settings.get(name), default) for name, default in SEARCH.items()}
    longest = min(length, _first_given(settings.get("max_length"), length))
    return {
        "model": {
            "type": TYPE,
            **{name: x for name, x in tokens.items() if x is not None},
            "vocab_size": shapes[LOGITS][-1],
            "context_length": length,
            "decoder": _decoder(config, file, shapes),
        },
        "search": {**search, "max_length": longest, "past_present_share_buffer": False},
    }


def _decoder(config: Any, file: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    pasts = [shape for name, shape in shapes.items() if name.startswith(f"{PAST}.")]
    _, heads, _, size = pasts[0]
    inputs = {name: name for name in (IDS, MASK, POSITIONS) if name in shapes}
    pairs = {"past": PAST, "present": PRESENT}
    past, present = (
        {f"{end}_{part}_names": part_name(root, "%d", part) for part in PARTS}
        for end, root in pairs.items()
    )
    return {
        "session_options": {**SESSION_CONFIG, "provider_options": []},
        "filename": file,
        "hidden_size": config.hidden_size,
        "head_size": size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": len(pasts) // len(PARTS),
        "inputs": {**inputs, **past},
        "outputs": {LOGITS: LOGITS, **present},
    }


def _why_not_opened(mg: MaseGraph, shapes: Mapping[str, Sequence[int]]) -> str:
    """Returns the reason why the library cannot describe a decoder; "" if it can."""
    pasts = {name: shape for name, shape in shapes.items() if name.startswith(f"{PAST}.")}
    layers = range(len(pasts) // len(PARTS))
    if {*pasts} != {part_name(PAST, layer, part) for layer in layers for part in PARTS}:
        return "some of its layers have no cache"
    if len({tuple(shape) for shape in pasts.values()}) > 1:
        return "the heads of its keys and values differ in number or size"
    config = mg.model.record.config.get_text_config()
    if not isinstance(getattr(config, "max_position_embeddings", None), int):
        return "its configuration has no max_position_embeddings"
    return ""


def _remove_older(path: Path) -> None:
    """Removes the description of the decoder that the file had before."""
    description = path.with_name(FILE)
    with suppress(OSError, NotReadableError, LookupError, TypeError):  # none, or another program's
        if read_json(description, "config")["model"]["decoder"]["filename"] == path.name:
            description.unlink()


def _first_given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _first(ids: Any) -> Any:
    return ids[0] if isinstance(ids, list) and ids else ids
