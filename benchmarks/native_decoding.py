"""Parts of a natively decoded token: processor time of its steps by kind, and of Python.

    python benchmarks/native_decoding.py --model ./smollm2 --formats mxint8,mxint4

Steps of one kind run alone, with caches that other steps do not empty.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import StaticCache

from chop import decode_natively
from chop.base.tables import markdown_table
from chop.captured.huggingface.cache_names import cache_name
from chop.models import load_model
from chop.studies.generate import packed_graph

PRODUCTS, ATTENTION = "linear", "attend"


def milliseconds(call: Callable[[], Any], turns: int) -> float:
    """Returns the median processor time of a call."""
    times = []
    for _ in range(turns):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


@torch.inference_mode()
def row_of(model: Any, prompt: int, turns: int) -> dict[str, str]:
    """Returns the times of a packed decoder after a prompt."""
    decode_natively(model)
    cache = StaticCache(config=model.config, max_cache_len=prompt + 1)
    given = {cache_name(model): cache, "use_cache": True}
    ids = torch.arange(prompt)[None]
    model(input_ids=ids, **given)

    def token() -> None:
        model(input_ids=ids[:, :1], **given)
        cache.crop(-1)

    token()
    steps = model.forward._steps._steps
    names = [*steps.kinds]
    keys, values = ([getattr(x, n).data_ptr() for x in cache.layers] for n in ("keys", "values"))

    def time_of(kinds: set[str]) -> float:
        chosen = [step for step in steps.steps if names[step.kind] in kinds]
        some = dataclasses.replace(steps, steps=(type(chosen[0]) * len(chosen))(*chosen))
        return milliseconds(lambda: some.run(keys, values, prompt + 1, prompt), turns)

    every = {*names}
    whole, in_steps = milliseconds(token, turns), time_of(every)
    parts = {
        "a token": whole,
        "products": time_of({PRODUCTS}),
        "attention": time_of({ATTENTION}),
        "other steps": time_of(every - {PRODUCTS, ATTENTION}),
        "Python": whole - in_steps,
    }
    return {name: f"{value:.2f}" for name, value in parts.items()}


def main() -> None:
    """Prints a table with a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a decoder")
    parser.add_argument("--formats", default="mxint8,mxint4", help="of weights")
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--turns", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.model, task="text-generation")
    rows = []
    for name in args.formats.split(","):
        packed = packed_graph(model, name).to_module().eval()
        rows.append({"ms": name, **row_of(packed, args.prompt, args.turns)})
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
