"""A decoder's ONNX file in onnxruntime beside chop: the tokens it generates, and its speed.

    python benchmarks/onnx_decoding.py --model ./smollm2 [--format group_integer4] [--seconds 2]

Greedy tokens of both after a prompt, with the largest difference of their logits on the way; then
prompts of 64 tokens and tokens after them, in turns, on one thread, where processor time decides.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.base.tables import print_table
from chop.bench import Variant, compare
from chop.bench.record import format_bytes, format_ratio
from chop.captured.huggingface.cache_names import find_cache
from chop.export.target import Written
from chop.export.targets import target
from chop.formats import parse_format_string
from chop.ir.graph import MaseGraph
from chop.models import load_model
from chop.pipelines.packed_weights import pack_weights
from chop.runs.environment import processor_name
from chop.studies.generation_peers import DECODE, PREFILL, Contender, TorchDecoder

FLOAT, PACKED, ENGINE = "float32", "chop packed", "onnxruntime"
PROMPT, TOKENS = 64, 24


class OnnxDecoder(Contender):
    """A file in onnxruntime, called with the keys and values that it gave before."""

    def __init__(self, name: str, made: Written) -> None:
        super().__init__(name)
        self._run, self._bytes = target("onnx").read(made.path), made.size_bytes

    @property
    def weight_bytes(self) -> int:
        """Of the files."""
        return self._bytes

    def step(self, ids: Tensor, past: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (1, T, V) of tokens (1, T), and the past of the next ones."""
        seen = next(iter(past.values())).shape[2] if past else 0
        mask = torch.ones(1, seen + ids.shape[1], dtype=torch.long)
        found = dict(self._run({"input_ids": ids, "attention_mask": mask, **past}))
        logits = found.pop("logits")
        return logits, {k.replace("present", "past_key_values"): x for k, x in found.items()}

    def call(self, kind: str, ids: Tensor) -> Callable[[], Tensor]:
        """See `Contender.call`."""
        if kind == PREFILL:
            return lambda: self.step(ids, {})[0][:, -1:]
        past = self.step(ids, {})[1]
        return lambda: self.step(ids[:, :1], past)[0]


def generated(engine: OnnxDecoder, mg: MaseGraph, ids: Tensor) -> str:
    """How many greedy tokens are the graph's, and the largest difference of logits."""
    past: dict[str, Tensor] = {}
    cache, tokens, equal, apart = None, ids, 0, 0.0
    for _ in range(TOKENS):
        logits, past = engine.step(tokens, past)
        seen = next(iter(past.values())).shape[2]
        mask = torch.ones(1, seen, dtype=torch.long)
        with torch.no_grad():
            given = {"attention_mask": mask, "use_cache": True, "cache": cache}
            answer = mg.model(input_ids=tokens, **given)
        _, cache = find_cache(answer)
        apart = max(apart, (logits - answer.logits)[:, -1].abs().max().item())
        equal += int(logits[0, -1].argmax() == answer.logits[0, -1].argmax())
        tokens = answer.logits[:, -1:].argmax(-1)
    return f"{equal} of {TOKENS} tokens equal, logits differ by {apart:.1g} at most"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt-tiny")
    parser.add_argument("--format", default="group_integer4")
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.model).eval()
    mg = pack_weights(MaseGraph(model), parse_format_string(args.format))
    vocabulary: int = model.config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        made = target("onnx").export(mg, Path(folder) / "model")
        engine = OnnxDecoder(ENGINE, made)
    print(f"{args.model}, {args.format}: {generated(engine, mg, ids)}")
    contenders = [TorchDecoder(FLOAT, model), TorchDecoder(PACKED, mg.to_module().eval()), engine]
    how: dict[str, Any] = {"seconds": args.seconds, "threads": 1, "memory": False, "outputs": False}
    rows = {each.name: {"model": each.name} for each in contenders}
    for kind in (PREFILL, DECODE):
        variants = [
            Variant(each.name, prepare=partial(each.call, kind, ids)) for each in contenders
        ]
        found = compare(variants, PACKED, **how)
        for each in found:
            count = PROMPT if kind == PREFILL else 1
            rows[each.name] |= {
                f"{kind}, tokens/s": f"{count / each.seconds:.1f}",
                f"{kind}, times as fast as chop packed": format_ratio(each.ratio),
            }
    for each in contenders:
        rows[each.name]["bytes"] = format_bytes(each.weight_bytes)
    print_table(f"Generating, one thread, {processor_name()}", [*rows.values()])


if __name__ == "__main__":
    main()
