"""Greedy text with KV caches in few bits, beside that with the float cache.

    python benchmarks/greedy_caches.py --model ./smollm2 --data FOLDER
    python benchmarks/greedy_caches.py --model ./smollm2 --data FOLDER --errors

Prompts are the first tokens of the first reviews in the `test` texts of FOLDER that have as many,
`--at-once` of them in a batch. Printed is how many texts are the float cache's, to the last token,
and for each of the others the token at which it leaves the float one, and by how much the float
logits of the two best tokens differ there. `bfloat16` is a cache of 16 bits a number, for
comparison.

With `--errors` settings are compared on the first 4 training reviews of 324 tokens, of which 260
are in the cache, 128 of them rounded: the KL divergence of the others from the float cache's, and
by how much the lead of the best token over the next is off, on average.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from chop import QuantizedCache
from chop.base.tables import markdown_table
from chop.data import get_tokenizer, load_dataset
from chop.models import load_model
from chop.train.evaluator import divergences

CACHES: dict[str, dict[str, Any]] = {
    "bfloat16": {"keys": "minifloat_ieee:width=16:exponent_width=8", "sink_length": 0},
    "group_integer8, no sinks": {"keys": "group_integer:width=8", "sink_length": 0},
    "group_integer8": {"keys": "group_integer:width=8"},
    "group_affine8, groups of 32": {"keys": "group_affine:width=8:group_size=32"},
    "mxint8": {"keys": "mxint8"},
}


def settings() -> dict[str, dict[str, Any]]:
    """Caches for `--errors`, by name: sinks or none, and keys by channel, by token, or rotated."""
    found = {}
    for text in ("group_integer:width=8", "group_affine:width=4"):
        text += ":group_size=32"
        found[f"{text}, no sinks"] = {"keys": text, "sink_length": 0}
        found[text] = {"keys": text}
        found[f"{text}, rotated keys"] = {"keys": text, "rotate_keys": True}
        of_tokens = {"keys": text, "keys_per": "token"}
        found[f"{text}, keys per token"] = of_tokens
        found[f"{text}, rotated keys per token"] = of_tokens | {"rotate_keys": True}
    text = "group_affine:width=8:group_size=32"
    return found | {f"{text}, no sinks": {"keys": text, "sink_length": 0}, text: {"keys": text}}


@torch.inference_mode()
def errors(model: Any, ids: Tensor, prompt: int) -> list[dict[str, str]]:
    """A row for each of `settings`."""
    floats = DynamicCache(config=model.config)
    model(input_ids=ids[:, :prompt], cache=floats, logits_to_keep=1)
    states = [(layer.keys.clone(), layer.values.clone()) for layer in floats.layers]

    def read(cache: Any) -> Tensor:
        for index, (keys, values) in enumerate(states):
            cache.update(keys, values, index)
        logits: Tensor = model(input_ids=ids[:, prompt:], cache=cache).logits
        return logits.double()

    exact = read(DynamicCache(config=model.config))
    best, rows = exact.topk(2, -1).indices, []
    for name, setting in settings().items():
        found = read(QuantizedCache(model, **setting))
        off = (found - exact).gather(-1, best).diff(dim=-1).abs().mean()
        divergence = divergences(exact.flatten(0, -2), found.flatten(0, -2)).mean()
        rows.append({"cache": name, "KL": f"{divergence:.2g}", "lead is off by": f"{off:.4f}"})
        print(rows[-1], flush=True)
    return rows


def prompts(texts: Iterable[str], model: str, count: int, length: int) -> Tensor:
    """(count, length), of the first texts that are as long."""
    tokenizer, found = get_tokenizer(model), []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        if ids.size(1) >= length:
            found.append(ids[:, :length])
        if len(found) == count:
            break
    return torch.cat(found)


def written(model: nn.Module, ids: Tensor, new: int, cache: Any) -> tuple[Tensor, Tensor]:
    """The new tokens (B, T), and the lead of the best one over the next in logits (B, T)."""
    greedy = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    greedy |= {"return_dict_in_generate": True, "output_logits": True, "cache": cache}
    found: Any = model.generate(ids, attention_mask=torch.ones_like(ids), **greedy)
    best = torch.stack(found.logits, 1).topk(2, -1).values
    return found.sequences[:, ids.size(1) :], best[..., 0] - best[..., 1]


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="./smollm2", help="a folder")
    parser.add_argument("--data", type=Path, required=True, help="folder with test texts")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--prompt", type=int, default=256, help="tokens that are read at once")
    parser.add_argument("--new", type=int, default=64, help="tokens that are written")
    parser.add_argument("--at-once", type=int, default=10, help="texts of a batch")
    parser.add_argument("--errors", action="store_true", help="of settings, on training reviews")
    parser.add_argument("--caches", default=";".join(CACHES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    model: Any = load_model(args.model, task="text-generation").eval()
    if args.errors:
        texts = load_dataset(args.data, labeled=False)["train"]["text"]
        ids = prompts(texts, args.model, 4, 324)
        print(markdown_table(errors(model, ids, 260)))
        return
    texts = load_dataset(args.data, limit=8 * args.texts, labeled=False)["test"]["text"]
    batches = prompts(texts, args.model, args.texts, args.prompt).split(args.at_once)
    floats = [written(model, x, args.new, DynamicCache(config=model.config)) for x in batches]
    rows = []
    for name in args.caches.split(";"):
        left = []
        for ids, (exact, lead) in zip(batches, floats, strict=True):
            found, _ = written(model, ids, args.new, QuantizedCache(model, **CACHES[name]))
            for text, is_other in enumerate(found != exact):
                if is_other.any():
                    place = int(is_other.int().argmax())
                    left.append(f"{place} ({lead[text, place]:.3f})")
        same = f"{args.texts - len(left)} of {args.texts}"
        rows.append({"cache": name, "same text": same, "left": "; ".join(left)})
        print(rows[-1], flush=True)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
