"""`chop doctor`."""

from __future__ import annotations

from typing import Any

from chop.cli.adapter import Command


def doctor() -> list[Any]:
    """List installed and missing packages and tools, and how to install them."""
    from chop.actions.doctor import examine
    from chop.tables import print_table

    findings = examine()
    print_table("chop doctor", [vars(finding) for finding in findings])
    return findings


DOCTOR = Command(
    doctor, is_slow=False, exit_code=lambda found: int(any(finding.is_fatal for finding in found))
)
