"""Decoders with weights and inputs of four bits, with rotations and without.

    python benchmarks/rotations.py --data FOLDER --methods nearest
    python benchmarks/rotations.py --model gpt-tiny --rotations "none;blocks of 32;blocks of 16"
    python benchmarks/rotations.py --model ./smollm2 --data FOLDER --reviews 8 --tokens 192

FOLDER holds `train` and `test` texts; gpt-tiny, trained in float, has its own. Weights and inputs
of the linear layers of blocks are rounded, the output layer and attention are float. Printed is
the KL divergence from the float model's probabilities, in brackets as a share of that without a
rotation. `merged` are QuaRot's rotations, `blocks of N` rotate what each layer reads in blocks of N
while the model runs. Results are kept in `--out` as they come.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from language_models import Subject

from chop import passes
from chop.base.files import write_json
from chop.base.tables import markdown_table
from chop.formats import QuantSpec, parse_format_string

FORMATS = "mxfp4,nvfp4,mxint4"
ROTATIONS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "merged": {},
    "merged, blocks of 32": {"block": 32},
    "blocks of 32": {"merge": False, "block": 32},
    "blocks of 16": {"merge": False, "block": 16},
}
OPERANDS = {"both": ("weight", "data_in"), "inputs": ("data_in",), "weights": ("weight",)}


def measure(
    subject: Subject, text: str, rotation: str, method: str, operands: str
) -> dict[str, float]:
    """KL divergence and perplexity of one row."""
    mg, settings = subject.mg, ROTATIONS[rotation]
    if settings is not None:
        mg, _ = passes.rotate_transform_pass(mg, settings)
    spec = QuantSpec(**dict.fromkeys(OPERANDS[operands], parse_format_string(text)))
    paths = {path: f"{path}.linear" for path in subject.layers}
    rules = {
        inner if inner in mg.modules else path: {"config": spec} for path, inner in paths.items()
    }
    mg, _ = passes.quantize_transform_pass(mg, {"by": "name", **rules})
    if method == "GPTQ":
        mg, _ = passes.gptq_transform_pass(mg, {"batches": subject.batches}, inplace=True)
    return subject.judge(mg.to_module())


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="smollm2, or a folder")
    parser.add_argument("--data", type=Path, help="folder with train and test texts")
    parser.add_argument("--reviews", type=int, default=10, help="test texts")
    parser.add_argument("--tokens", type=int, default=256, help="of a text at most")
    parser.add_argument("--calibration", type=int, default=8, help="training texts of as many")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--methods", default="nearest,GPTQ")
    parser.add_argument("--operands", default="both", choices=OPERANDS)
    parser.add_argument("--rotations", default=";".join(ROTATIONS))
    parser.add_argument("--out", type=Path, default=Path("runs/rotations"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    subject = Subject(args)
    subject.judge(subject.model)
    path = args.out / f"{args.reviews}-{args.tokens}-{args.calibration}-{args.operands}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for method in args.methods.split(","):
        rows = []
        for rotation in args.rotations.split(";"):
            row = {"rotation": rotation, "weights": method}
            for text in args.formats.split(","):
                key = f"{text}|{rotation}|{method}"
                if key not in known:
                    known[key] = measure(subject, text, rotation, method, args.operands)
                    write_json(path, known)
                    print(key, known[key], flush=True)
                base = known[f"{text}|none|{method}"]["divergence"]
                found = known[key]["divergence"]
                row[text] = f"{found:.3f} ({found / base:.2f})"
            rows.append(row)
        print(markdown_table(rows), flush=True)


if __name__ == "__main__":
    main()
