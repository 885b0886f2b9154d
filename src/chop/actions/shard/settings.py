"""Settings of `chop shard`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from chop.config import MORE, Range, check_fields, check_text
from chop.errors import ConfigError


@dataclass(frozen=True)
class ShardConfig:
    """Settings of `chop shard`.

    Attributes:
        model: built-in name, folder, hub name or checkpoint. Weights of a built-in model are
            random, from `seed`. A folder is from Hugging Face or `chop compress`, a checkpoint from
            chop (`runs/demo/model`).
        mesh: processes along each axis, as 2 or 2x2. Default: that of the plan's file; all
            processes under torchrun; else 2.
        plan: layout: auto, megatron, rows, data or a file. auto searches for the fastest plan
            within `memory`; megatron splits pairs of linear layers by columns and rows; rows splits
            every weight matrix by rows; data splits the batch; replicate copies the model. A file
            is plan.json of an earlier run, possibly edited.
        memory: memory of a process, as 4GB or 512MiB. It must hold parameters and activations; a
            plan that needs more is rejected. Default: no limit.
        out: folder for all results.
        run: run the model on that many processes. They are on this machine, or torchrun's.
        plan_only: stop once the plan is written, as without `run`.
        check: compare every node with one process. The check covers the first forward, and stops at
            the first node that differs.
        export_tp_plan: write the plan for transformers. It is `tp_plan.json`; the weights are read
            in one process.
        backend: gloo (CPU) or nccl (a CUDA device per process). Default: nccl if each process has a
            device, else gloo.
        task: task of a local folder or hub name: text-classification, image-classification,
            token-classification, text-generation, fill-mask or feature-extraction. Default: the
            class that the checkpoint names.
        batch: rows of the forward.
        length: tokens of a row.
        seed: random seed of built-in models.
        flops: floating-point operations per second of a process, for predictions.
        bandwidth: bytes per second that a process sends.
        latency: seconds per message, without its bytes.
        time_limit_s: seconds for each integer program of the search.
        matmul_precision: precision of float32 products. As in `torch.set_float32_matmul_precision`;
            with medium, packed layers may round to bfloat16 if that is faster. The check uses the
            highest. Default: torch's setting, highest.
    """

    model: str = "vit"
    mesh: int | str | None = None
    plan: str = "auto"
    memory: str | None = None
    out: Path = Path("runs/shard")
    run: bool = False
    plan_only: bool = field(default=False, metadata=MORE)
    check: bool = True
    export_tp_plan: bool = False
    backend: Literal["gloo", "nccl"] | None = field(default=None, metadata=MORE)
    task: str | None = field(default=None, metadata=MORE)
    batch: Annotated[int, Range(1)] = 4
    length: Annotated[int, Range(1)] = 8
    seed: int = field(default=0, metadata=MORE)
    flops: float = field(default=100e12, metadata=MORE)
    bandwidth: float = field(default=100e9, metadata=MORE)
    latency: float = field(default=10e-6, metadata=MORE)
    time_limit_s: float = field(default=120.0, metadata=MORE)
    matmul_precision: Literal["highest", "high", "medium"] | None = field(
        default=None, metadata=MORE
    )

    def __post_init__(self) -> None:
        from chop.distributed.byte_sizes import parse_bytes
        from chop.distributed.plan import parse_mesh

        for each in fields(self):
            check_text(getattr(self, each.name), each.name)
        check_fields(self, type(self).__name__)
        object.__setattr__(self, "out", self.out.expanduser())
        if self.out.is_file():
            raise ConfigError(f"out: '{self.out}' is a file, expected a folder.")
        if self.mesh is not None:
            parse_mesh(self.mesh)
        if self.memory is not None:
            parse_bytes(self.memory)
        if self.run and self.plan_only:
            raise ConfigError("run and plan_only: use only one of them.")
