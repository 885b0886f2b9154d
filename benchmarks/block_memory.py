"""Peak memory of `chop compress --by-block` on decoders of random weights.

python benchmarks/block_memory.py [--shapes 1.48B,7B] [--blocks 2] [--layers N]
    [--out runs/block-memory]

A shape's folder is written first, in bfloat16 with float32 as the dtype to compute in. It is
compressed in a process of its own, which has compressed a tiny decoder of the same vocabulary
before, so that libraries and the tokenizer do not count; pages of mapped files count as memory. The
process ends when `--blocks` blocks are done, 0 for all: what one block takes, every other takes
too. The peak is that of the part that takes most, and starts anew with each. Writes `OUT.md`, the
table.
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

from chop.base.files import write_text
from chop.base.memory import release_freed
from chop.base.tables import markdown_table
from chop.bench.peak_memory import reset_high_water, resident_bytes

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
    from chop.actions.compress.job import compress
    from chop.actions.compress.settings import CompressConfig

    settings = CompressConfig(
        model=str(model), dataset="stories", out=out, formats=(FORMAT,), method=("gptq",),
        by_block=True, operators=("linear", "embedding"), task="causal-lm", limit=args.rows,
        calibration_rows=args.rows, max_length=args.tokens, keep_best=True, force=True,
    )  # fmt: skip
    compress(settings)


def done_in(out: Path) -> int:
    """How many parts are done in an output folder."""
    return sum(len(file.read_text().splitlines()) for file in out.glob("blocks/*/journal.jsonl"))


def measure(args: argparse.Namespace, shape: str, layers: int) -> None:
    """Prints the peak of each part, and ends the process when enough blocks are done.

    The first one has what is before the blocks, and the last one what is after them.
    """
    import torch

    torch.set_num_threads(1)
    compress_once(args, args.out / f"{shape}-tiny", args.out / "tiny-out")
    gc.collect()
    release_freed()
    out, before = args.out / f"{shape}-out", resident_bytes()
    assert before is not None and reset_high_water()

    def watch() -> None:
        known, parts = 0, 1 + args.blocks if args.blocks else layers + 2
        while known < parts:
            time.sleep(0.2)
            if done_in(out) > known:
                known += 1
                print("peak", (resident_bytes("VmHWM") or 0) - before, flush=True)
                reset_high_water()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    compress_once(args, args.out / shape, out)
    time.sleep(60)  # the other thread ends the process


def get_row(args: argparse.Namespace, shape: str) -> dict[str, str]:
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
    lines = [line.split() for line in done.stdout.splitlines()]
    peaks = [int(line[1]) for line in lines if line[:1] == ["peak"]]
    peak, own = max(peaks), peaks[1 : 1 + layers]
    growth = (own[-1] - own[0]) / max(len(own) - 1, 1)
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    block = 4 * (4 * hidden**2 + 3 * hidden * inner)
    limit = 2 * block + 12 * inner**2
    return {
        "shape": shape,
        "blocks": f"{len(own)} of {sizes['num_hidden_layers']}",
        "a float block": megabytes(block),
        "12 D^2": megabytes(12 * inner**2),
        "goal": megabytes(limit),
        "peak": f"{megabytes(peak)}: {'held' if peak <= limit else 'missed'}",
        "before the blocks": megabytes(peaks[0]),
        "first block": megabytes(own[0]),
        "largest block": megabytes(max(own)),
        "a further block adds": megabytes(growth),
        "minutes": f"{(time.monotonic() - started) / 60:.0f}",
    }


def megabytes(size: float) -> str:
    """Of 10^6 bytes, to a tenth."""
    return f"{size / 1e6:,.1f} MB"


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
        measure(args, args.step, args.layers or SHAPES[args.step]["num_hidden_layers"])
        return
    table = markdown_table([get_row(args, shape) for shape in args.shapes.split(",")])
    write_text(args.out.with_suffix(".md"), table)
    print(table)


if __name__ == "__main__":
    main()
