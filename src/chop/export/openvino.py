"""OpenVINO target: `.xml` and `.bin` files, converted from ONNX by OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.base.files import atomic_files, discard_older
from chop.base.files.temporary import scratch_folder
from chop.base.installed import version
from chop.errors import first_line, shorten
from chop.export.graphs.cache import from_cache
from chop.export.graphs.flat import named_tensors
from chop.export.language_model import (
    is_generator,
    require_no_model,
    save_configs,
    save_tokenizer,
    why_not_generated,
)
from chop.export.onnx.decoded_weights import openvino_weights
from chop.export.onnx.export import NEEDS
from chop.export.onnx.grouped import has_float_inputs
from chop.export.onnx.session import named_by_openvino
from chop.export.onnx.target import write_in_float32
from chop.export.openvino_states import keep_cache_as_state, with_beams
from chop.export.target import Runner, Target
from chop.ir.graph import MaseGraph

ROUNDED_INPUTS = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""Option by which OpenVINO rounds float inputs of layers with coded weights. Its default is 32."""
FLOAT_INPUTS = (
    f"the file sets {ROUNDED_INPUTS} to 0, so that OpenVINO does not round the inputs of layers "
    "with coded weights; compile the model with a larger value for more speed"
)
FOLDED = (
    "a batch norm is folded into the weight: OpenVINO's converter folds it into scales, torch's "
    "exporter into floats"
)
"""Reason why a weight may differ."""
TOKENIZERS = ("openvino_tokenizer", "openvino_detokenizer")
"""Files by which openvino-genai converts texts to tokens, and tokens to texts."""
CONVERTER = "openvino-tokenizers"
SUFFIXES = (".xml", ".bin")
"""Suffixes of a model's files."""


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes a graph as OpenVINO files, converted from ONNX.

    The cache of a decoder becomes a state of the file. Its configuration, generation settings and
    tokenizer are written next to it, and the tokenizer also as OpenVINO models if
    openvino-tokenizers is installed.

    Args:
        mg: graph; it is not changed.
        path: path of the `.xml` file; weights are stored next to it in a `.bin` file.
        tokenizer: tokenizer of a decoder, or None.
    Returns: `path`, `notes`, and the result of `chop.export.onnx.export`.

    Raises:
        UnavailableError: if OpenVINO, onnx or onnxscript is not installed.
        ConfigError: also see `require_no_model`.
        GraphError, VerificationError: see the export to ONNX.
    """
    TARGET.require()
    require_no_model(mg, path)
    import openvino

    with scratch_folder("openvino") as folder:
        file = folder / "model.onnx"
        written = write_in_float32(mg, file)
        model = openvino.convert_model(file)
    keep_cache_as_state(model)
    has_floats = any(has_float_inputs(mg.model.get_submodule(x)) for x in written["quantized"])
    if has_floats:
        model.set_rt_info("0", ["runtime_options", ROUNDED_INPUTS])
    with atomic_files(path.parent, "model") as fresh:
        openvino.save_model(model, fresh / path.name, compress_to_fp16=False)
        notes = _write_genai_files(mg, fresh, path, written["inputs"], tokenizer)
        names = sorted(file.name for file in fresh.iterdir() if file.is_file())
    written |= {"files": [path.with_name(name) for name in names]}
    written["notes"] += [*notes, *[FLOAT_INPUTS] * has_floats]
    return {"path": path, **written}


def _write_genai_files(
    mg: MaseGraph, folder: Path, path: Path, inputs: Sequence[str], tokenizer: Any
) -> list[str]:
    """Writes the files that openvino-genai reads next to a decoder, and returns notes for users.

    Args:
        mg: graph of the file.
        folder: folder for the files.
        path: final path of the decoder.
        inputs: names of its inputs in ONNX.
        tokenizer: tokenizer of the model, or None.
    """
    if not is_generator(mg):
        return []
    if reason := why_not_generated(mg, inputs):
        return [f"openvino-genai cannot run the file, because {reason}"]
    notes = []
    if path.stem != TARGET.stem:
        notes.append(f"openvino-genai opens a folder only if the file is {TARGET.stem}.xml")
    save_configs(mg, folder)
    used = save_tokenizer(tokenizer, folder)
    if used is not None and (reason := _convert_tokenizer(used, folder)):
        notes.append(f"openvino-genai takes only token ids, because {reason}")
        discard_older(folder, *(f"{name}{end}" for name in TOKENIZERS for end in SUFFIXES))
    return notes


def _convert_tokenizer(tokenizer: Any, folder: Path) -> str:
    """Writes a tokenizer as OpenVINO models, or returns the reason why that is impossible."""
    if version(CONVERTER) is None:
        return f"{CONVERTER} is not installed: pip install {CONVERTER}, and export again"
    import openvino

    try:
        from openvino_tokenizers import convert_tokenizer

        models = convert_tokenizer(tokenizer, with_detokenizer=True)
    except Exception as error:  # compiled code for another OpenVINO, or an unknown tokenizer
        return f"{CONVERTER} cannot convert the tokenizer: {shorten(first_line(error), 200)}"
    for model, name in zip(models, TOKENIZERS, strict=True):
        openvino.save_model(model, folder / f"{name}.xml")
    return ""


def read(path: Path) -> Runner:
    """Opens the files in OpenVINO on the CPU, in float32 if the file specifies it."""
    import openvino

    run, model = named_by_openvino(path), openvino.Core().read_model(path)
    shapes = {port.any_name: port.partial_shape for port in model.inputs}
    states = {x.get_info().variable_id: x.get_info().data_shape for x in model.get_variables()}
    sizes = {name: [x.get_min_length() for x in shape] for name, shape in (shapes | states).items()}

    def answers(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        tensors = named_tensors(inputs)
        return dict(run(with_beams(tensors) if states else tensors))

    return from_cache(answers, sizes)


TARGET = Target(
    "openvino",
    "OpenVINO",
    "as onnx",
    "openvino",
    "openvino",
    SUFFIXES[0],
    write,
    read,
    weights=openvino_weights,
    weight_cause=FOLDED,
    needs=NEEDS,
    beside=SUFFIXES[1:],
    stem="openvino_model",
    takes_cache=True,
)
