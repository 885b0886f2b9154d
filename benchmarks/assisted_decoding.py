"""Greedy generation with prompt lookup, an assistant or native steps, beside plain generation.

    python benchmarks/assisted_decoding.py --model ./smollm2 [--assistant ./smaller]

The model and the assistant are packed. Ways alternate, and times are processor time. The text of
each way is compared with the plain greedy text.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop import decode_natively
from chop.base.tables import markdown_table
from chop.bench import paired_ratio
from chop.bench.record import format_ratio
from chop.data import get_tokenizer
from chop.models import load_model
from chop.studies.generate import packed_graph

PROMPTS = {
    "a list to repeat": "Repeat this list word for word, twice: apple, banana, cherry, damson, "
    "elderberry, fig, grape, hazelnut, iris, jasmine, kiwi, lemon.",
    "a question": "Explain in a few sentences why the sky is blue during the day.",
}
PLAIN = "plain"


def tokens_of(tokenizer: Any, prompt: str) -> Tensor:
    """Returns the tokens of a chat with one question, (1, T)."""
    chat = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]


@torch.inference_mode()
def measure(
    model: nn.Module, prompt: Tensor, ways: dict[str, dict[str, Any]], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Returns a row for each way to generate."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, Tensor] = {}
    for turn in range(args.turns + 1):
        for name in ways if turn % 2 else reversed(ways):
            start = time.process_time()
            texts[name] = model.generate(
                prompt, max_new_tokens=args.tokens, do_sample=False, **ways[name]
            )
            if turn:  # the first is a warm-up
                seconds[name].append(time.process_time() - start)
    new = texts[PLAIN].size(1) - prompt.size(1)
    return [
        {
            "way": name,
            "tokens": new,
            "equal text": "yes" if torch.equal(texts[name], texts[PLAIN]) else "no",
            "times as fast": "1"
            if name == PLAIN
            else format_ratio(paired_ratio(seconds[PLAIN], seconds[name], confidence=0.95)),
        }
        for name in ways
    ]


def main() -> None:
    """Prints a table of the ways for each prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a chat model")
    parser.add_argument("--assistant", type=Path, help="folder of a smaller one, same tokenizer")
    parser.add_argument("--format", default="mxint8", help="of weights")
    parser.add_argument("--assistant-format", default="mxint4", help="of the assistant's weights")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens")
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = get_tokenizer(args.model)
    packed = [
        packed_graph(load_model(str(folder), task="text-generation"), name)
        for folder, name in ((args.model, args.format), (args.assistant, args.assistant_format))
        if folder is not None
    ]
    target, *assistants = (mg.to_module().eval() for mg in packed)
    decode_natively(target)  # concerns static caches only
    ways: dict[str, dict[str, Any]] = {
        PLAIN: {},
        "native steps": {"cache_implementation": "static"},
        "prompt lookup": {"prompt_lookup_num_tokens": 8},
    }
    if assistants:
        ways["assistant"] = {"assistant_model": assistants[0]}
    rows = [
        {"prompt": name, **row}
        for name, prompt in PROMPTS.items()
        for row in measure(target, tokens_of(tokenizer, prompt), ways, args)
    ]
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
