"""BERT-base in 8 bits, one text of 128 tokens, beside torch, torchao, onnxruntime and OpenVINO.

python benchmarks/bert_base.py [--tokens 128] [--seconds 6] [--threads 1]

Random weights: speed does not depend on them. All ways take turns; larger is faster. Calibrated
ways round inputs by a fixed step, as onnxruntime and OpenVINO do with the same file. torchao and
OpenVINO are measured where they are installed.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.bench.record import format_ratio
from chop.bench.timing import Call
from chop.export.onnx.session import opened, opened_by_openvino
from chop.formats import Integer, MXInt, QuantSpec, ScaleInteger
from chop.runs.environment import processor_name

CHANNEL, ROW = (ScaleInteger(8, granularity=x) for x in ("channel", "row"))
Inputs = dict[str, Tensor]


def ours(mg: MaseGraph, inputs: Inputs) -> Iterator[tuple[str, Call]]:
    """Packed, frozen and compiled graphs, and the file of the calibrated one in other engines."""
    specs = {
        "int8, inputs by row, packed": QuantSpec(data_in=ROW, weight=CHANNEL),
        "MXINT8 weights, packed": QuantSpec(weight=MXInt(8)),
    }
    for name, spec in specs.items():
        yield name, _called(_packed(_quantized(mg, spec)), inputs)
    calibrated = _quantized(mg, QuantSpec(data_in=Integer(8, "minmax"), weight=CHANNEL))
    calibrated, _ = passes.calibrate_transform_pass(calibrated, {"batches": [inputs]})
    packed = _packed(calibrated)
    yield "calibrated int8, packed", _called(packed, inputs)
    _, found = passes.freeze_transform_pass(packed, {"compile": True})
    yield "calibrated int8, frozen and compiled", lambda: found["compiled"](**inputs)["logits"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        passes.export_onnx_interface_pass(calibrated, {"path": path})
        run = opened(path)
        other = opened_by_openvino(path) if importlib.util.find_spec("openvino") else None
    yield "calibrated int8 in onnxruntime", lambda: run(inputs)[0]
    if other is not None:
        yield "calibrated int8 in OpenVINO", lambda: other(inputs)[0]


def _quantized(mg: MaseGraph, spec: QuantSpec) -> MaseGraph:
    rule = {"by": "type", "linear": {"config": spec}}
    return passes.quantize_transform_pass(mg, rule)[0]


def _packed(mg: MaseGraph) -> MaseGraph:
    return passes.pack_transform_pass(mg, {"silent": True})[0]


def _called(mg: MaseGraph, inputs: Inputs) -> Call:
    model = mg.model.eval()
    return lambda: model(**inputs)["logits"]


def peers(model: nn.Module, inputs: Inputs) -> Iterator[tuple[str, Call]]:
    """The same model by torch and torchao."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is being replaced by torchao
        dynamic = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8
        )
    yield "quantize_dynamic", lambda: dynamic(**inputs).logits
    compiled = torch.compile(copy.deepcopy(model))
    yield "float32 compiled", lambda: compiled(**inputs).logits
    if importlib.util.find_spec("torchao"):
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantized = copy.deepcopy(model)
        quantize_(quantized, Int8DynamicActivationInt8WeightConfig())
        fused = torch.compile(quantized)
        yield "torchao int8 dynamic, compiled", lambda: fused(**inputs).logits


def main() -> None:
    """The command line."""
    from transformers import BertConfig, BertForSequenceClassification

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    model = BertForSequenceClassification(BertConfig()).eval()
    ids = torch.randint(5, 500, (1, options.tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    mg = MaseGraph(model, hf_input_names=list(inputs))
    ways = [("float32", lambda: model(**inputs).logits), *ours(mg, inputs), *peers(model, inputs)]
    variants = [Variant(name, call) for name, call in ways]
    how = {"seconds": options.seconds, "threads": options.threads, "memory": False}
    found = compare(variants, "float32", outputs=False, **how)
    rows = [{"way": x.name, "times as fast": format_ratio(x.ratio)} for x in found]
    print_table(f"BERT-base, {options.tokens} tokens, {processor_name()}", rows)


if __name__ == "__main__":
    main()
