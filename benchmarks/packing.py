"""What packing really saves on a BERT of base size: measured from checkpoint files.

The weights are random: sizes do not depend on them. The model is quantized, packed and exported in
each format, beside its float checkpoint; the bits of the packed layers are those of their tensors
in the file, its header included. A reloaded model has to give the same logits, bit for bit.

python benchmarks/packing.py [--layers 12] [--formats mxint8,mxint4] [--embeddings]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import BertConfig, BertForSequenceClassification

from chop import MaseGraph, passes
from chop.base.tables import markdown_table
from chop.bench import Variant, compare
from chop.nn.packed import PackedOperator

FORMATS: dict[str, dict[str, Any]] = {
    "mxint8": {"name": "mxint"},
    "mxint4": {"name": "mxint", "width": 4},
    "mxfp6": {"name": "mxfp", "width": 6, "exponent_width": 2},
    "nvfp4": {"name": "nvfp4"},
    "integer8": {"name": "integer", "width": 8, "frac_width": "auto"},
    "ternary": {"name": "ternary", "scaling_factor": True},
}
CODES = ("weight_codes", "weight_scales", "weight_tensor_scale")


def graph_of_bert(layers: int) -> MaseGraph:
    """A sequence classifier of BERT-base's sizes, with metadata."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=layers)).eval()
    mg = MaseGraph(model, hf_input_names=["input_ids", "attention_mask"])
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return mg


def bytes_in_file(path: Path) -> tuple[int, int, int]:
    """(weights' codes and scales, all tensors, whole file) of a checkpoint, in bytes."""
    with safe_open(path, "pt") as file:
        sizes = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118
    codes = sum(size for name, size in sizes.items() if name.endswith(CODES))
    return codes, sum(sizes.values()), path.stat().st_size


def forwards(mg: MaseGraph, unpacked: MaseGraph, packed: MaseGraph) -> dict[str, str]:
    """How many times a float forward of one text others take: medians over turns, by tokens."""
    graphs = {"float": mg, "unpacked": unpacked, "packed": packed}
    found = {}
    for tokens in (8, 128):
        ids = torch.ones(1, tokens, dtype=torch.long)
        fed = {"input_ids": ids, "attention_mask": ids}
        variants = [Variant(name, partial(graph.model, **fed)) for name, graph in graphs.items()]
        for measured in list(compare(variants, outputs=False, memory=False))[1:]:
            found[f"{measured.name}, {tokens} tokens"] = f"{1 / measured.ratio.median:.2f}x"
    return found


def packed_weights(mg: MaseGraph) -> int:
    """How many weights are packed, biases aside."""
    packed = (m for m in mg.model.modules() if isinstance(m, PackedOperator))
    return sum(module.packed_shapes["weight"].numel() for module in packed)


def measure(
    mg: MaseGraph, label: str, embeddings: bool, folder: Path, float_bytes: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a format, and those of its layers; stops if the files give another model."""
    rule = {"config": {"weight": FORMATS[label]}}
    rules = {"linear": rule, **({"embedding": rule} if embeddings else {})}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    start = time.perf_counter()
    packed, info = passes.pack_transform_pass(quantized, {"silent": True})
    pack_s = time.perf_counter() - start
    packed.export(folder / label)
    reloaded = MaseGraph.from_checkpoint(folder / label)
    ids = torch.randint(1000, (1, 64))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        graphs = (packed, reloaded, quantized)
        logits, again, unpacked = (graph.model(**inputs)["logits"] for graph in graphs)
    if not torch.equal(logits, again):
        raise SystemExit(f"{label}: the reloaded model gives other logits.")
    noise = (logits - unpacked).norm() / unpacked.norm()
    codes, tensors, file = bytes_in_file(folder / f"{label}.pt")
    row = {
        "format": label,
        "bits per packed weight": f"{8 * (codes + file - tensors) / packed_weights(reloaded):.4f}",
        "file (MB)": f"{file / 1e6:.1f}",
        "of float": f"{file / float_bytes:.1%}",
        "metadata (MB)": f"{(folder / label).with_suffix('.mz').stat().st_size / 1e6:.1f}",
        "pack (s)": f"{pack_s:.1f}",
        **{f"forward, {name}": text for name, text in forwards(mg, quantized, reloaded).items()},
        "off from unpacked (dB)": f"{-20 * torch.log10(noise):.0f}",
    }
    return row, info["rows"]


def by_reason(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What kinds of modules take, and why those that stayed float did."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["why_float"]), []).append(row)
    total = sum(row["bytes"] for row in rows)
    return [
        {
            "kind": kind,
            "modules": len(members),
            "elements": f"{sum(row['elements'] for row in members):,}",
            "MB": f"{sum(row['bytes'] for row in members) / 1e6:.2f}",
            "share of the file": f"{sum(row['bytes'] for row in members) / total:.1%}",
            "why float": reason,
        }
        for (kind, reason), members in groups.items()
    ]


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--formats", default="mxint8,mxint4")
    parser.add_argument("--embeddings", action="store_true", help="quantize the tables too")
    args = parser.parse_args()
    mg = graph_of_bert(args.layers)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mg.export(folder / "float")
        float_bytes = (folder / "float.pt").stat().st_size
        print(f"float checkpoint: {float_bytes / 1e6:.1f} MB\n")
        for label in args.formats.split(","):
            row, layers = measure(mg, label, args.embeddings, folder, float_bytes)
            rows.append(row)
            print(f"{label}\n\n{markdown_table(by_reason(layers))}\n")
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
