"""Artifacts of the best trials: one folder of model files each, garbage-collected."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Container
from pathlib import Path

from chop.base.files import atomic_folder, recover_folders
from chop.base.files.temporary import remove_orphans
from chop.errors import ConfigError
from chop.search.objective import Constraint, Goal, select_objectives
from chop.search.result import Result, TrialRecord
from chop.search.space import Config

Save = Callable[[Config, Path], None]
"""Writes what was just measured for this configuration into a folder that exists."""


class Artifacts:
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
        self._leaders: list[TrialRecord] = []

    def offer(
        self, mine: TrialRecord, goals: tuple[Goal | Constraint, ...], so_far: Callable[[], Result]
    ) -> None:
        """Saves what was just measured, if it is among the best of what was measured before.

        All trials are ranked only where the last leaders do not beat it, so that a trial takes as
        long in a large search as in a small one.

        Args:
            mine: the trial that was measured.
            goals: objectives and constraints of the search.
            so_far: gives all trials, those of other workers included.
        """
        # A trial that comes later may push several leaders of a Pareto front behind this one.
        is_settled = self.keep == 1 or len(select_objectives(goals)) == 1
        is_known = is_settled and len(self._leaders) == self.keep
        if is_known and mine not in Result(goals, (*self._leaders, mine)).top(self.keep):
            return
        others = [trial for trial in so_far().trials if trial.number != mine.number]
        best = Result(goals, (*others, mine)).top(self.keep)
        # Whether its worker finishes it is not known yet: another may have taken it over.
        self._leaders = [trial for trial in best if trial is not mine]
        if mine not in best:
            return
        self._remove(f".{mine.key}.*.part")
        with atomic_folder(self.folder / mine.key) as unfinished:
            self.save(mine.config, unfinished)

    def clean(self, so_far: Callable[[], Result]) -> None:
        """Removes the folders of finished trials that are not among the best.

        Folders of trials that run stay: another worker has just written them.

        Args:
            so_far: gives all trials; called where there are more folders than `keep`.
        """
        going = ("running", "waiting")
        present = {path.name for path in self.folder.glob("*")}
        if len(present) > self.keep:
            result = so_far()
            best = {trial.key for trial in result.top(self.keep)}
            for trial in result.trials:
                if trial.key in present - best and trial.outcome not in going:
                    self._remove(trial.key)

    def remove_orphans(self) -> None:
        """Removes what killed workers of this machine have half written."""
        recover_folders(self.folder)
        remove_orphans(self.folder.glob(".*.part"))

    def incomplete(self) -> list[Path]:
        """The folders that are being written, or were when their worker was killed."""
        return list(self.folder.glob(".*.part"))

    def tidy(self, result: Result, running: Container[str | None], incomplete: list[Path]) -> None:
        """`clean`, and removes what killed workers have half written.

        Args:
            result: so far.
            running: keys of the configurations that other workers measure now.
            incomplete: seen before both were read: a trial that was begun since is not among them.
        """
        self.clean(lambda: result)
        for path in incomplete:
            if path.name.split(".")[1] not in running:
                shutil.rmtree(path, ignore_errors=True)

    def _remove(self, pattern: str) -> None:
        for path in self.folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
