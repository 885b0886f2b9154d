"""Folders and files of other tools that ask for anything are refused in a sentence, soon."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.export.compressed_tensors.test_inputs import by_hand as with_inputs
from tests.export.compressed_tensors.test_reader import by_hand
from tests.export.foreign.hostile_files import FILES
from tests.export.foreign.hostile_folders import CODED, COMMON, OF_KINDS
from tests.export.gguf import gguf_bytes as g
from tests.export.tools import awq_parts, awq_settings, gptq_parts, gptq_settings, write_folder
from tests.subcases import subcases

pytest.importorskip("gguf", reason="gguf names the types of tensors")

REFUSED = "refused: "
LOADED = "loaded: LlamaForCausalLM"
SAID = {
    "gptq-bits-1000": r"expected bits of \(2, 3, 4, 8\), got 1000",
    "gptq-group--32": "expected a group_size of at least 1, or -1, got -32",
    "ct-ages": "at most 4 repetitions and no repeated group",
    "gptq-ages-again": "at most 4 repetitions",
    "gptq-ages-optional": "at most 4 repetitions",
    "ct-ages-ways": "at most 4 repetitions",
    "ct-ages-hidden": "at most 4 repetitions",
    "gptq-layers-of-no-tensors": r"has \d+ tensors for 5000 layers",
    "gguf-layers-of-no-tensors.gguf": r"has 12 tensors, but llama\.block_count is 5000",
    "gguf-split.gguf": "is one of 2 files of a model",
    "gguf-heads-by-layer.gguf": r"one number in 'llama\.attention\.head_count_kv', got an array",
    "gguf-rope-unread.gguf": r"got 'llama\.rope\.scaling\.yarn_log_multiplier'",
    "gptq-index-out": "names '../../x.safetensors', which is not a file of the folder",
    "gptq-index-root": "names '/etc/passwd', which is not a file of the folder",
    "gptq-pickle": r"has no weights: expected \*\.safetensors",
    "gptq-pickle-named": "is not a readable safetensors file",
    "gptq-pipe": "expected a regular file, got a pipe",
    "gptq-circle": "Too many levels of symbolic links",
    "gptq-endless": "expected a regular file, got a device",
    "gptq-twice": "has the tensor 'lm_head.weight' twice",
    "gptq-config-deep": "nested deeper than 200 levels",
    "gptq-layers": "'num_hidden_layers' is 1000000000, expected 16384 at most",
    "gptq-hidden": "'hidden_size' is 1099511627776",
    "gptq-layer-9": r"has no module 'model\.layers\.9\.mlp\.up_proj'",
    "ct-dunder": r"has no module 'model\.__dict__'",
    "ct-nan-scales": "some of its scales are NaN or infinite",
    "ct8-nan-input_scale": "some of its scales are NaN or infinite",
    "ct8-zero-input_scale": "input_scale is .* not a positive number",
    "ct8-many-input_scale": r"input_scale is torch.float32 \(64,\), not a positive number",
    "ct8-without-input_scale": "it lacks input_scale",
    "ct8-without-scales": r"up_proj\.weight' has codes but no weight_scale",
    "ct8-input_zero_point": r"tensor 'model\.layers\.0\.mlp\.up_proj\.input_zero_point'",
    "awq-nan-scales": "some of its scales are NaN or infinite",
    "gptq-order": "has reordered inputs",
    "ct-twofold": "has a float weight in addition to its codes",
    "gptq-wrong-norm": r"'model\.norm\.weight' has the shape \[3\], config\.json has \[64\]",
    "gptq-own-code": "contains no known model",
    "gguf-long-key.gguf": "it is truncated: 1152921504606846976 bytes are expected",
    "gguf-dimensions.gguf": "has 2147483648 dimensions",
    "gguf-long-array.gguf": "it is truncated: 1152921504606846976 bytes",
    "gguf-tensors.gguf": "it is truncated",
    "gguf-on-one-another.gguf": "its tensors are larger than the file",
    "gguf-huge-shape.gguf": "its tensors are larger than the file",
    "gguf-layers.gguf": "'llama.block_count' is 1000000000, expected at most 16384",
    "gguf-tensor-twice.gguf": "the tensor 'token_embd.weight' occurs twice",
    "gguf-nan-scale.gguf": "some of its scales are NaN or infinite",
    "gguf-mxfp4-nan.gguf": "some of its scales are NaN",
    "gguf-q5-nan.gguf": "some of its scales are NaN or infinite",
    "gguf-nvfp4-nan.gguf": "some of its scales are not positive e4m3 numbers",
    "gguf-nvfp4-scale-nan.gguf": r"the scale of 'blk\.0\.ffn_up\.weight' is nan",
    "gguf-nvfp4-scales.gguf": r"expected one float for 'blk\.0\.ffn_up\.weight'",
    "gguf-scale-of-q8.gguf": r"has the tensor 'blk\.0\.ffn_up\.scale', which a LlamaForCausalLM",
    "gguf-rope-theta-nan.gguf": r"expected a positive number in llama\.rope\.freq_base",
    "gguf-nan-values.gguf": "some of its values are NaN or infinite",
    "gguf-rope-deep.gguf": "nested deeper than 200 levels",
    "gguf-rope.gguf": "got 'longrope'",
    "gguf-divisors.gguf": "'rope_freqs.weight' scales rotary embeddings in an unknown way",
    "gguf-turned.gguf": r"has the shape \(64, 96\), but the settings require \(96, 64\)",
}
"""What is said of some."""
CUTS = (0, 3, 10, 24, 60, 300, 900, 2000)


def _make_folders(root: Path, common: Collection[str] = ("gptq",), own: bool = True) -> None:
    """Of every kind what is its own, and what is common of some."""
    good = {
        "gptq": lambda path: write_folder(path, gptq_settings(4, 32), gptq_parts(4, 32)),
        "awq": lambda path: write_folder(path, awq_settings(32), awq_parts(32)),
        "ct": by_hand,
        "ct8": partial(with_inputs, strategy="tensor", dynamic=False),
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
    assert len(reports) == len(COMMON) + own + files + len(CODED) + 1
    _check(reports)


@pytest.mark.long  # the same code reads them
def test_so_do_the_other_kinds(tmp_path: Path) -> None:
    _make_folders(tmp_path, common=("awq", "ct"), own=False)
    _check(_tried(tmp_path))


@subcases("name, match", SAID.items())
def test_what_is_said(reports: dict[str, dict[str, Any]], name: str, match: str) -> None:
    assert re.search(match, reports[name]["outcome"]), reports[name]["outcome"]
