"""Peak memory of compressing a decoder from its files, and of loading the packed folder.

Each is measured in a process of its own, beyond what the same takes for the built-in decoder, so
that libraries do not count. Pages of files that are mapped count as memory.

python benchmarks/decoder_memory.py --model ./smollm2 [--dataset reviews] [--formats mxint]
    [--limit 8] [--max-length 512] [--out runs/decoder-memory]

Writes `OUT.md`, the table. The folder with the decoder has float weights as safetensors.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from pathlib import Path

from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.bench.peak_memory import peak_bytes
from chop.bench.record import format_bytes

WARM_UP = ("gpt-tiny", "stories")
LIMITS = {"compress": 1.5, "load": 1.2, "load and call": None}
"""Step -> the most it may take, in sizes of the file that it reads."""


def weights_bytes(folder: Path) -> int:
    """Size of the weights of a folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def compress_once(args: argparse.Namespace, model: str, dataset: str, out: Path) -> None:
    """`chop compress` of linear layers and embeddings, with no training and no timing."""
    from chop.actions.compress.job import compress
    from chop.actions.compress.settings import CompressConfig

    settings = CompressConfig(
        model=model, dataset=dataset, out=out, formats=tuple(args.formats.split(",")),
        operators=("linear", "embedding"), task="causal-lm", limit=args.limit,
        max_length=args.max_length, keep_best=True, qat_epochs=0, bench_seconds=0, force=True,
    )  # fmt: skip
    compress(settings)


def load_once(folder: Path, call: bool) -> object:
    """Loads a packed folder; and calls it with 16 tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    if call:
        with torch.inference_mode():
            model(torch.arange(16)[None])
    return model


def measure(args: argparse.Namespace) -> int | None:
    """The peak of one step in this process, in bytes."""
    import torch

    torch.set_num_threads(1)
    small, large = args.out / "small", args.out / "large"
    held = []
    if args.step == "compress":
        compress_once(args, *WARM_UP, small)
        gc.collect()
        return peak_bytes(
            lambda: compress_once(args, args.model, args.dataset, large), torch.device("cpu")
        )
    call = args.step == "load and call"
    load_once(small / "model", call)
    gc.collect()
    return peak_bytes(lambda: held.append(load_once(large / "model", call)), torch.device("cpu"))


def get_row(args: argparse.Namespace, step: str) -> dict[str, str]:
    """One line of the table, measured by a new process."""
    command = [sys.executable, "-W", "ignore", *sys.argv, "--step", step]
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, env={**os.environ, **settings}, check=True, stdout=subprocess.PIPE, text=True
    )
    peak = int(done.stdout.split()[-1])
    read = Path(args.model) if step == "compress" else args.out / "large" / "model"
    size, limit = weights_bytes(read), LIMITS[step]
    held = "" if limit is None else "held" if peak <= limit * size else "missed"
    return {
        "step": step,
        "weights that are read": format_bytes(size),
        "peak": format_bytes(peak),
        "ratio": f"{peak / size:.2f}",
        "goal": "" if limit is None else f"{limit:g}: {held}",
    }


def main() -> None:
    """Measures every step and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", default="reviews")
    parser.add_argument("--formats", default="mxint")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("runs/decoder-memory"))
    parser.add_argument("--step", choices=LIMITS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step is not None:
        print(measure(args))
        return
    table = markdown_table([get_row(args, step) for step in LIMITS])
    write_text(args.out.with_suffix(".md"), table)
    print(table)


if __name__ == "__main__":
    main()
