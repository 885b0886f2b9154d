"""Latency of quantized models as ONNX in onnxruntime, beside floats, torch and packed weights.

    python benchmarks/onnx_latency.py [--seconds 1.0] [--models mlp vit]

One thread. Linear and convolution layers have 8-bit inputs (`integer`, calibrated) and 8-bit
weights with a scale per channel; the rest is float. The float ONNX file is the same graph before
it was quantized. Untrained weights: latency does not depend on them.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import torch

from chop import MaseGraph, passes
from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.bench.record import format_ratio, format_seconds
from chop.export.onnx.session import onnxruntime_settings
from chop.formats import Integer, QuantSpec, ScaleInteger
from chop.models import get_model

SPEC = QuantSpec(Integer(8, "minmax"), ScaleInteger(8, granularity="channel"))
INTEGER_KERNELS = {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"}
CASES = {
    "mlp": [(1,), (16,), (64,)],
    "vit": [(1,), (16,), (64,)],
    "cnn": [(1,), (16,), (64,)],
    "bert-tiny": [(1, 128), (16, 128)],
    "BERT 4 x 256": [(1, 128), (8, 128)],
}


def _model(name: str) -> torch.nn.Module:
    if name in ("mlp", "vit", "cnn", "bert-tiny"):
        return get_model(name).eval()
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024}
    config = BertConfig(vocab_size=512, num_attention_heads=4, **sizes)
    return BertForSequenceClassification(config).eval()


def _inputs(name: str, shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    if name in ("mlp", "vit", "cnn"):
        return {"pixel_values": torch.randn(*shape, 1, 8, 8)}
    ids = torch.randint(5, 500, shape)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _graphs(name: str, model: torch.nn.Module) -> tuple[MaseGraph, MaseGraph]:
    """(float, quantized and calibrated)."""
    mg = MaseGraph(model, hf_input_names=list(_inputs(name, (2, 5))))
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    mg, _ = passes.conv_bn_fusion_transform_pass(mg, {})
    operators = {mg.operator(node).name for node in mg.nodes} & {"linear", "conv2d"}
    rules = {operator: {"config": SPEC} for operator in operators}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    batches = [_inputs(name, shape) for shape in CASES[name]]
    return mg, passes.calibrate_transform_pass(quantized, {"batches": batches})[0]


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    for name, value in onnxruntime_settings().items():
        options.add_session_config_entry(name, value)
    options.optimized_model_filepath = str(path.with_suffix(".optimized"))
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def _integer_share(path: Path) -> str:
    """How many products the runtime computes in integers, of all that have weights."""
    graph = onnx.load(str(path.with_suffix(".optimized"))).graph
    kinds = Counter(node.op_type for node in graph.node)
    return str(sum(kinds[kind] for kind in INTEGER_KERNELS))


def _run(session, inputs):
    given = {key: x.numpy() for key, x in inputs.items()}
    return lambda: torch.from_numpy(session.run(None, given)[0])


def _call(model, inputs):
    return lambda: model(**inputs).logits


def _rows(name: str, folder: Path, seconds: float) -> list[dict[str, object]]:
    original = _model(name)
    floats, quantized = _graphs(name, original)
    packed, _ = passes.pack_transform_pass(quantized, {"silent": True})
    frozen = passes.freeze_transform_pass(quantized, {"engine": "onnxruntime"})[1]["compiled"]
    paths = {}
    for kind, mg in {"float": floats, "int8": quantized}.items():
        _, info = passes.export_onnx_interface_pass(mg, {"path": folder / f"{name}-{kind}.onnx"})
        paths[kind] = info["path"]
    sessions = {kind: _session(path) for kind, path in paths.items()}
    rows = []
    for shape in CASES[name]:
        inputs = _inputs(name, shape)
        variants = [
            Variant("ONNX int8", _run(sessions["int8"], inputs)),
            Variant("ONNX float", _run(sessions["float"], inputs)),
            Variant("torch float", _call(original, inputs)),
            Variant("frozen, onnxruntime", _call(frozen, inputs)),
            Variant("chop packed", _call(packed.model, inputs)),
        ]
        found = compare(variants, "torch float", seconds=seconds, threads=1, memory=False)
        direct = compare(variants[:2], "ONNX float", seconds=seconds, threads=1, memory=False)
        with torch.inference_mode():
            expected = quantized.model(**inputs).logits
            exact = floats.model(**inputs).logits
        off = (variants[0].call() - expected).abs().max().item()
        rows.append(
            {
                "model": f"{name}, {' x '.join(map(str, shape))}",
                **{each.name: format_seconds(each.seconds) for each in found},
                "int8 / torch float": format_ratio(found["ONNX int8"].ratio),
                "int8 / ONNX float": format_ratio(direct["ONNX int8"].ratio),
                "frozen / torch float": format_ratio(found["frozen, onnxruntime"].ratio),
                "integer products": _integer_share(paths["int8"]),
                "MB": " / ".join(f"{paths[k].stat().st_size / 1e6:.2f}" for k in paths),
                "int8 - chop": f"{off:.1e}",
                "chop - float": f"{(expected - exact).abs().max().item():.1e}",
            }
        )
    return rows


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--models", nargs="*", choices=CASES, default=[*CASES])
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row for name in options.models for row in _rows(name, Path(folder), options.seconds)
        ]
    print_table("Latency of one call, one thread; ratios: times as fast", rows)


if __name__ == "__main__":
    main()
