"""Pipelines with a fixed order and settings in the call, under MASE's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.config import convert
from chop.distributed.process import start, world_size
from chop.errors import ConfigError, check_known
from chop.ir.graph import MaseGraph
from chop.passes.analysis.autosharding import AutoshardingConfig
from chop.pipelines.pipeline import Pipeline
from chop.pipelines.stages import Pass, Stage, check_is_list

SEARCH, SHARD = "autosharding_analysis_pass", "resharding_transform_pass"


class AutoPipeline:
    """Passes in a fixed order.

    Args:
        pass_groups: passes or their names, in order; nested groups run in sequence.
    """

    def __init__(self, pass_groups: Sequence[Pass | list[Pass] | tuple[Pass, ...]]) -> None:
        check_is_list(pass_groups, type(self).__name__)
        self.stages = tuple(Stage.of(step) for step in _flat(pass_groups))

    def __call__(
        self,
        mg: MaseGraph,
        pass_args: Mapping[str, Any] | None = None,
        skip_passes: Sequence[Pass] = (),
        *,
        out: str | Path | None = None,
        quiet: bool = True,
    ) -> tuple[MaseGraph, dict[str, Any]]:
        """Runs the passes.

        Args:
            mg: the graph; it is not changed.
            pass_args: settings by pass name.
            skip_passes: passes or their names to skip.
            out: see `Pipeline`.
            quiet: print no line per pass.

        Returns: the new graph, and results by pass name.

        Raises:
            ConfigError: if a name does not belong to this pipeline.
        """
        settings = dict(convert(pass_args, Mapping[str, Any] | None, "pass_args") or {})
        is_one = isinstance(skip_passes, str) or callable(skip_passes)
        steps = convert([skip_passes] if is_one else skip_passes, Sequence[Any], "skip_passes")
        skipped = {getattr(step, "__name__", str(step)) for step in steps}
        known = [stage.name for stage in self.stages]
        for name in (*settings, *sorted(skipped)):
            check_known(name, known, f"{type(self).__name__}: it has no pass")
        chosen = [
            stage if stage.config is not None else replace(stage, config=settings.get(stage.name))
            for stage in self._select(settings)
            if stage.name not in skipped
        ]
        return Pipeline(chosen)(mg, out=out, quiet=quiet)

    def _select(self, settings: Mapping[str, Any]) -> Iterable[Stage]:
        return self.stages


class CompressionPipeline(AutoPipeline):
    """Quantizes, then prunes; skips a pass without settings.

    Example:
        >>> from torch import nn
        >>> integer = {"name": "integer", "width": 8, "frac_width": 4}
        >>> args = {"quantize_transform_pass": {"by": "type", "linear": {"config": integer}}}
        >>> mg, info = CompressionPipeline()(MaseGraph(nn.Linear(4, 2)), pass_args=args)
        >>> info
        {'quantize_transform_pass': {'quantized': 1}}
    """

    def __init__(self) -> None:
        super().__init__(["quantize_transform_pass", "prune_transform_pass"])

    def _select(self, settings: Mapping[str, Any]) -> Iterable[Stage]:
        if not settings:
            names = " or ".join(stage.name for stage in self.stages)
            raise ConfigError(
                f"CompressionPipeline: pass_args is empty: pass settings for {names}."
            )
        return [stage for stage in self.stages if stage.name in settings]


class AutoPipelineForDistributedInference(AutoPipeline):
    """Searches for a sharding plan and shards the graph by it, for distributed inference.

    Every process of torchrun calls it, once per model; an existing process group is used. The first
    process searches and sends the plan to all; a given plan skips the search. `mg.model` then takes
    and returns whole tensors on every process. A forward is compared with one process first, unless
    `"check": False`.

    Example::

        args = {"autosharding_analysis_pass": {"mesh": 2, "memory_bytes": "4GB"}}
        mg, info = AutoPipelineForDistributedInference()(mg, pass_args=args)  # under torchrun
    """

    def __init__(self) -> None:
        super().__init__([SEARCH, SHARD])

    def _select(self, settings: Mapping[str, Any]) -> Iterable[Stage]:
        search, shard = self.stages
        given = settings.get(SHARD) or {}
        if "plan" in given:
            if SEARCH in settings:
                raise ConfigError(
                    f"AutoPipelineForDistributedInference: {SHARD} has a plan; expected none "
                    f"where {SEARCH} searches for one."
                )
            return [shard]
        searched: dict[str, Any] = {}

        def search_plan(mg: MaseGraph, config: Any) -> tuple[MaseGraph, dict[str, Any]]:
            start(AutoshardingConfig.from_settings(config).machine().mesh, given.get("backend"))
            mg, info = search.function(mg, {**config, "broadcast": True})
            searched["plan"] = info["plan"]
            return mg, info

        def shard_by_it(mg: MaseGraph, config: Any) -> tuple[MaseGraph, dict[str, Any]]:
            if not searched:
                raise ConfigError(
                    f"AutoPipelineForDistributedInference: {SHARD} has no plan, because {SEARCH} "
                    "has not run in this process; pass 'plan', or do not skip or resume the search."
                )
            return shard.function(mg, {**config, **searched})

        shared = {key: given[key] for key in ("mesh", "backend") if given.get(key) is not None}
        mesh = {"mesh": world_size(), **shared}
        chosen = settings.get(SEARCH) or {}
        if "mesh_shape" in chosen:
            del mesh["mesh"]
        return [Stage(SEARCH, search_plan, mesh | chosen), Stage(SHARD, shard_by_it, given)]


def _flat(groups: Sequence[Pass | list[Pass] | tuple[Pass, ...]]) -> Iterable[Pass]:
    for group in groups:
        if isinstance(group, list | tuple):
            yield from group
        else:
            yield group
