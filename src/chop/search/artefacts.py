"""The best models of a search, on disk and nowhere else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from chop.errors import ConfigError
from chop.search.result import Result, Tried
from chop.search.space import Config

Save = Callable[[Config, Path], None]
"""Writes what was just measured for this configuration into a folder that exists."""


class Artefacts:
    """Keeps one folder for each of the best configurations; beaten ones are removed.

    A folder gets its name when it is complete, and before its trial is: a kill leaves no best
    trial without its model.

    Args:
        folder: holds one folder per configuration, named by its key.
        keep: how many.
        save: writes one.
    """

    def __init__(self, folder: Path, keep: int, save: Save) -> None:
        if keep < 1:
            raise ConfigError(f"keep: expected at least 1, got {keep}.")
        self.folder, self.keep, self.save = folder, keep, save

    def path(self, key: str) -> Path:
        """The folder of a configuration."""
        return self.folder / key

    def offer(self, config: Config, key: str, values: Mapping[str, float], so_far: Result) -> None:
        """Saves what was just measured, if it is among the best."""
        mine = Tried(len(so_far.trials), "measured", config, key, values)
        ranked = Result(so_far.goals, (*so_far.trials, mine)).ranked
        if mine not in ranked[: self.keep]:
            return
        unfinished = self.folder / f".{key}.{os.getpid()}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            self.save(config, unfinished)
            shutil.rmtree(self.path(key), ignore_errors=True)
            unfinished.replace(self.path(key))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def clean(self, result: Result) -> None:
        """Removes the folders of finished trials that are not among the best.

        Folders of trials that run stay: another worker has just written them.
        """
        beaten = {trial.key for trial in result.ranked[self.keep :]}
        for key in beaten:
            shutil.rmtree(self.path(key), ignore_errors=True)
