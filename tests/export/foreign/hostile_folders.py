"""Changes of folders of other tools that make them ask for anything."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

BIG = 2**40
LAYER = "model.layers.0.mlp.up_proj"
CODED = {
    "gptq": ("qweight", "qzeros", "scales"),
    "awq": ("qweight", "qzeros", "scales"),
    "ct": ("weight_packed", "weight_scale", "weight_shape"),
    "ct8": ("weight", "weight_scale", "input_scale"),
}
"""By kind of folder, what a module has."""
Change = Callable[[Path], Any]


class Executed:
    """A pickle that leaves a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def config(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes `config.json`."""

    def apply(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text())
        change(document)
        (folder / "config.json").write_text(json.dumps(document))

    return apply


def setting(**values: Any) -> Change:
    """Changes settings of quantization, those of groups in compressed-tensors."""

    def change(document: dict[str, Any]) -> None:
        settings = document["quantization_config"]
        if "config_groups" in settings:
            names = {"bits": "num_bits"}
            settings = settings["config_groups"]["group_0"]["weights"]
            settings.update({names.get(key, key): x for key, x in values.items()})
        else:
            settings.update(values)

    return config(change)


def of_model(**values: Any) -> Change:
    return config(lambda document: document.update(values))


def targets(text: str) -> Change:
    """An expression for modules, of compressed-tensors or of GPTQ."""

    def change(document: dict[str, Any]) -> None:
        settings = document["quantization_config"]
        if "config_groups" in settings:
            settings["config_groups"]["group_0"]["targets"] = [f"re:{text}"]
        else:
            settings["dynamic"] = {f"+:{text}": {"bits": 8}}

    return config(change)


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    def apply(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def part(end: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Changes a tensor of a coded layer."""
    return tensors(lambda x: x.update({f"{LAYER}.{end}": make(x[f"{LAYER}.{end}"]).contiguous()}))


def without(*ends: str) -> Change:
    return tensors(lambda x: [x.pop(f"{LAYER}.{end}") for end in ends])


def inputs(**values: Any) -> Change:
    """Changes how a group of compressed-tensors rounds inputs."""

    def change(document: dict[str, Any]) -> None:
        groups = document["quantization_config"]["config_groups"]
        groups["group_0"]["input_activations"].update(values)

    return config(change)


def moved(to: str, kind: str, keep: bool = True) -> Change:
    """Gives a coded layer's tensors another name."""

    def change(found: dict[str, torch.Tensor]) -> None:
        for end in CODED[kind]:
            found[f"{to}.{end}"] = found[f"{LAYER}.{end}"].clone()
            if not keep:
                del found[f"{LAYER}.{end}"]

    return tensors(change)


def document(text: str | bytes, name: str = "config.json") -> Change:
    plain = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / name).write_bytes(plain) and None


def weights(change: Callable[[bytes], bytes]) -> Change:
    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return apply


def header(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes what a file of weights says of its tensors."""

    def apply(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + size])
        change(found)
        text = json.dumps(found).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]

    return weights(apply)


def index(places: Any) -> Change:
    """Adds an index in the place of the one file."""

    def apply(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        found = places(folder) if callable(places) else places
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": found}))

    return apply


def instead(make: Callable[[Path], Any]) -> Change:
    """Something else in the place of the file of weights."""

    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        make(folder / "model.safetensors")

    return apply


def pickled(name: str) -> Change:
    """Pickled weights in the place of the others; reading them leaves a file."""

    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        content = pickle.dumps(Executed(folder.parent / "executed"))
        (folder / name).write_bytes(content)

    return apply


def own_code(folder: Path) -> None:
    """A model of the folder's own code."""
    path = folder.parent / "executed"
    (folder / "evil.py").write_text(f"import pathlib\npathlib.Path({str(path)!r}).touch()\n")
    names = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    of_model(auto_map=names, model_type="evil", architectures=["Evil"])(folder)


def twice(folder: Path) -> None:
    """Two files with the same tensors, neither of the usual name."""
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    shutil.copy(folder / "one.safetensors", folder / "two.safetensors")


COMMON: dict[str, Change] = {
    **{f"bits-{x!r:.9}": setting(bits=x) for x in (0, 1000, -4, "4", 4.0, None, [], True, 2**70)},
    **{
        f"group-{x!r:.9}": setting(group_size=x) for x in (0, -32, -2, "32", 1.5, [1], 2**70, 7, 64)
    },
    "settings-list": config(lambda x: x.update(quantization_config=[1])),
    "hidden": of_model(hidden_size=BIG),
    "layers": of_model(num_hidden_layers=10**9),
    "layers-of-no-tensors": of_model(num_hidden_layers=5000),
    "heads": of_model(num_attention_heads=0),
    "tokens": of_model(vocab_size=BIG),
    "text-size": of_model(hidden_size="64"),
    "other-size": of_model(intermediate_size=64),
    "no-class": of_model(architectures=["os"]),
    "class-number": of_model(architectures=[5]),
    "other-class": of_model(architectures=["Trainer"]),
    "no-type": of_model(model_type="../../x"),
    "own-code": own_code,
    "config-deep": document('{"a":' * 100_000 + "1" + "}" * 100_000),
    "config-digits": document('{"a": ' + "9" * 100_000 + "}"),
    "config-list": document("[1]"),
    "config-cut": document('{"model_type": "lla'),
    "config-bytes": document(b"\xff\xfe\x00"),
    "nested": tensors(lambda x: x.update({"model": torch.zeros(2)})),
    "no-place": tensors(lambda x: x.update({"model.layers.9.up_proj.weight": torch.zeros(2)})),
    "no-codes": tensors(
        lambda x: [x.pop(name) for name in [*x] if name.endswith(("qweight", "scales", "scale"))]
    ),
    "lacks-norm": tensors(lambda x: x.pop("model.norm.weight")),
    "wrong-norm": tensors(lambda x: x.update({"model.norm.weight": torch.zeros(3)})),
    "cut-header": weights(lambda data: data[:100]),
    "cut-data": weights(lambda data: data[:-100]),
    "empty": weights(lambda data: b""),
    "long-header": weights(lambda data: struct.pack("<Q", 2**62) + data[8:]),
    "deep-header": weights(lambda data: struct.pack("<Q", 100_000) + b"[" * 100_000),
    "huge-tensor": header(
        lambda x: x["model.norm.weight"].update(shape=[BIG, BIG], data_offsets=[0, 4 * BIG**2])
    ),
    "overlapping": header(lambda x: x["model.norm.weight"].update(data_offsets=[0, 256])),
    "negative-shape": header(lambda x: x["model.norm.weight"].update(shape=[-64])),
    "unknown-dtype": header(lambda x: x["model.norm.weight"].update(dtype="F7")),
    "pickle": pickled("pytorch_model.bin"),
    "pickle-named": pickled("model.safetensors"),
    "folder": instead(lambda path: path.mkdir()),
    "pipe": instead(os.mkfifo),
    "circle": instead(lambda path: path.symlink_to(path)),
    "endless": instead(lambda path: path.symlink_to("/dev/zero")),
    "twice": twice,
    "index-out": index({"a": "../../x.safetensors"}),
    "index-root": index({"a": "/etc/passwd"}),
    "index-nul": index({"a": "x\0.safetensors"}),
    "index-number": index({"a": 5}),
    "index-list": index([1]),
    "index-missing": index({"a": "part.safetensors", "b": "other.safetensors"}),
    "index-config": index({"a": "config.json"}),
    "index-deep": lambda folder: [
        index({})(folder),
        document('{"weight_map":' * 100_000, "model.safetensors.index.json")(folder),
    ],
}
"""Of every kind of folder."""

SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda x: x.reshape(-1),
    "turned": lambda x: x.t(),
    "none": lambda x: x[:0],
    "less": lambda x: x[1:],
    "more": lambda x: torch.cat([x, x]),
    "floats": lambda x: x.double(),
    "int8": lambda x: x.to(torch.int8),
    "bool": lambda x: x.bool(),
    "complex": lambda x: x.to(torch.complex64),
    "many": lambda x: x.reshape(-1)[:1].reshape([1] * 60),
}


ALLOWED: dict[str, set[tuple[str, str]]] = {
    "gptq": set(),
    "awq": set(),
    "ct": {("weight_shape", "flat")},
    "ct8": {("weight_scale", "flat"), ("input_scale", "floats")},
}
"""Changes that leave a folder as good as it was."""


def of_kind(kind: str) -> dict[str, Change]:
    """Changes of what the kind of folder has."""
    codes, second, third = CODED[kind]
    scales = second if kind.startswith("ct") else third
    changes = {f"{name}-{codes}": part(codes, make) for name, make in SHAPES.items()}
    for end in (second, third):
        names = ("less", "flat", "complex") if end == scales else ("less", "floats", "none")
        names = tuple(x for x in names if (end, x) not in ALLOWED[kind])
        changes |= {f"{name}-{end}": part(end, SHAPES[name]) for name in names}
    changes |= {f"without-{end}": without(end) for end in CODED[kind]}
    for name, number in {"nan": float("nan"), "infinite": float("inf")}.items():
        changes[f"{name}-scales"] = part(scales, lambda x, y=number: torch.full_like(x, y))
    changes |= {
        "layer-9": moved("model.layers.9.mlp.up_proj", kind),
        "norm": moved("model.norm", kind),
        "root": moved("model", kind),
        "dunder": moved("model.__dict__", kind),
        "attribute": moved("config", kind),
        "other-layer": moved("model.layers.0.mlp.up_prox", kind, keep=False),
        "twofold": tensors(lambda x: x.update({f"{LAYER}.weight": torch.zeros(96, 64)})),
    }
    return changes


OF_KINDS: dict[str, dict[str, Change]] = {kind: of_kind(kind) for kind in CODED}
OF_KINDS["ct"] |= {
    "no-zero-points": setting(symmetric=False),
    "groups": config(lambda x: x["quantization_config"].update(config_groups={"a": 5})),
    "format": config(lambda x: x["quantization_config"].update(format=["pack-quantized"])),
    "no-targets": config(
        lambda x: x["quantization_config"]["config_groups"]["group_0"].update(targets=None)
    ),
    "huge-shape": part("weight_shape", lambda x: torch.tensor([BIG, BIG])),
    "negative-shape-of": part("weight_shape", lambda x: torch.tensor([-96, -64])),
}
del OF_KINDS["ct8"]["int8-weight"]
OF_KINDS["ct8"] |= {
    f"{name}-input_scale": part("input_scale", lambda x, y=number: torch.full_like(x, y))
    for name, number in {"nan": float("nan"), "zero": 0.0, "negative": -1.0}.items()
}
OF_KINDS["ct8"] |= {
    "many-input_scale": part("input_scale", lambda x: x.expand(64)),
    "input_zero_point": tensors(
        lambda x: x.update({f"{LAYER}.input_zero_point": torch.zeros(1, dtype=torch.int8)})
    ),
    "inputs": config(
        lambda x: x["quantization_config"]["config_groups"]["group_0"].update(input_activations=5)
    ),
    "input-bits": inputs(num_bits=2**70),
    "input-strategy": inputs(strategy=["token"]),
    "input-groups": inputs(strategy="group", group_size=2**70, dynamic=True),
    "input-type": inputs(type={"a": 1}),
    "block": setting(strategy="block", block_structure=[2**70, 2**70]),
    "block-text": setting(strategy="block", block_structure="128x128"),
    "float-type": setting(type="float"),
    "without-scales": without("weight_scale", "input_scale"),
}
OF_KINDS["gptq"] |= {
    "order": part("g_idx", lambda x: torch.full_like(x, 2**31 - 1)),
    "order-floats": part("g_idx", lambda x: x.float()),
    "dynamic": setting(dynamic=[1]),
    "format": setting(checkpoint_format=["gptq"]),
}
OF_KINDS["awq"] |= {"version": setting(version=["gemm"])}
for _kind in ("ct", "gptq"):
    OF_KINDS[_kind] |= {
        "ages": targets(r"(.*a)*(.*b)*(.*c)*$"),
        "ages-again": targets(r"model.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*x$"),
        "ages-optional": targets(".?" * 200 + "z"),
        "ages-counted": targets(".{0,90}" * 20 + "z"),
        "ages-ways": targets("(.|.)" * 90 + "z"),
        "ages-hidden": targets("(?x)#[\n" + "(.|.)" * 90 + "z"),
        "no-expression": targets("["),
        "long-expression": targets("a" * 10_000),
    }
