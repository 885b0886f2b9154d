"""Parts of a natively decoded token: processor time of its steps by kind, and of Python.

    python benchmarks/native_decoding.py --model ./smollm2 --formats mxint8,mxint4
    python benchmarks/native_decoding.py --model ./smollm2 --formats mxint8 --beside-llama-cpp

Steps of one kind run alone, with caches that other steps do not empty. The second command measures
eager, native and compiled tokens, and those of llama.cpp with the same codes, in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import StaticCache

from chop import MaseGraph, decode_natively
from chop.base.tables import markdown_table
from chop.bench import Variant, compare
from chop.bench.record import format_ratio, format_seconds
from chop.captured.huggingface.cache_names import cache_name
from chop.models import load_model
from chop.studies import llama_cpp
from chop.studies.generate import packed_graph
from chop.studies.generation_peers import DECODE, CompiledDecoder, NativeDecoder, TorchDecoder

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


def rows_beside_llama_cpp(
    mg: MaseGraph, name: str, prompt: int, seconds: float
) -> list[dict[str, str]]:
    """Returns the times of a token by each way, relative to llama.cpp with the same codes."""
    model: Any = mg.to_module().eval()
    peers, missing = llama_cpp.contenders([(name, mg)], prompt + 1, threads=1)
    if missing:
        raise SystemExit(f"llama.cpp: {missing}")
    kinds = {"eager": TorchDecoder, "native": NativeDecoder, "compiled": CompiledDecoder}
    ways = [*peers, *(kind(f"{name} {way}", model) for way, kind in kinds.items())]
    ids = torch.arange(prompt)[None]
    variants = [Variant(way.name, prepare=partial(way.call, DECODE, ids)) for way in ways]
    compared = compare(variants, baseline=ways[0].name, seconds=seconds, threads=1)
    times = {way.name: compared[way.name] for way in ways}
    return [
        {
            "way": way,
            "a token": format_seconds(each.seconds),
            "times as fast": "1" if way == ways[0].name else format_ratio(each.ratio),
        }
        for way, each in times.items()
    ]


def main() -> None:
    """Prints a table with a row for each format, or for each way to decode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a decoder")
    parser.add_argument("--formats", default="mxint8,mxint4", help="of weights")
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--beside-llama-cpp", action="store_true", help="compare ways to decode")
    parser.add_argument("--seconds", type=float, default=3, help="of comparing, for each way")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.model, task="text-generation")
    rows = []
    for name in args.formats.split(","):
        mg = packed_graph(model, name)
        if args.beside_llama_cpp:
            rows += rows_beside_llama_cpp(mg, name, args.prompt, args.seconds)
        else:
            rows.append({"ms": name, **row_of(mg.to_module().eval(), args.prompt, args.turns)})
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
