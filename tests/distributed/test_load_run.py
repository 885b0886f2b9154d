"""Sharded graphs whose processes read their own slices: the answers, the bytes and the memory."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from chop import passes
from chop.bench.peak_memory import peak_bytes
from chop.distributed import process
from chop.distributed.apply import local_bytes, shard_graph
from chop.distributed.builtin_plans import PLANS, rows_plan
from chop.distributed.load import CheckpointSource, SafetensorsSource, meta_graph
from chop.distributed.placements import local_slices
from chop.distributed.plan import ShardingPlan, named_tensors
from chop.ir.graph import MaseGraph
from chop.models.meta import meta_model, weights_source
from tests.distributed import cluster

TEXT = {"num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": (
        "BertForSequenceClassification",
        "BertConfig",
        {**TEXT, "hidden_size": 64, "intermediate_size": 128, "num_labels": 6},
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**TEXT, "hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50, "n_positions": 16}
        | {"bos_token_id": 1, "eos_token_id": 1},
    ),
}
MXINT8 = {"config": {"name": "mxint", "width": 8, "block_size": 16}}
LIMITS = {"quantized": 0.02, "packed": 0.02}
"""Sums in another order may round to another code."""
INPUTS = ["input_ids", "attention_mask"]


def build(name: str) -> Any:
    """A model with random weights, far enough from zero to tell answers apart."""
    cls, config, settings = MODELS[name]
    torch.manual_seed(0)
    scale = {"initializer_range": 0.2}
    return getattr(transformers, cls)(getattr(transformers, config)(**settings, **scale)).eval()


def inputs() -> dict[str, Tensor]:
    tokens = torch.randint(50, (3, 5), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, 3:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


CUT = [plan for plan in PLANS if plan != "data"]
"""By samples no weight is cut, and three rows do not divide."""


def differences(
    models: dict[str, tuple[MaseGraph, SafetensorsSource]],
    checkpoints: list[Path],
    expected: dict[str, Tensor],
) -> dict[tuple[str, str], float]:
    """By model and plan, how far a sharded graph is from one process."""
    mesh, found = process.start((2,), "gloo"), {}
    read = {path.name: (meta_graph(path), CheckpointSource(path)) for path in checkpoints}
    for name, (whole, source) in {**models, **read}.items():
        for plan in CUT:
            mg = whole.copy()
            assert all(p.is_meta for p in mg.model.parameters())
            made = PLANS[plan](mg, (2,))
            assert made.parameters or plan == "replicate"
            shard_graph(mg, made, mesh, source)
            with torch.no_grad():
                answer = mg.model(**inputs())["logits"]
            found[name, plan] = (answer - expected[name]).abs().max().item()
    return found


@pytest.mark.long
def test_processes_that_read_their_slices_answer_as_one_does(tmp_path: Path) -> None:
    models, expected, files = {}, {}, []
    for name in MODELS:
        model, folder = build(name), tmp_path / name
        model.save_pretrained(folder)
        with torch.no_grad():
            expected[name] = model(**inputs()).logits
        without = meta_model(folder)
        mg = MaseGraph(without, hf_input_names=INPUTS)
        models[name] = mg, weights_source(without, folder, mg.model)
    for name, mg in compressed().items():
        files.append(tmp_path / name)
        mg.export(files[-1])
        with torch.no_grad():
            expected[name] = mg.model(**inputs())["logits"]
    for rank in cluster.run(differences, 2, models, files, expected):
        assert len(rank) == len(expected) * len(CUT)
        assert {case: x for case, x in rank.items() if x > LIMITS.get(case[0], 1e-5)} == {}


@cache
def compressed() -> dict[str, MaseGraph]:
    """BERT in float, quantized and packed."""
    mg = MaseGraph(build("bert"), hf_input_names=INPUTS)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    settings = {"by": "type", "linear": MXINT8, "layer_norm": MXINT8}
    quantized, _ = passes.quantize_transform_pass(mg, settings)
    packed, _ = passes.pack_transform_pass(quantized, {"silent": True, "exact": True})
    return {"float": mg, "quantized": quantized, "packed": packed}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("processes", [2, 4])
def test_each_process_has_its_part_of_the_codes(tmp_path: Path, processes: int) -> None:
    compressed()["packed"].export(tmp_path / "packed")
    mg, source = meta_graph(tmp_path / "packed"), CheckpointSource(tmp_path / "packed")
    plan = rows_plan(mg, (processes,))
    layers = {path.rpartition(".")[0] for path in plan.parameters}
    assert len(layers) >= 6 and any(path.endswith("weight_codes") for path in plan.parameters)
    tensors = {n: x for n, x in named_tensors(mg.model) if n.rpartition(".")[0] in layers}
    whole = sum(x.nbytes for x in tensors.values())
    for rank in range(processes):
        kept = sum(
            source.read(
                name, local_slices(x.shape, (processes,), (rank,), plan.placement(name))
            ).nbytes
            for name, x in tensors.items()
        )
        assert kept == pytest.approx(whole / processes, rel=0.05)


LAYERS, WIDTH = 12, 2048
LARGEST = 4 * WIDTH**2
"""Bytes of the largest tensor of the wide stack, which has 200 MB."""


def stack(width: int) -> MaseGraph:
    """Many layers of one size, with whatever was in memory as weights."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    return MaseGraph(model.to_empty(device="cpu"), dummy_in={"input": torch.zeros(1, width)})


def growth(small: Path, large: Path) -> dict[str, tuple[int | None, int]]:
    """By how much memory grows at the most while a graph is loaded and sharded; and the share."""
    mesh, kept = process.start((2,), "gloo"), []

    def load(path: Path, dim: int, of_chop: bool) -> None:
        mg = meta_graph(path)
        cut = {n: (f"S{dim}",) for n, x in named_tensors(mg.model) if x.ndim == 2}
        source: Any = (
            CheckpointSource(path) if of_chop else SafetensorsSource(f"{path}.pt", mg.model)
        )
        shard_graph(mg, ShardingPlan((2,), cut), mesh, source)
        kept.append(mg)  # what was freed would be used again, and not be seen to grow

    found = {}
    for dim in (0, 1):
        for of_chop in (True, False):
            load(small, dim, of_chop)  # imports what it takes
            peak = peak_bytes(lambda d=dim, o=of_chop: load(large, d, o), torch.device("cpu"))
            found[f"S{dim}, {of_chop}"] = peak, local_bytes(kept[-1].model)
    return found


@pytest.mark.long
def test_no_process_has_more_in_memory_than_its_share_and_one_tensor(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    stack(8).export(small)
    stack(WIDTH).export(large)
    try:
        ranks = cluster.run(growth, 2, small, large)
    finally:
        large.with_suffix(".pt").unlink()
    for rank in ranks:
        assert len(rank) == 4
        for way, (peak, share) in rank.items():
            assert share == pytest.approx(LAYERS * LARGEST / 2, rel=0.01), way
            assert 0.9 * share < peak <= 1.3 * share + LARGEST, way
