"""Adapters on packed weights (QLoRA): memory, time per step and loss, beside bitsandbytes.

    python benchmarks/qlora.py --data FOLDER                                  # SmolLM2, texts
    python benchmarks/qlora.py --data FOLDER --methods float,nf4,nested --steps 20 --dtype bfloat16

LoRA adapters of peft are trained on windows of training text, from the same start and in the same
order. Each method runs in a process of its own, so that its peak of memory is its own. The step's
memory is the peak of resident memory during the steps less the memory before the first one: it has
activations, gradients and the optimizer. The loss is the mean over tokens of test texts.

The processes take turns after every step, so that the load of the machine affects all methods. A
step's time is that of its processor. Its ratio to the last method's is the median over steps with a
95 % interval, without the first step.

`bitsandbytes` is run if it is installed, with its own layers (`Linear4bit`) and double
quantization, on the layers that the other methods quantize.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.language_models import _load
from chop import MaseGraph, passes
from chop.base.memory import release_freed
from chop.base.tables import markdown_table
from chop.bench.record import format_seconds
from chop.bench.statistics import paired_ratio
from chop.data import get_tokenized_dataset, load_dataset

FORMATS: dict[str, dict[str, Any]] = {
    "nf4": {"name": "nf4"},
    "nested": {"name": "nf4", "nested": True},
    "k_quant4": {"name": "k_quant", "width": 4},
    "group_affine4": {"name": "group_affine", "width": 4},
}
METHODS = ("float", *FORMATS, "bitsandbytes")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RATE = 2e-4
READY = "ready for a step"


def memory(name: str) -> int:
    """Returns a number of `/proc/self/status`, in bytes: `VmRSS` or the peak `VmHWM`."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


def windows(args: argparse.Namespace, tokenizer: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Returns batches of training text, and test texts."""
    count = args.steps * args.batch_size
    splits = load_dataset(args.data, limit=8 * max(count, args.texts), labeled=False)
    cut = {"max_length": args.tokens, "labeled": False}
    test = get_tokenized_dataset(splits, tokenizer, **cut)["test"]
    train = get_tokenized_dataset(splits, tokenizer, **cut, stride=args.tokens, limit=2 * count)
    rows = [torch.tensor(row["input_ids"]) for row in train["train"]]
    whole = torch.stack([x for x in rows if len(x) == args.tokens][:count])
    texts = [torch.tensor([test[i]["input_ids"]]) for i in range(args.texts)]
    return list(whole.split(args.batch_size)), texts


def quantized(model: nn.Module, method: str, dtype: torch.dtype) -> nn.Module:
    """Returns the model with the weights of a method; the head stays float."""
    if method == "float":
        return model.to(dtype)
    if method == "bitsandbytes":
        return by_bitsandbytes(model.to(dtype), dtype)
    mg = MaseGraph(model, hf_input_names=["input_ids", "labels"])
    paths = [x for x, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    rules = {path: {"config": {"weight": FORMATS[method]}} for path in paths if path != "lm_head"}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "name", **rules})
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    return mg.to_module().to(dtype)


def by_bitsandbytes(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replaces linear layers by those of bitsandbytes."""
    import bitsandbytes

    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and path != "lm_head":
            sizes = layer.in_features, layer.out_features, layer.bias is not None
            how = {"compute_dtype": dtype, "compress_statistics": True, "quant_type": "nf4"}
            twin = bitsandbytes.nn.Linear4bit(*sizes, **how)
            twin.load_state_dict(layer.state_dict())
            home, _, name = path.rpartition(".")
            setattr(model.get_submodule(home), name, twin.to("cpu"))
    return model


@torch.no_grad()
def loss_on(model: nn.Module, texts: list[Tensor]) -> float:
    """Returns the mean loss over the tokens of texts."""
    model.eval()
    losses = [(model(input_ids=x, labels=x).loss.float().item(), x.numel() - 1) for x in texts]
    return sum(loss * n for loss, n in losses) / sum(n for _, n in losses)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Trains by one method, and returns its numbers."""
    import peft

    model, tokenizer = _load(args.model)
    batches, texts = windows(args, tokenizer)
    model = quantized(model, args.method, getattr(torch, args.dtype))
    layers = {id(x): x for x in (*model.parameters(), *model.buffers())}
    stored = sum(x.nbytes for x in layers.values())
    before = loss_on(model, texts)
    torch.manual_seed(0)
    lora = peft.LoraConfig(r=args.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, lora).train()
    trained = [x for x in adapted.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    gc.collect()
    release_freed()
    CLEAR.write_text("5")  # the peak starts anew
    start, seconds = memory("VmRSS"), []
    for batch in batches:
        print(READY, flush=True)
        sys.stdin.readline()  # the other methods take their step first
        clock = time.process_time()
        adapted(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - clock)
    peak = memory("VmHWM")
    return {
        "method": args.method,
        "weights (MB)": round(stored / 1e6, 1),
        "step (MB)": round((peak - start) / 1e6),
        "seconds": seconds[1:],  # the first step allocates
        "loss before": round(before, 4),
        "loss after": round(loss_on(adapted, texts), 4),
    }


def answer(child: subprocess.Popen[str]) -> str:
    """Returns the next line of a process that is `READY` or its numbers."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith((READY, "{")):
            return line.strip()
    raise SystemExit(f"A method stopped with exit code {child.wait()}.")


def in_turns(methods: list[str]) -> list[dict[str, Any]]:
    """Returns the numbers of each method, from processes that take turns after every step."""
    command = [sys.executable, __file__, *sys.argv[1:], "--method"]
    children, answers = [], []
    for method in methods:  # one after another, so that one model is loaded at a time
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        children.append(subprocess.Popen([*command, method], text=True, **pipes))
        answers.append(answer(children[-1]))
    while READY in answers:
        for number, child in enumerate(children):
            print(file=child.stdin, flush=True)
            answers[number] = answer(child)
    return [json.loads(line) for line in answers]


def main() -> None:
    """Runs each method in its own process, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, or a folder")
    parser.add_argument("--data", required=True, help="a folder with train and test texts")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--texts", type=int, default=16)
    args = parser.parse_args()
    if args.method:
        print(json.dumps(run(args)))
        return
    methods = args.methods.split(",")
    if "bitsandbytes" in methods and find_spec("bitsandbytes") is None:
        print("bitsandbytes is not installed: skipped.", file=sys.stderr)
        methods.remove("bitsandbytes")
    rows = in_turns(methods)
    last = rows[-1]["seconds"]
    for row in rows:
        own = row["seconds"]
        ratio = paired_ratio(own, last)
        row["seconds"] = format_seconds(statistics.median(own))
        row["relative to the last"] = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
