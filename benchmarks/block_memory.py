"""Peak memory of `chop compress --by-block` on decoders of random weights.

python benchmarks/block_memory.py [--shapes 1.48B,7B] [--blocks 2] [--layers N]
    [--out runs/block-memory]

A shape's folder is written first, in bfloat16 with float32 as the dtype to compute in. It is
compressed in a process of its own, which has compressed a tiny decoder of the same vocabulary
before, so that libraries and the tokenizer do not count; pages of mapped files count as memory. The
process ends when `--blocks` blocks are done, 0 for all: what one block takes, every other takes
too. Writes `OUT.md`, the table.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from chop.bench.peak_memory import peak_bytes, resident_bytes
from chop.bench.record import format_bytes
from chop.files import write_text
from chop.tables import markdown_table

SHAPES: dict[str, dict[str, Any]] = {
    "1.48B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 20,
              "num_attention_heads": 16, "vocab_size": 65536, "tie_word_embeddings": True},
    "7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
           "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False},
}  # fmt: skip
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4}  # fmt: skip
"""Sizes of the decoder that is compressed before, of the same vocabulary."""
FORMAT = "mxint:width=4"


def write_model(folder: Path, sizes: dict[str, Any]) -> None:
    """A Llama of random weights with the tokenizer of gpt-tiny, a shard for each block."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    from chop.data import get_tokenizer

    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.add_tokens([f"<{n}>" for n in range(sizes["vocab_size"] - len(tokenizer))])
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(**sizes, dtype="float32", architectures=["LlamaForCausalLM"])
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    names = {name: tuple(x.shape) for name, x in model.named_parameters()}
    groups: dict[str, list[str]] = {}
    for name in names:
        key = ".".join(name.split(".")[:3]) if ".layers." in name else "others"
        groups.setdefault(key, []).append(name)
    places = {}
    for number, group in enumerate(groups.values()):
        file = f"model-{number:05}.safetensors"
        drawn = {}
        for name in group:
            x = torch.randn(names[name], dtype=torch.bfloat16) * 0.02
            drawn[name] = torch.ones_like(x) if x.dim() == 1 else x
            places[name] = file
        save_file(drawn, folder / file, {"format": "pt"})
    text = json.dumps({"metadata": {}, "weight_map": places})
    write_text(folder / "model.safetensors.index.json", text)


def compress_once(args: argparse.Namespace, model: Path, out: Path) -> None:
    """`chop compress --by-block` of linear layers and tables on a few short rows."""
    from chop.actions.compress import compress
    from chop.actions.settings.compress import CompressConfig

    settings = CompressConfig(
        model=str(model), dataset="stories", out=out, formats=(FORMAT,), method=("gptq",),
        by_block=True, operators=("linear", "embedding"), task="causal-lm", limit=args.rows,
        calibration_rows=args.rows, max_length=args.tokens, keep_best=True, force=True,
    )  # fmt: skip
    compress(settings)


def done_in(out: Path) -> int:
    """How many parts are done in an output folder."""
    return sum(len(file.read_text().splitlines()) for file in out.glob("blocks/*/journal.jsonl"))


def measure(args: argparse.Namespace, shape: str) -> None:
    """Prints the peak, and ends the process when enough blocks are done."""
    import torch

    torch.set_num_threads(1)
    compress_once(args, args.out / f"{shape}-tiny", args.out / "tiny-out")
    gc.collect()
    out, before = args.out / f"{shape}-out", resident_bytes()
    assert before is not None

    def watch() -> None:
        while args.blocks == 0 or done_in(out) < 1 + args.blocks:
            time.sleep(0.2)
        print("peak", (resident_bytes("VmHWM") or 0) - before, flush=True)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    folder = args.out / shape
    print("peak", peak_bytes(lambda: compress_once(args, folder, out), torch.device("cpu")))


def row_of(args: argparse.Namespace, shape: str) -> dict[str, str]:
    """One line of the table, measured by a new process."""
    sizes = SHAPES[shape]
    layers = args.layers or sizes["num_hidden_layers"]
    models = {shape: sizes | {"num_hidden_layers": layers}, f"{shape}-tiny": sizes | TINY}
    for name, own in models.items():
        if not (args.out / name / "config.json").is_file():
            write_model(args.out / name, own)
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", *sys.argv, "--step", shape]
    started = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, **settings}, check=True, stdout=subprocess.PIPE, text=True
    )
    peak = int(done.stdout.split("peak")[-1].split()[0])
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    block = 4 * (4 * hidden**2 + 3 * hidden * inner)
    limit = 2 * block + 12 * inner**2
    return {
        "shape": shape,
        "blocks": f"{args.blocks or sizes['num_hidden_layers']} of {sizes['num_hidden_layers']}",
        "a float block": format_bytes(block),
        "12 D^2": format_bytes(12 * inner**2),
        "peak": format_bytes(peak),
        "goal": f"{format_bytes(limit)}: {'held' if peak <= limit else 'missed'}",
        "minutes": f"{(time.monotonic() - started) / 60:.0f}",
    }


def main() -> None:
    """Measures every shape and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="1.48B,7B")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--layers", type=int, help="of the model; default, those of the shape")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("runs/block-memory"))
    parser.add_argument("--step", choices=SHAPES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step is not None:
        measure(args, args.step)
        return
    table = markdown_table([row_of(args, shape) for shape in args.shapes.split(",")])
    write_text(args.out.with_suffix(".md"), table)
    print(table)


if __name__ == "__main__":
    main()
