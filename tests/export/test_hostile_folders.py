"""Folders and files of other tools that ask for anything are refused in a sentence, soon."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import programs
from tests.export import gguf_bytes as g
from tests.export.test_compressed_tensors_reader import by_hand
from tests.export.tools import awq_parts, awq_settings, gptq_parts, gptq_settings, write_folder
from tests.subcases import subcases

pytest.importorskip("gguf", reason="gguf names the types of tensors")

BIG = 2**40
LAYER = "model.layers.0.mlp.up_proj"
CODED = {
    "gptq": ("qweight", "qzeros", "scales"),
    "awq": ("qweight", "qzeros", "scales"),
    "ct": ("weight_packed", "weight_scale", "weight_shape"),
}
"""By kind of folder, what a module has."""
Change = Callable[[Path], None]


class Executed:
    """A pickle that leaves a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


# --- changes of folders --------------------------------------------------------------------------


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


def without(end: str) -> Change:
    return tensors(lambda x: x.pop(f"{LAYER}.{end}"))


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
    "index-deep": lambda folder: document(
        '{"weight_map":' * 100_000, "model.safetensors.index.json"
    )(folder),
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


def of_kind(kind: str) -> dict[str, Change]:
    """Changes of what the kind of folder has."""
    codes, second, third = CODED[kind]
    scales = second if kind == "ct" else third
    changes = {f"{name}-{codes}": part(codes, make) for name, make in SHAPES.items()}
    for end in (second, third):
        names = ("less", "flat", "complex") if end == scales else ("less", "floats", "none")
        names = tuple(x for x in names if not (end == "weight_shape" and x == "flat"))
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
    "groups": config(lambda x: x["quantization_config"].update(config_groups={"a": 5})),
    "format": config(lambda x: x["quantization_config"].update(format=["pack-quantized"])),
    "no-targets": config(
        lambda x: x["quantization_config"]["config_groups"]["group_0"].update(targets=None)
    ),
    "huge-shape": part("weight_shape", lambda x: torch.tensor([BIG, BIG])),
    "negative-shape-of": part("weight_shape", lambda x: torch.tensor([-96, -64])),
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
        "no-expression": targets("["),
        "long-expression": targets("a" * 10_000),
    }
# --- changes of files of GGUF --------------------------------------------------------------------


def key(name: str, kind: int, content: Any) -> Callable[[g.Gguf], Any]:
    return lambda file: file.set(name, g.value(kind, content))


def place(name: str, **entries: Any) -> Callable[[g.Gguf], Any]:
    def change(file: g.Gguf) -> None:
        for entry, x in entries.items():
            setattr(file.tensor(name), entry, x)

    return change


def renamed(name: str, other: str) -> Callable[[g.Gguf], None]:
    def change(file: g.Gguf) -> None:
        file.tensors = [(other if x == name else x, one) for x, one in file.tensors]

    return change


def on_one_another(file: g.Gguf) -> None:
    """Many large tensors in the same bytes."""
    data = bytes(2**22)
    file.tensors += [
        (f"x{i}", g.Tensor((2**20,), g.F32, data if not i else b"", offset=0)) for i in range(2000)
    ]


def nan_scale(file: g.Gguf) -> None:
    one = file.tensor("blk.0.ffn_up.weight")
    one.data = struct.pack("<e", float("nan")) + one.data[2:]


UP = "blk.0.ffn_up.weight"
FILES: dict[str, Callable[[g.Gguf], Any]] = {
    "magic": lambda file: setattr(file, "magic", b"PK\x03\x04"),
    "version-99": lambda file: setattr(file, "version", 99),
    "version-1": lambda file: setattr(file, "version", 1),
    "big-endian": lambda file: setattr(file, "version", 3 << 24),
    "tensors": lambda file: setattr(file, "counts", (2**63, len(file.pairs))),
    "pairs": lambda file: setattr(file, "counts", (1, 2**63)),
    "long-key": lambda file: file.pairs.append((g.text("a", 2**60), b"")),
    "long-text": lambda file: file.set("a", struct.pack("<I", g.TEXT) + g.text("a", 2**60)),
    "long-array": lambda file: file.set("a", g.array(0, 2**60, b"")),
    "long-texts": lambda file: file.set("a", g.array(g.TEXT, 2**60, b"")),
    "texts-short": lambda file: file.set("a", g.array(g.TEXT, 2**16, bytes(2**10))),
    "arrays": lambda file: file.set("a", g.array(g.ARRAY, 2**20, g.array(g.ARRAY, 1, b"") * 100)),
    "array-of-nothing": lambda file: file.set("a", g.array(77, 2**60, b"")),
    "type": lambda file: file.set("a", struct.pack("<I", 77)),
    "key-twice": lambda file: file.pairs.append(file.pairs[0]),
    "key-bytes": lambda file: file.pairs.append((g.text(b"\xff\xfe"), g.value(g.UINT32, 1))),
    "tensor-twice": lambda file: file.tensors.append(file.tensors[0]),
    "dimensions": place(UP, dimensions=2**31),
    "no-dimensions": place(UP, shape=(), dimensions=0),
    "huge-shape": place(UP, shape=(BIG, BIG)),
    "zero-shape": place(UP, shape=(0, 64)),
    "ragged": place(UP, shape=(96, 33)),
    "turned": place(UP, shape=(64, 96)),
    "kind": place(UP, kind=10**6),
    "kind-small": place(UP, kind=24, data=bytes(96 * 64)),
    "offset": place(UP, offset=2**62),
    "on-one-another": on_one_another,
    "alignment-0": key("general.alignment", g.UINT32, 0),
    "alignment-big": key("general.alignment", g.UINT32, 2**31),
    "alignment-text": key("general.alignment", g.TEXT, "32"),
    "architecture": key("general.architecture", g.TEXT, "../../x"),
    "architecture-number": key("general.architecture", g.UINT32, 5),
    "architecture-gpt2": key("general.architecture", g.TEXT, "gpt2"),
    "layers": key("llama.block_count", g.UINT32, 10**9),
    "two-layers": key("llama.block_count", g.UINT32, 2),
    "no-layers": key("llama.block_count", g.UINT32, 0),
    "hidden": key("llama.embedding_length", g.UINT64, BIG),
    "hidden-64-bits": key("llama.embedding_length", g.UINT64, 2**64 - 1),
    "hidden-text": key("llama.embedding_length", g.TEXT, "64"),
    "hidden-float": key("llama.embedding_length", g.FLOAT32, 64.5),
    "inner": key("llama.feed_forward_length", g.UINT32, 2**26),
    "tokens": key("llama.vocab_size", g.UINT32, 2**31),
    "heads-0": key("llama.attention.head_count", g.UINT32, 0),
    "heads-5": key("llama.attention.head_count", g.UINT32, 5),
    "rope": key("llama.rope.scaling.type", g.TEXT, "yarn"),
    "rope-linear": key("llama.rope.scaling.type", g.TEXT, "linear"),
    "rope-deep": key("chop.rope_parameters", g.TEXT, '{"a":' * 50_000),
    "rope-list": key("chop.rope_parameters", g.TEXT, "[1]"),
    "rope-unknown": key("chop.rope_parameters", g.TEXT, '{"rope_type": "x"}'),
    "divisors": lambda file: file.tensors.append(
        ("rope_freqs.weight", g.Tensor((8,), g.F32, bytes(32)))
    ),
    "no-place": renamed(UP, "blk.0.ffn_upper.weight"),
    "spare": lambda file: file.tensors.append(("x", g.Tensor((2,), g.F32, bytes(8)))),
    "layer-9": lambda file: file.tensors.append(("blk.9.ffn_up.weight", file.tensor(UP))),
    "nan-scale": nan_scale,
    "nan-values": place(UP, kind=6, data=np.full((96, 2, 22), 255, np.uint8).tobytes()),
    "mxfp4-nan": place(UP, kind=39, data=np.full((96, 2, 17), 255, np.uint8).tobytes()),
}
REFUSED = "refused: "
LOADED = "loaded: LlamaForCausalLM"
SAID = {
    "gptq-bits-1000": r"expected bits of \(2, 3, 4, 8\), got 1000",
    "gptq-group--32": "expected a group_size from 1 on, or -1, got -32",
    "ct-ages": "4 repeats at most, none of them of a group",
    "gptq-ages-again": "4 repeats at most",
    "gptq-index-out": "names '../../x.safetensors', which is outside of it",
    "gptq-index-root": "names '/etc/passwd', which is outside of it",
    "gptq-pickle": r"has no weights: expected \*\.safetensors",
    "gptq-pickle-named": "is no readable safetensors file",
    "gptq-pipe": "is missing, or no regular file",
    "gptq-circle": "is missing, or no regular file",
    "gptq-endless": "is missing, or no regular file",
    "gptq-twice": "has the tensor 'lm_head.weight' twice",
    "gptq-config-deep": "nested deeper than 200 levels",
    "gptq-layers": "'num_hidden_layers' is 1000000000, expected 16384 at most",
    "gptq-hidden": "'hidden_size' is 1099511627776",
    "gptq-layer-9": r"has no module 'model\.layers\.9\.mlp\.up_proj'",
    "ct-dunder": r"has no module 'model\.__dict__'",
    "ct-nan-scales": "some of its scales are NaN or infinite",
    "awq-nan-scales": "some of its scales are NaN or infinite",
    "gptq-order": "has its inputs in another order",
    "ct-twofold": "has a weight of floats beside its codes",
    "gptq-wrong-norm": r"'model\.norm\.weight' has the shape \[3\], by config\.json \[64\]",
    "gptq-own-code": "holds no model that is known",
    "gguf-long-key.gguf": "it is cut off: 1152921504606846976 bytes are expected",
    "gguf-dimensions.gguf": "has 2147483648 dimensions",
    "gguf-long-array.gguf": "it is cut off: 1152921504606846976 bytes",
    "gguf-tensors.gguf": "it is cut off",
    "gguf-on-one-another.gguf": "its tensors are larger than the file",
    "gguf-huge-shape.gguf": "its tensors are larger than the file",
    "gguf-layers.gguf": "'llama.block_count' is 1000000000, expected 16384 at most",
    "gguf-tensor-twice.gguf": "the tensor 'token_embd.weight' is there twice",
    "gguf-nan-scale.gguf": "some of its scales are NaN or infinite",
    "gguf-mxfp4-nan.gguf": "some of its scales are NaN",
    "gguf-nan-values.gguf": "some of its values are NaN or infinite",
    "gguf-rope-deep.gguf": "nested deeper than 200 levels",
    "gguf-rope.gguf": "expected a linear scaling of rotary embeddings, got 'yarn'",
    "gguf-divisors.gguf": "'rope_freqs.weight' scales rotary embeddings in an unknown way",
    "gguf-turned.gguf": r"has the shape \(64, 96\), by its settings \(96, 64\)",
}
"""What is said of some."""
CUTS = (0, 3, 10, 24, 60, 300, 900, 2000)


def _make_folders(root: Path, common: Collection[str] = ("gptq",), own: bool = True) -> None:
    """Of every kind what is its own, and what is common of some."""
    good = {
        "gptq": lambda path: write_folder(path, gptq_settings(4, 32), gptq_parts(4, 32)),
        "awq": lambda path: write_folder(path, awq_settings(32), awq_parts(32)),
        "ct": by_hand,
    }
    for kind, make in good.items():
        first = root / f"good-{kind}"
        first.mkdir()
        make(first)
        changes = (COMMON if kind in common else {}) | (OF_KINDS[kind] if own else {})
        for name, change in changes.items():
            folder = root / f"{kind}-{name.replace('/', '_')}"
            shutil.copytree(first, folder)
            change(folder)


def _make_files(root: Path) -> None:
    plain = g.llama().content()
    (root / "good-gguf.gguf").write_bytes(plain)
    for name, change in FILES.items():
        file = g.llama()
        change(file)
        (root / f"gguf-{name}.gguf").write_bytes(file.content())
    for size in CUTS:
        (root / f"gguf-cut-{size}.gguf").write_bytes(plain[:size])
    (root / "gguf-cut-end.gguf").write_bytes(plain[:-100])


def _tried(root: Path) -> dict[str, dict[str, Any]]:
    """What came of each, all tried in one process with a limit on its memory."""
    done = programs.run(Path(__file__).with_name("read_within_limits.py"), root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (root / "executed").exists()
    return {report["name"]: report for report in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    root = tmp_path_factory.mktemp("hostile")
    _make_folders(root)
    _make_files(root)
    return _tried(root)


def _check(reports: dict[str, dict[str, Any]]) -> None:
    """All but the good ones are refused, soon and in a sentence."""
    assert {name: x["seconds"] for name, x in reports.items() if x["seconds"] > 4} == {}
    others = {n: x["outcome"] for n, x in reports.items() if not x["outcome"].startswith(REFUSED)}
    assert others == {name: LOADED for name in reports if name.startswith("good-")}
    odd = {
        name: x["outcome"]
        for name, x in reports.items()
        if len(x["outcome"]) > 1100 or "\n" in x["outcome"] or "\x1b" in x["outcome"]
    }
    assert odd == {}


def test_every_one_ends_soon_and_in_memory(reports: dict[str, dict[str, Any]]) -> None:
    own = sum(len(changes) for changes in OF_KINDS.values())
    files = len(FILES) + len(CUTS) + 1
    assert len(reports) == len(COMMON) + own + files + 4
    _check(reports)


@pytest.mark.long  # the same code reads them
def test_so_do_the_other_kinds(tmp_path: Path) -> None:
    _make_folders(tmp_path, common=("awq", "ct"), own=False)
    _check(_tried(tmp_path))


@subcases("name, match", SAID.items())
def test_what_is_said(reports: dict[str, dict[str, Any]], name: str, match: str) -> None:
    assert re.search(match, reports[name]["outcome"]), reports[name]["outcome"]
