"""Shell command line that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from chop.base.tables import printable

PROGRAM = "chop"
PROGRAMS = (PROGRAM, "ch")
"""Names of the installed command."""
MODULES = ("chop", "chop/cli")
"""Packages that `python -m` runs as the command."""


def command_line(command: Sequence[str]) -> str:
    """Returns the command line that repeats a run, or "" if there is none, as in a notebook.

    Control characters are replaced, because a shell would end the command at a line break.

    Args:
        command: `sys.argv` of the run.

    >>> command_line(["/venv/bin/chop", "demo", "--out", "my runs"])
    "chop demo --out 'my runs'"
    >>> command_line(["train.py", "--seed", "1"]), command_line(["-c"])
    ('python train.py --seed 1', '')
    """
    if not command or command[0] in ("", "-", "-c", "-m"):
        return ""
    path = PurePath(command[0])
    is_program = path.stem in PROGRAMS and path.suffix in ("", ".exe")
    is_module = path.name == "__main__.py" and path.parent.as_posix().endswith(MODULES)
    if path.name == "ipykernel_launcher.py":
        return ""
    if is_program or is_module:
        program = [PROGRAM]
    else:
        program = ["python", command[0]] if path.suffix == ".py" else [command[0]]
    return " ".join(shlex.quote(printable(part)) for part in (*program, *command[1:]))
