"""Pipeline: a list of passes that resumes after a kill."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import chop.passes
from chop import runs
from chop.config import load_toml
from chop.errors import ConfigError, check_known
from chop.ir.graph import MaseGraph
from chop.passes.base import check_graph
from chop.pipelines.stages import Pass, Stage, StageJournal, check_is_list, stages_as_json

METADATA_PASSES = ("init_metadata_analysis_pass", "add_common_metadata_analysis_pass")


class Pipeline:
    """Passes with their settings that run in sequence.

    Args:
        stages: passes or their names, optionally as `(pass, settings)`. Missing metadata are
            added first.

    Raises:
        ConfigError: if a pass name is unknown.

    Example:
        >>> from torch import nn
        >>> pipeline = Pipeline(["calculate_avg_bits_mg_analysis_pass"])
        >>> mg, info = pipeline(MaseGraph(nn.Linear(4, 2)), quiet=True)
        >>> info["calculate_avg_bits_mg_analysis_pass"]["w_avg_bit"]
        32.0
    """

    def __init__(self, stages: Iterable[Pass | tuple[Pass, Any] | Stage]) -> None:
        check_is_list(stages, type(self).__name__)
        self.stages = tuple(Stage.of(step) for step in stages)

    @classmethod
    def from_toml(cls, path: str | Path) -> Pipeline:
        """Reads a list of `[[stage]]` tables with `pass = "name"` and optionally a table `config`.

        Raises:
            ConfigError: if the file cannot be read, has no stage, or names an unknown key or pass.
        """
        document = load_toml(path)
        _check_keys(document, ("stage",), str(path))
        tables = document.get("stage")
        if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
            raise ConfigError(f"{path}: expected tables [[stage]], each with a 'pass'.")
        stages = []
        for i, table in enumerate(tables, start=1):
            _check_keys(table, ("pass", "config"), f"{path}: stage {i}")
            if "pass" not in table:
                raise ConfigError(f"{path}: stage {i} names no pass.")
            stages.append((table["pass"], table.get("config")))
        return cls(stages)

    def __call__(
        self,
        mg: MaseGraph,
        *,
        out: str | Path | None = None,
        allow: Iterable[Any] = (),
        quiet: bool = False,
    ) -> tuple[MaseGraph, dict[str, Any]]:
        """Runs the passes.

        Args:
            mg: the graph; it is not changed.
            out: folder for the graph and the results after each stage, and a manifest. A later run
                with the same graph and list continues after the last finished stage. A stage and
                all later ones run again if its settings changed or cannot be compared (a generator,
                for instance). Skipped stages return the contents of their files: the graph with its
                metadata, and the results as far as JSON can represent them.
            allow: your own module classes, see `MaseGraph.from_checkpoint`.
            quiet: print no line per stage.

        Returns: the new graph, and results by pass name; repeated passes have a number after the
        name.

        Raises:
            GraphError: if `mg` is not a MaseGraph.
            WriteError: if `out` cannot be written to.
        """
        check_graph(type(self).__name__, mg)
        if out is None:
            return self._run(mg, None, quiet)[:2]
        with runs.start("pipeline", stages_as_json(self.stages), out) as job:
            journal = StageJournal(Path(out), mg, self.stages, allow)
            mg, results, job.rows = self._run(mg, journal, quiet)
        return mg, results

    def _run(
        self, mg: MaseGraph, journal: StageJournal | None, quiet: bool
    ) -> tuple[MaseGraph, dict[str, Any], list[dict[str, Any]]]:
        """Returns the new graph, the results, and a row for each stage that ran."""
        console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
        names, rows = list(_numbered(self.stages)), []
        resumed = journal.resume() if journal else None
        if resumed is None:
            mg = mg.copy()  # users' own passes may work in place
            _fill_metadata(mg)
        else:
            mg = resumed[0]
            done = f"{len(resumed[1])} of {len(names)} stages are done"
            console.print(f"{journal.folder if journal else ''}: {done}: continuing", markup=False)
        results = dict(zip(names, resumed[1] if resumed else (), strict=False))
        for i in range(len(results), len(names)):
            start = time.perf_counter()
            mg, results[names[i]] = self.stages[i].run(mg)
            if journal:
                journal.record(i, mg, results[names[i]])
            seconds = time.perf_counter() - start
            rows.append({"stage": names[i], "seconds": seconds})
            console.print(f"[{i + 1}/{len(names)}] {names[i]}: {seconds:.1f} s", markup=False)
        return mg, results, rows


def _fill_metadata(mg: MaseGraph) -> None:
    done = {step.name for step in mg.provenance}
    for name in METADATA_PASSES:
        if name not in done:
            getattr(chop.passes, name)(mg)


def _numbered(stages: Sequence[Stage]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for stage in stages:
        seen[stage.name] += 1
        count = seen[stage.name]
        yield stage.name if count == 1 else f"{stage.name}_{count}"


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        check_known(key, known, f"{where}: unknown key")
