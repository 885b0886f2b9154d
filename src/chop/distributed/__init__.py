"""Tensor parallelism: models sharded by a plan of layouts, on torch's DTensor."""

from __future__ import annotations

from chop.distributed.plan import ShardingPlan, format_mesh, parse_mesh

__all__ = ["ShardingPlan", "format_mesh", "parse_mesh"]
