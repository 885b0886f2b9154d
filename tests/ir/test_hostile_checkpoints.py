"""Files of a few kB that ask for hours or gigabytes are refused, or loaded and not run."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.ir.storage.graph_codec import unfold_metadata
from tests import programs
from tests.ir.checkpoint_cases import edit
from tests.subcases import subcases

BIG = 2_000_000_000
Document = dict[str, Any]


class Small(nn.Module):
    """One of each: a module with parameters, one without, a recurrent one, a function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.rnn = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(self.act(self.linear(x)))[0] + 1


def _export(folder: Path) -> None:
    mg = MaseGraph(Small(), dummy_in={"x": torch.ones(2, 3, 4)})
    passes.add_common_metadata_analysis_pass(mg)
    mg.export(folder / "good")
    edit(folder, unfold_metadata, "good.mz")
    edit(folder, lambda document: document.pop("metadata"), "good.mz")


# --- changes of a document -----------------------------------------------------------------------


def node(op: str, target: str, *args: Any, **kwargs: Any) -> Callable[[Document], None]:
    """Puts in a node that nothing describes."""
    return lambda document: document["nodes"].insert(
        -1, {"op": op, "name": "bomb", "target": target, "args": list(args), "kwargs": kwargs}
    )


def call(target: str, *args: Any, **kwargs: Any) -> Callable[[Document], None]:
    return node("call_function", target, *args, **kwargs)


def on_shape(shape: list[int], then: Callable[[Document], None]) -> Callable[[Document], None]:
    """A node put in behind a tensor that the file says is of that shape."""

    def change(document: Document) -> None:
        common = document["nodes"][0]["meta"]["mase"]["$masemetadata"]["common"]["$commonmetadata"]
        info = common["results"]["data_out_0"]["$tensorinfo"]
        info["shape"] = {"$tuple": shape}
        then(document)

    return change


def doubling(target: str, start: Any, times: int = 60) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        for i in range(times):
            before = {"$node": f"bomb{i - 1}"} if i else start
            entry = {"op": "call_function", "target": target, "args": [before, before]}
            document["nodes"].insert(-1, {**entry, "name": f"bomb{i}"})

    return change


def guard(expression: str) -> Callable[[Document], None]:
    entry = {"$shapeguard": {"expression": expression, "where": ""}}
    return lambda document: document["attributes"].update(guards=[entry])


def metadata(text: str) -> Callable[[Document], None]:
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return lambda document: document.update(metadata=packed)


def module(path: str, **attributes: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        (record,) = (record for record in document["modules"] if record["path"] == path)
        record["attributes"].update(attributes)

    return change


def modules(*records: dict[str, Any]) -> Callable[[Document], None]:
    return lambda document: document["modules"].extend(records)


def container(path: str) -> dict[str, Any]:
    cls = "torch.nn.modules.container:Sequential"
    return {"path": path, "class": cls, "attributes": {}, "training": True}


def tensor(**entry: Any) -> Callable[[Document], None]:
    return lambda document: document["tensors"]["linear.weight"].update(entry)


def inline(text: bytes, **entry: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        document["inline"] = {"linear.weight": base64.b64encode(text).decode()}
        document["tensors"]["linear.weight"].update(entry)

    return change


def attribute(plain: Any) -> Callable[[Document], None]:
    return module("act", thing=plain)


DEEP = {
    # Deeper than `json.dumps` goes.
    '"deep tuple"': '{"$tuple": [' * 450 + "]}" * 450,
    '"deep slice"': '{"$slice": [' * 300 + "]}" * 300,
    '"deep lists"': "[" * 20_000 + "]" * 20_000,
}


def both(*changes: Callable[[Document], None]) -> Callable[[Document], None]:
    return lambda document: [change(document) for change in changes] and None


def parametrized(path: str, tensor: str, shapes: list[list[int]]) -> Callable[[Document], None]:
    """Derives a tensor of a module from two that broadcast to something huge."""

    def change(document: Document) -> None:
        (record,) = (record for record in document["modules"] if record["path"] == path)
        key = record["parameters"].pop(tensor)
        place = f"{path}.parametrizations"
        names = [f"{place}.{tensor}.original{i}" for i in range(2)]
        entry = {**document["tensors"].pop(key), "parameter": True}
        for name, shape in zip(names, shapes, strict=True):
            document["tensors"][name] = {**entry, "shape": shape}
            zeros = zlib.compress(bytes(4 * math.prod(shape)), 1)
            document.setdefault("inline", {})[name] = base64.b64encode(zeros).decode()
        record["parametrized"] = True
        parts = {"original0": names[0], "original1": names[1]}
        home = "torch.nn.utils.parametrize:ParametrizationList"
        settings = {"is_tensor": False, "ntensors": 2, "unsafe": False}
        norm = "torch.nn.utils.parametrizations:_WeightNorm"
        document["modules"] += [
            container(place) | {"class": "torch.nn.modules.container:ModuleDict"},
            container(f"{place}.{tensor}")
            | {"class": home, "attributes": settings, "parameters": parts},
            container(f"{place}.{tensor}.0") | {"class": norm, "attributes": {"dim": 0}},
        ]

    return change


def undescribed(document: Document) -> None:
    """Takes the notes of the first node away, and makes the example of the input huge."""
    document["nodes"][0]["meta"].pop("mase")
    entry = {"$tensorspec": {"shape": {"$tuple": [BIG, BIG]}, "dtype": {"$dtype": "float32"}}}
    document["attributes"]["example_inputs"] = {"x": entry}


X = {"$node": "x"}
SHARING = [
    container("m0"),
    *(
        record
        for i in range(64)
        for record in (
            container(f"{'m0' + '.a' * i}.a"),
            {"path": f"{'m0' + '.a' * i}.b", "same_as": f"{'m0' + '.a' * i}.a"},
        )
    ),
]
LOADED: dict[str, Callable[[Document], None]] = {
    "factorial": call("math:factorial", 200_000_000),
    "comb": call("math:comb", BIG, BIG // 2),
    "power": call("operator:pow", 9, 387_420_489),
    "power-of-powers": doubling("operator:pow", 9),
    "products": doubling("operator:mul", 2**60),
    "shift": call("operator:lshift", 1, 10**12),
    "round": call("builtins:round", 7, -BIG),
    "ones": call("torch:ones", [3_000_000_000]),
    "ones-on-ones": doubling("torch:matmul", X),
    "list-times": call("operator:mul", [0], 10**12),
    "list-of-tensors-times": call("operator:mul", [X], 10**12),
    "text-times": call("operator:mul", "a", 10**12),
    "text-padded": call("operator:mod", "%1000000000d", 3),
    "lists-doubled": doubling("operator:add", [0]),
    "lists-of-tensors-doubled": doubling("operator:add", [X]),
    "combinations": call("torch:combinations", X, BIG),
    "tolist": on_shape([BIG], node("call_method", "tolist", X)),
    "tuple-of-tensor": on_shape([BIG], call("builtins:tuple", X)),
    "split": on_shape([BIG], node("call_method", "split", X, 1)),
    "unbind": on_shape([BIG], node("call_method", "unbind", X)),
    "chunk-nothing": on_shape([0], node("call_method", "chunk", X, BIG)),
    "tensor-split": on_shape([BIG], call("torch:tensor_split", X, BIG)),
    "diff": call("torch:diff", X, BIG),
    "expand": call("torch.Tensor:expand", X, BIG, BIG, BIG, 2, 3, 4),
    "interpolate": call("torch.nn.functional:interpolate", X, scale_factor=1e9),
    "repeat": on_shape([BIG], node("call_method", "repeat", X, BIG)),
    "long-sequence": on_shape([1, BIG, 4], node("call_module", "rnn", X)),
    "many-layers": both(module("rnn", num_layers=BIG), node("call_module", "rnn", X)),
    "huge-example": undescribed,
    "huge-linear": module("linear", in_features=BIG, out_features=BIG),
    "parametrized": parametrized("linear", "weight", [[300_000, 1], [1, 300_000]]),
    "parametrized-recurrent": parametrized("rnn", "weight_ih_l0", [[300_000, 1], [1, 300_000]]),
    "parametrized-and-run": both(
        parametrized("linear", "weight", [[300_000, 1], [1, 300_000]]),
        node("call_module", "linear", X),
    ),
    "power-in-guard": guard("9**9**9**9 == 1"),
}
"""Changes whose files load: what they ask for is left to whoever runs the graph."""

REFUSED: dict[str, tuple[Callable[[Document], None], str]] = {
    "method-replaced": (
        both(
            module("act", forward={"$function": "math:factorial"}),
            node("call_module", "act", 200_000_000),
        ),
        "invalid attribute 'forward'",
    ),
    "factorial-in-guard": (guard("math.factorial(200000000) == 1"), "arithmetic on shapes"),
    "text-in-guard": (guard("'a' * 9999999999 == 'a'"), "arithmetic on shapes"),
    "deep-guard": (guard("-" * 90_000 + "1"), "arithmetic on shapes"),
    "long-guard": (guard("1+" * 2_000_000 + "1"), "arithmetic on shapes"),
    "metadata-of-zeros": (metadata("0" * 200_000_000), "metadata unpacks to more than"),
    "metadata-of-lists": (metadata(f'{{"x": [{"[]," * 60_000_000}[]]}}'), "unpacks to more than"),
    "deep-metadata": (metadata('{"x":' + "[" * 100_000), "malformed: it is nested deeper"),
    "metadata-of-digits": (metadata(f'{{"x": {"9" * 100_000}}}'), "malformed: an integer"),
    "deep-value": (attribute("deep tuple"), "nested deeper"),
    "deep-lists": (attribute("deep lists"), "cut off or corrupt"),
    "deep-slices": (call("torch:relu", "deep slice"), "nested deeper"),
    "inline-zeros": (
        inline(zlib.compress(bytes(100_000_000), 1), shape=[BIG], dtype="float32"),
        "unpacks to 8000000000 bytes, too much for the file's size",
    ),
    "inline-none": (inline(b"no zlib", shape=[2]), "cannot be unpacked"),
    "huge-shape": (tensor(shape=[BIG, BIG]), "invalid shape"),
    "negative-shape": (tensor(shape=[-4, -4]), "invalid shape"),
    "endless-shape": (tensor(shape=[1] * 100_000), "invalid shape"),
    "fractional-shape": (tensor(shape=[4.0, 4]), "invalid shape"),
    "gaps": (tensor(strides=[10**12, 1]), "strides .* do not fit"),
    "gaps-of-text": (tensor(strides=["a", "b"]), "strides .* do not fit"),
    "not-a-number": (tensor(shape=[BIG**20, 0]), "invalid shape"),
    "modules-in-a-circle": (
        modules(container("m0"), {"path": "m0.a", "same_as": "m0"}),
        "contain themselves",
    ),
    "root-in-a-circle": (modules({"path": "m0", "same_as": ""}), "contain themselves"),
    "countless-paths": (modules(*SHARING), "share modules by too many paths"),
    "deep-modules": (
        modules(*(container(".".join("m" * i)) for i in range(1, 500))),
        "more than 128 levels",
    ),
    "parametrized-twice": (
        both(
            parametrized("linear", "weight", [[4, 1], [4, 4]]),
            modules(container("linear.weight")),
        ),
        "parametrized tensor 'weight' twice",
    ),
    "range": (attribute({"$range": [0, 10**30, 1]}), "range of more than"),
    "list-of-range": (call("builtins:list", {"$range": [0, 10**12, 1]}), "range of more than"),
    "range-of-names": (
        module("rnn", _flat_weights_names={"$range": [0, 10**12, 1]}),
        "range of more than",
    ),
    "settings-as-argument": (call("torch:add", X, {"$config": 0}), "unknown kind '.config'"),
    "names-as-argument": (call("torch:add", X, [{"$namespace": {"a": 1}}]), "unknown kind"),
    "tensor-as-argument": (call("torch:add", X, {"a": {"$tensor": "linear.bias"}}), "unknown kind"),
    "always-eval": (
        both(
            lambda document: document["attributes"].update(always_eval=["nobody"]),
            node("call_method", "relu", X),
        ),
        "malformed .*nobody",
    ),
    "namespace": (attribute({"$namespace": {"a=print(1), b": 1}}), "invalid name"),
    "endless-width": (
        attribute({"$format": {"name": "integer", "width": BIG, "frac_width": BIG}}),
        "width: got 2000000000",
    ),
    "blocks-of-all": (
        attribute({"$format": {"name": "mxint", "block_size": BIG, "width": 8}}),
        "block_size: got 2000000000",
    ),
    "long-name": (call("no:" + "x" * 1_000_000), "not on the list"),
    "terminal-codes": (call("no:\x1b]0;title\x07\nsecond line"), r"\\x1b\]0;title\\x07\\n"),
}
"""Changes whose files are refused, with what the message says."""

TEXTS = {
    "text-of-digits": '{"format": "chop checkpoint", "version": ' + "9" * 100_000 + "}",
    "text-of-lists": "[" * 1_000_000,
}


def _digested(path: Path) -> None:
    """Makes the document say that the tensor file belongs to it."""
    from chop.ir.storage.checkpoint import _digest

    size, digest = path.stat().st_size, _digest(path)
    document = json.loads(path.with_suffix(".mz").read_text())
    document.pop("sha256", None)
    document["tensor_file"] = {"sha256": digest, "size_bytes": size}
    path.with_suffix(".mz").write_text(json.dumps(document))


def _headers(data: bytes) -> dict[str, bytes]:
    """Tensor files whose headers promise more than there is."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["linear.weight"].update(shape=[BIG, BIG], data_offsets=[0, BIG * BIG * 4])
    text = json.dumps(header).encode()
    return {
        "header-of-huge-tensor": len(text).to_bytes(8, "little") + text + data[8 + size :],
        "header-of-huge-size": (2**62).to_bytes(8, "little") + data[8:],
        "header-of-lists": (100_000).to_bytes(8, "little") + b"[" * 100_000,
        "header-alone": data[:8],
    }


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each file, all tried in one process with a limit on its memory."""
    folder = tmp_path_factory.mktemp("hostile")
    _export(folder)
    text, data = (folder / "good.mz").read_text(), (folder / "good.pt").read_bytes()
    refused = {name: change for name, (change, _) in REFUSED.items()}
    for name, change in {**LOADED, **refused}.items():
        document = json.loads(text)
        document.pop("sha256", None)
        change(document)
        changed = json.dumps(document)
        for mark, deep in DEEP.items():
            changed = changed.replace(mark, deep)
        (folder / f"{name}.mz").write_text(changed)
        (folder / f"{name}.pt").write_bytes(data)
    for name, content in TEXTS.items():
        (folder / f"{name}.mz").write_text(content)
        (folder / f"{name}.pt").write_bytes(data)
    for name, content in _headers(data).items():
        (folder / f"{name}.mz").write_text(text)
        (folder / f"{name}.pt").write_bytes(content)
        _digested(folder / f"{name}.pt")
    done = programs.run(Path(__file__).with_name("load_within_limits.py"), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return {report["name"]: report for report in map(json.loads, done.stdout.splitlines())}


def test_every_file_ends_soon_and_in_memory(reports: dict[str, dict[str, Any]]) -> None:
    names = {"good", *LOADED, *REFUSED, *TEXTS, *_headers_names()}
    assert reports.keys() == names
    assert {name: r["seconds"] for name, r in reports.items() if r["seconds"] > 4} == {}
    others = {
        name: report["outcome"]
        for name, report in reports.items()
        if not report["outcome"].startswith("refused: ") and not report["outcome"].endswith("nodes")
    }
    assert others == {}


def _headers_names() -> set[str]:
    return {f"header-{name}" for name in ("of-huge-tensor", "of-huge-size", "of-lists", "alone")}


@subcases("name", [*LOADED, "good"])
def test_what_a_file_asks_for_is_not_run(reports: dict[str, dict[str, Any]], name: str) -> None:
    assert reports[name]["outcome"].endswith(" nodes"), reports[name]["outcome"]
    if name == "factorial":
        (warned,) = reports[name]["warned"]
        assert "shapes of 1 nodes (bomb) are not in the file" in warned
    if name == "good":
        assert reports[name]["warned"] == []


@subcases("name", [*REFUSED, *TEXTS, *sorted(_headers_names())])
def test_files_are_refused_in_a_sentence(reports: dict[str, dict[str, Any]], name: str) -> None:
    outcome = reports[name]["outcome"]
    assert outcome.startswith("refused: "), outcome
    assert len(outcome) < 700 and "\n" not in outcome and "\x1b" not in outcome
    _, match = REFUSED.get(name, (None, "cut off or corrupt|not a readable safetensors"))
    assert re.search(match, outcome), outcome
