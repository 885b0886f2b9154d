"""Checks of an emitted circuit, repeated: what `chop emit --check-only` prints."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from chop import runs
from chop.actions.emit.settings import EmitConfig
from chop.hardware.check.emitted import check_emitted
from chop.report.report import say


def check_again(config: EmitConfig) -> dict[str, Any]:
    """Repeats the checks of a folder; prints what was found, and settings that were not read.

    Args:
        config: its `start_from`, else its `out`, is the folder.
    Returns: the simulations, as `verification`.
    """
    folder, default = config.start_from or config.out, EmitConfig()
    found = [asdict(row) for row in check_emitted(folder)]
    emitted = runs.read_manifest(folder).settings
    given = runs.as_json(replace(config, out=default.out, start_from=None, check_only=False))
    usual = runs.as_json(default)
    unread = [
        name
        for name, value in given.items()
        if value not in (usual[name], emitted.get(name, usual[name]))
    ]
    if unread:
        say(
            f"Not read: {', '.join(unread)}. The circuit was emitted with other values, and "
            "check_only repeats its checks."
        )
    equal = sum(row["equal"] for row in found)
    say(
        f"'{folder}' is verified again: all {equal:,} outputs of {len(found)} simulations are "
        "equal, and files, cycles and intervals are those of the manifest."
    )
    return {"verification": found}
