"""Artifact store for the best trials, with one folder of model files per trial."""

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
"""Function that saves the model just measured for a configuration into an existing folder."""


class Artifacts:
    """Store with one folder for each of the best configurations, which removes the rest.

    A folder gets its final name when it is complete, and before its trial is finished. A killed
    process therefore never leaves a best trial without its model.

    Args:
        folder: parent folder. Each subfolder is named by the key of its configuration.
        keep: number of configurations to store.
        save: writes one folder.
    """

    def __init__(self, folder: Path, keep: int, save: Save) -> None:
        if keep < 1:
            raise ConfigError(f"keep: expected at least 1, got {keep}.")
        self.folder, self.keep, self.save = folder, keep, save
        self._leaders: list[TrialRecord] = []

    def offer(
        self, mine: TrialRecord, goals: tuple[Goal | Constraint, ...], so_far: Callable[[], Result]
    ) -> None:
        """Saves the model just measured if it ranks among the best trials so far.

        The full ranking is computed only if the last leaders do not beat the trial, so that the
        cost of a trial does not grow with the size of the search.

        Args:
            mine: the trial that was measured.
            goals: objectives and constraints of the search.
            so_far: returns all trials, including those of other workers.
        """
        # A later trial may dominate several leaders of a Pareto front, so this one can move up.
        is_settled = self.keep == 1 or len(select_objectives(goals)) == 1
        is_known = is_settled and len(self._leaders) == self.keep
        if is_known and mine not in Result(goals, (*self._leaders, mine)).top(self.keep):
            return
        others = [trial for trial in so_far().trials if trial.number != mine.number]
        best = Result(goals, (*others, mine)).top(self.keep)
        # The worker may not finish the trial, because another may have taken it over.
        self._leaders = [trial for trial in best if trial is not mine]
        if mine not in best:
            return
        self._remove(f".{mine.key}.*.part")
        with atomic_folder(self.folder / mine.key) as unfinished:
            self.save(mine.config, unfinished)

    def clean(self, so_far: Callable[[], Result]) -> None:
        """Removes the folders of finished trials that do not rank among the best.

        Folders of running trials stay, because another worker may have just written them.

        Args:
            so_far: returns all trials. Called only if there are more folders than `keep`.
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
        """Removes incomplete folders of killed workers on this machine."""
        recover_folders(self.folder)
        remove_orphans(self.folder.glob(".*.part"))

    def incomplete(self) -> list[Path]:
        """Folders that are being written, or that a killed worker left incomplete."""
        return list(self.folder.glob(".*.part"))

    def tidy(self, result: Result, running: Container[str | None], incomplete: list[Path]) -> None:
        """Removes folders of trials that do not rank among the best, and incomplete folders.

        Args:
            result: trials so far.
            running: keys of configurations that other workers are measuring.
            incomplete: incomplete folders, listed before `result` and `running` were read, so that
                trials started since then are not affected.
        """
        self.clean(lambda: result)
        for path in incomplete:
            if path.name.split(".")[1] not in running:
                shutil.rmtree(path, ignore_errors=True)

    def _remove(self, pattern: str) -> None:
        for path in self.folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
