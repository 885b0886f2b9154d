"""Graphs in 8-bit static formats in onnxruntime and OpenVINO: the same outputs for all test rows.

An engine adds floats up in another order, so that a number next to the edge between two codes may
get the other one, and what follows differs. So the codes of every rounding are read from the
engine: each has to be one that our own number, off by the error of a sum, rounds to, where all
before it are the engine's. The logits after those codes are the engine's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chop import MaseGraph, passes
from chop.data import get_tokenized_dataset
from chop.export.onnx import session
from chop.export.targets import target
from chop.formats import QuantSpec, parse_format_string
from chop.models import load_model
from chop.nn.quantized import QuantizedOperator
from chop.quantization.named_operators import present_operators, weighted_operators
from chop.train import Rows, default_dataset, load_trained, read_rows
from chop.train.calibration import calibrated
from chop.train.evaluator import Evaluator
from chop.workloads.workload import Workload, raise_to_graph
from tests.onnx_runs import translations_once
from tests.rounding import ERROR, is_computed

__all__ = ["translations_once"]

to_array = pytest.importorskip("onnx").numpy_helper.to_array

ENGINES = {"onnx": "onnxruntime", "openvino": "openvino"}
BUILT_IN = ("mlp", "cnn", "vit", "bert-tiny")
"""Of their test rows no answer changes."""
REVIEWS = 500


@pytest.fixture(scope="module")
def workload_of(request) -> Callable[[str], Workload]:
    @cache
    def found(name: str) -> Workload:
        if name == "resnet18":
            return _resnet()
        if name == "reviews":
            return _reviews(request.getfixturevalue("data_folder"))
        rows = {split: read_rows(x) for split, x in default_dataset(name).items()}
        model = load_trained(name)
        return Workload.of(model, rows["train"], rows["test"], name=name, dataset="its own")

    return found


def _resnet() -> Workload:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    model = timm.create_model("resnet18", num_classes=10).eval()
    pictures = {"x": torch.randn(64, 3, 64, 64)}
    with torch.no_grad():
        rows = Rows(pictures, model(**pictures).argmax(-1))
    return Workload.of(model, rows, rows, name="resnet18", dataset="noise")


def _reviews(data) -> Workload:
    folder = data / "bert-tiny-imdb"
    splits = get_tokenized_dataset(data / "imdb", folder, max_length=256, limit=REVIEWS)
    rows = read_rows(splits["train"]), read_rows(splits["test"])
    return Workload.of(load_model(folder, num_labels=2), *rows, name="reviews", dataset="IMDb")


def _quantized(workload: Workload) -> MaseGraph:
    mg = raise_to_graph(workload)
    config = {"config": QuantSpec.uniform(parse_format_string("8.auto"))}
    rules = dict.fromkeys(present_operators(mg, weighted_operators()), config)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    return calibrated(mg, workload.train, 256)


def _logits(answer) -> Tensor:
    if isinstance(answer, Tensor):
        return answer
    return answer["logits"] if "logits" in answer else answer["output"]


class _Engine:
    """A file in an engine, and the same that gives what it rounds to as well.

    Args:
        engine: a target.
        path: of its file.
    """

    def __init__(self, engine: str, path: Path) -> None:
        import onnx

        proto = onnx.load(path)
        self.outputs = [each.name for each in proto.graph.output]
        constants = {each.name: to_array(each) for each in proto.graph.initializer}
        constants |= {
            node.output[0]: to_array(node.attribute[0].t)
            for node in proto.graph.node
            if node.op_type == "Constant" and node.attribute[0].name == "value"
        }
        roundings = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
        self.grids = {
            node.output[0]: [torch.tensor(constants[name]) for name in node.input[1:]]
            for node in roundings
        }
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(x) for x in self.grids)
        observed = path.with_name("observed.onnx")
        onnx.save(proto, observed)
        opened = {"onnx": session.opened, "openvino": session.opened_by_openvino}[engine]
        self.plain, self.observed = opened(path), opened(observed)

    def logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Of the file as it is."""
        return _logits(dict(zip(self.outputs, self.plain(inputs), strict=True)))

    def values(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The logits, and the values of every rounding."""
        found = self.observed(inputs)
        codes = zip(self.grids.values(), found[len(self.outputs) :], strict=True)
        values = [(k.float() - zero.float()) * scale for (scale, zero), k in codes]
        return _logits(dict(zip(self.outputs, found, strict=False))), values


@contextmanager
def _following(values: list[Tensor]) -> Iterator[set[int]]:
    """Inside, operators go on with what an engine rounded to, if our numbers may round to it.

    Yields: which of the values our numbers may have rounded to, as operators run.
    """
    rounding, met = QuantizedOperator.quantize, set[int]()

    def quantize(self, operand, x):
        if not is_computed(self, operand, x) or self.operand_format(operand).is_identity:
            return rounding(self, operand, x)
        error = ERROR * x.abs().amax()
        low, high = (rounding(self, operand, y) for y in (x - error, x + error))
        alike = {i: value for i, value in enumerate(values) if value.shape == x.shape}
        fitting = [i for i, v in alike.items() if ((low <= v) & (v <= high)).all()]
        assert fitting, f"the engine rounds the {operand} of {type(self).__name__} otherwise"
        met.update(fitting)
        return values[fitting[0]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuantizedOperator, "quantize", quantize)
        yield met


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", [*BUILT_IN, "resnet18", pytest.param("reviews", marks=pytest.mark.data)]
)
def test_engines_give_our_outputs(name, engine, workload_of, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip(ENGINES[engine], reason=f"{ENGINES[engine]} is not installed")
    workload = workload_of(name)
    mg = _quantized(workload)
    made = target("onnx").export(mg, tmp_path / "model")
    assert made.notes == ()
    run = _Engine(engine, made.path)
    evaluator = Evaluator(mg.model, workload.test)
    changed = 0
    with torch.inference_mode():
        for inputs, _ in evaluator.batches:
            found, values = run.values(inputs)
            assert torch.equal(found, run.logits(inputs))
            expected = _logits(mg.model(**inputs))
            changed += int((found.argmax(-1) != expected.argmax(-1)).sum())
            with _following(values) as met:
                ours = _logits(mg.model(**inputs))
            assert len(met) == len(values)
            assert torch.equal(ours, found)
    assert changed <= (0.0 if name in BUILT_IN else 0.01) * len(evaluator)
