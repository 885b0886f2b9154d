"""Settings of the passes that write a project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chop.errors import ConfigError

TOP = "top"
PROJECT = Path("~/.mase/top")
"""Folder of a project where none is chosen, as in MASE."""


@dataclass(frozen=True)
class EmitSettings:
    """Settings of the passes that write a project.

    Attributes:
        project_dir: folder of the project; files of the same names are replaced.
        top_name: name of the top module.
        fold: most cycles that a component may take for a sample: products that one multiplier
            computes. Lanes are the fewest that reach it. 0 chooses one that takes about 256
            multipliers.
    """

    project_dir: Path = PROJECT
    top_name: str = TOP
    fold: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "project_dir", Path(self.project_dir).expanduser())
        name = self.top_name
        if not (name.isascii() and name.isidentifier()) or name.startswith("chop_"):
            raise ConfigError(
                f"top_name: expected letters, digits and _, and not chop_ at the beginning, which "
                f"modules of the library have; got '{name}'."
            )
