"""`chop doctor`."""

from __future__ import annotations

from typing import Any

from chop.cli.command import Command


def doctor(*, clean: bool = False, tune: bool = False) -> list[Any]:
    """List installed and missing packages and tools, and how to install them.

    Args:
        clean: first delete compiled code and trained weights from the cache folder. chop creates
            them again when needed; data sets stay.
        tune: measure again from how many rows PyTorch multiplies by packed weights faster than the
            CPU kernels, in 8-bit integers, bfloat16 and float32. It takes about two seconds.
    """
    from chop.actions import doctor
    from chop.base.tables import print_table

    removed = [doctor.clean()] if clean else []
    if tune:
        doctor.tune()
    findings = [*removed, *doctor.examine()]
    print_table("chop doctor", [vars(finding) for finding in findings])
    return findings


DOCTOR = Command(
    doctor, is_slow=False, exit_code=lambda findings: int(any(each.is_fatal for each in findings))
)
