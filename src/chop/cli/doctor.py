"""`chop doctor`."""

from __future__ import annotations

import typer


def doctor_command() -> None:
    """Say what is installed, what is missing, and how to get it."""
    from chop.actions.doctor import examine
    from chop.tables import print_table

    findings = examine()
    print_table("chop doctor", [finding.as_row() for finding in findings])
    if any(finding.is_fatal for finding in findings):
        raise typer.Exit(1)
