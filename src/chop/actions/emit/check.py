"""Repeated checks of an emitted circuit, for `chop emit --check-only`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from chop import runs
from chop.actions.emit.settings import EmitConfig
from chop.hardware.check.emitted import check_emitted
from chop.report.report import say


def check_again(config: EmitConfig) -> dict[str, Any]:
    """Repeats the checks of a folder, and prints the outcome and settings that were ignored.

    Args:
        config: settings; the folder is `start_from`, else `out`.
    Returns: the simulations, as `verification`.
    """
    folder, default = config.start_from or config.out, EmitConfig()
    simulations = [asdict(row) for row in check_emitted(folder)]
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
            f"Ignored: {', '.join(unread)}. check_only repeats the checks of the circuit with the "
            "values it was emitted with."
        )
    equal = sum(row["equal"] for row in simulations)
    say(
        f"'{folder}' is verified again: all {equal:,} outputs of {len(simulations)} simulations "
        "are equal, and files, cycles and intervals match the manifest."
    )
    return {"verification": simulations}
