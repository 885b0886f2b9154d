"""Quantized models in onnxruntime and OpenVINO: speed, size, equality and accuracy.

    python benchmarks/engines.py [--seconds 0.3] [--models vit cnn] [--data FOLDER] [--rows 1000]

Times as fast as float in torch, in turns, on one thread, where processor time decides. Test rows go
through the quantized graph and through both engines: a row is equal where its outputs are, bit for
bit. FOLDER has `bert-tiny-imdb` and `imdb` (reviews); without it they are left out. ResNet-18 of
timm, where it is installed, and the BERT of 4 layers have random weights; their metric is how often
the answer is that of the float model.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.bench.record import format_bytes, format_ratio, format_seconds
from chop.data import get_tokenized_dataset
from chop.export.target import Runner
from chop.export.targets import target
from chop.formats import QuantSpec, parse_format_string
from chop.models import load_model
from chop.pipelines.packed_weights import pack_weights
from chop.quantization.named_operators import present_operators, weighted_operators
from chop.runs.environment import processor_name
from chop.train import Rows, default_dataset, load_trained, read_rows
from chop.train.calibration import calibrated
from chop.train.evaluator import Evaluator
from chop.workloads.workload import Workload, raise_to_graph

STATIC, FEW = "8.auto", "group_integer:width=4"
FORMATS = {STATIC: "inputs too", FEW: "weights alone"}
ENGINES = {"onnx": "onnxruntime", "openvino": "OpenVINO"}
BATCHES = (1, 16)
FLOAT, PACKED = "float", "packed"
PICTURE, PICTURES, TOKENS, TEXTS = 64, 128, 128, 64


def builtin(name: str, args: argparse.Namespace) -> Workload:
    """A built-in model and its data."""
    rows = {split: read_rows(found) for split, found in default_dataset(name).items()}
    test = rows["test"].spread(args.rows)
    return Workload.of(load_trained(name), rows["train"], test, name=name, dataset="its own")


def resnet(args: argparse.Namespace) -> Workload | None:
    """ResNet-18 of timm and noise; None where timm is not installed."""
    if importlib.util.find_spec("timm") is None:
        return None
    import timm

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10).eval()
    pictures = {"x": torch.randn(PICTURES, 3, PICTURE, PICTURE)}
    return _of_random_weights(model, pictures, "resnet18 of timm")


def larger_bert(args: argparse.Namespace) -> Workload:
    """A BERT of 4 layers of 256 and random tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024}
    config = BertConfig(vocab_size=1024, num_attention_heads=4, **sizes)
    ids = torch.randint(5, 1000, (TEXTS, TOKENS))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return _of_random_weights(BertForSequenceClassification(config).eval(), inputs, "BERT 4 x 256")


def _of_random_weights(model: nn.Module, inputs: dict[str, Tensor], name: str) -> Workload:
    with torch.no_grad():
        found = model(**inputs)
    labels = (found if isinstance(found, Tensor) else found.logits).argmax(-1)
    rows = Rows(inputs, labels)
    return Workload.of(model, rows, rows, name=name, dataset="random")


def reviews(args: argparse.Namespace) -> Workload | None:
    """BERT-tiny and IMDb, 256 tokens; None where they are not there."""
    if args.data is None or not (folder := args.data / "bert-tiny-imdb").is_dir():
        return None
    model = load_model(folder, num_labels=2).eval()
    splits = get_tokenized_dataset(args.data / "imdb", folder, max_length=256, limit=args.rows)
    rows = read_rows(splits["train"]), read_rows(splits["test"])
    return Workload.of(model, *rows, name="BERT-tiny", dataset="IMDb")


MODELS: dict[str, Callable[[argparse.Namespace], Workload | None]] = {
    **{name: partial(builtin, name) for name in ("mlp", "cnn", "vit", "bert-tiny")},
    "resnet18": resnet,
    "bert-tiny-imdb": reviews,
    "bert-4x256": larger_bert,
}


def quantized(workload: Workload, text: str) -> MaseGraph:
    """The model in a format: all operators with a weight, calibrated, or the weights alone."""
    mg = raise_to_graph(workload)
    if text == FEW:
        packed = pack_weights(mg, parse_format_string(text))
        return passes.pack_transform_pass(packed, {"unpack": True, "silent": True})[0]
    config = {"config": QuantSpec.uniform(parse_format_string(text))}
    rules = dict.fromkeys(present_operators(mg, weighted_operators()), config)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    return calibrated(mg, workload.train, 256)


def files(mg: MaseGraph, folder: Path) -> Iterator[tuple[str, Runner, int]]:
    """Each engine, what it computes, and the size of its files."""
    for name, engine in ENGINES.items():
        kind = target(name)
        if importlib.util.find_spec(kind.library) is not None:
            made = kind.export(mg, folder / "model")
            yield engine, kind.read(made.path), made.size_bytes


def first(answer: Any) -> Tensor:
    """The logits of an answer."""
    if isinstance(answer, Tensor):
        return answer
    found: Tensor = answer.get("logits", next(iter(answer.values())))
    return found


class Runs(nn.Module):
    """An engine as a module."""

    def __init__(self, run: Runner) -> None:
        super().__init__()
        self.run = run

    def forward(self, **inputs: Tensor) -> Tensor:
        """Logits for inputs by name."""
        return first(self.run(inputs))


def get_rows(
    name: str, workload: Workload, text: str, seconds: float
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """The rows of the table of times, and the one of the table of answers."""
    mg = quantized(workload, text)
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    with tempfile.TemporaryDirectory() as folder:
        made = list(files(mg, Path(folder)))
    models = {FLOAT: workload.model, PACKED: packed.model.eval()}
    models |= {engine: Runs(run) for engine, run, _ in made}
    label = f"{name}, {text}"
    times = [_times(f"{label}, {n}", workload, models, n, seconds) for n in BATCHES]
    return times, {"model": label, **_answers(workload, mg, models, made)}


def _times(
    label: str, workload: Workload, models: dict[str, nn.Module], count: int, seconds: float
) -> dict[str, str]:
    evaluator = Evaluator(models[PACKED], workload.test.spread(count), batch_size=count)
    inputs, _ = evaluator.batches[0]
    variants = [
        Variant(name, lambda model=model: first(model(**inputs))) for name, model in models.items()
    ]
    how: dict[str, Any] = {"seconds": seconds, "threads": 1, "memory": False, "outputs": False}
    found = compare(variants, FLOAT, **how)
    ratios = {x.name: format_ratio(x.ratio) for x in found if x.name != FLOAT}
    return {"model, format, batch": label, FLOAT: format_seconds(found[FLOAT].seconds), **ratios}


def _answers(
    workload: Workload,
    mg: MaseGraph,
    models: dict[str, nn.Module],
    made: list[tuple[str, Runner, int]],
) -> dict[str, str]:
    evaluator = Evaluator(mg.model, workload.test)
    expected = evaluator.of(mg.model.eval()).logits()
    logits = {name: evaluator.of(model).logits() for name, model in models.items()}
    scores = [evaluator.scores(x)[workload.task.metric.name] for x in (logits[FLOAT], expected)]
    scores += [evaluator.scores(logits[name])[workload.task.metric.name] for name, _, _ in made]
    floats = 4 * sum(x.numel() for x in workload.model.parameters())
    row = {"files, float first": ", ".join(map(format_bytes, [floats, *(n for *_, n in made)]))}
    for name, _, _ in made:
        equal = (logits[name] == expected).flatten(1).all(1)
        off = (logits[name] - expected).abs().max().item()
        row[f"equal in {name}"] = f"{int(equal.sum())} of {len(equal)}, {off:.1g}"
    row["accuracy: float, chop, engines"] = ", ".join(f"{100 * x:.2f}" for x in scores)
    return row


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[*MODELS])
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=[*FORMATS])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    times, answers = [], []
    for name in args.models:
        workload = MODELS[name](args)
        for text in args.formats if workload is not None else ():
            timed, answered = get_rows(name, workload, text, args.seconds)
            times += timed
            answers.append(answered)
    print_table(f"Times as fast as float, one thread, {processor_name()}", times)
    print_table("Test rows equal to chop, and the largest difference", answers)


if __name__ == "__main__":
    main()
