"""A decoder with weights of 4 bits and inputs of 8, beside float inputs: divergence and speed.

    python benchmarks/low_bit_inputs.py --model ./smollm2 --data FOLDER

Inputs are rounded when they come: integers with a scale for each token, or FP8 (e4m3) with one.
Printed are the perplexity and the KL divergence from the float model on the first test texts of
FOLDER, and how many times as fast as with float inputs a token after `--prompt` others is, and such
a prompt: models are called in turns, with 95 % intervals.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop import ChopConfig
from chop.base.tables import markdown_table
from chop.bench import Variant, compare
from chop.bench.record import Comparison, format_ratio
from chop.data import get_tokenizer, load_dataset
from chop.runs.environment import processor_name
from chop.studies.generation_peers import DECODE, PREFILL, TorchDecoder

WEIGHTS = ("mxint4", "group_integer4")
INPUTS = {
    "float": None,
    "int8 per token": "scale_integer:width=8:granularity=row",
    "fp8 per token": "fp8:granularity=row",
}


@torch.inference_mode()
def judged(model: Any, exact: Any, texts: list[Tensor]) -> dict[str, str]:
    """Perplexity, and KL divergence from another model, over the tokens of all texts."""
    loss, divergence, count = 0.0, 0.0, 0
    for ids in texts:
        p, q = (x(input_ids=ids).logits[0, :-1].double().log_softmax(-1) for x in (exact, model))
        loss -= q.gather(-1, ids[0, 1:, None]).sum().item()
        divergence += (p.exp() * (p - q)).sum().item()
        count += len(q)
    perplexity = torch.tensor(loss / count).exp().item()
    return {"perplexity": f"{perplexity:.2f}", "KL": f"{divergence / count:.4f}"}


def main() -> None:
    """Measures the models of `--weights`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="./smollm2", help="a folder")
    parser.add_argument("--data", type=Path, required=True, help="folder with test texts")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=192, help="of a text at most")
    parser.add_argument("--prompt", type=int, default=64, help="tokens that are read at once")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring, per model")
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    exact, tokenizer = load(args.model, dtype=torch.float32), get_tokenizer(args.model)
    texts = load_dataset(args.data, limit=args.texts, labeled=False)["test"]["text"]
    ids = [tokenizer(x, return_tensors="pt").input_ids[:, : args.tokens] for x in texts]
    rows = [{"weights": "float", "inputs": "float", **judged(exact, exact, ids)}]
    for weights in args.weights.split(","):
        models: dict[str, Any] = {}
        for name, data_in in INPUTS.items():
            config = ChopConfig(weights, data_in=data_in)
            models[name] = load(args.model, dtype=torch.float32, quantization_config=config)
        times: dict[str, Comparison] = {}
        for kind in (DECODE, PREFILL):
            calls = {
                name: TorchDecoder(name, x.eval()).call(kind, ids[0][:, : args.prompt])
                for name, x in models.items()
            }
            found = compare(
                [Variant(name, call) for name, call in calls.items()],
                seconds=args.seconds,
                outputs=False,
                memory=False,
            )
            times[kind] = found
        for name, x in models.items():
            of = {kind: format_ratio(times[kind][name].ratio) for kind in times}
            rows.append({"weights": weights, "inputs": name, **judged(x, exact, ids), **of})
            print(rows[-1], flush=True)
    print(f"{processor_name()}, one thread")
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
