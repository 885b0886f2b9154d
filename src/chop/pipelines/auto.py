"""Fixed lists of passes whose settings come with the call, by MASE's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.errors import ConfigError, check_known
from chop.ir.graph import MaseGraph
from chop.pipelines.pipeline import Pass, Pipeline, Stage


class AutoPipeline:
    """Passes in a fixed order.

    Args:
        pass_groups: passes or their names, in order; groups of them are run one after the other.
    """

    def __init__(self, pass_groups: Sequence[Pass | list[Pass] | tuple[Pass, ...]]) -> None:
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
            pass_args: the settings of each pass, by its name.
            skip_passes: passes or their names to leave out.
            out: see `Pipeline`.
            quiet: prints no line per pass.

        Returns: the new graph, and what each pass found by its name.

        Raises:
            ConfigError: a name is not one of this pipeline.
        """
        settings = dict(pass_args or {})
        skipped = {getattr(step, "__name__", str(step)) for step in skip_passes}
        known = [stage.name for stage in self.stages]
        for name in (*settings, *sorted(skipped)):
            check_known(name, known, f"{type(self).__name__}: it has no pass")
        chosen = [
            Stage(stage.name, stage.function, settings.get(stage.name, stage.config))
            for stage in self._select(settings)
            if stage.name not in skipped
        ]
        return Pipeline(chosen)(mg, out=out, quiet=quiet)

    def _select(self, settings: Mapping[str, Any]) -> Iterable[Stage]:
        return self.stages


class CompressionPipeline(AutoPipeline):
    """Quantizes, then prunes: whichever of the two has settings.

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
                f"CompressionPipeline: pass_args is empty: give settings for {names}."
            )
        return [stage for stage in self.stages if stage.name in settings]


def _flat(groups: Sequence[Pass | list[Pass] | tuple[Pass, ...]]) -> Iterable[Pass]:
    for group in groups:
        if isinstance(group, list | tuple):
            yield from group
        else:
            yield group
