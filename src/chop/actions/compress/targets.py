"""Export targets that can store a compressed model, by each target's own check."""

from __future__ import annotations

from collections.abc import Mapping

from chop.actions.bench.ways import LARGEST_PEER
from chop.export.targets import TARGETS
from chop.ir.graph import MaseGraph
from chop.report.report import Note
from chop.studies.model import weight_bytes


def export_targets(packed: MaseGraph) -> dict[str, str]:
    """Returns why each export target cannot store a model, by name; "" for those that can.

    The checks decode each weight, so that there is no result for very large models.
    """
    if weight_bytes(packed.model) > LARGEST_PEER:
        return {}
    return {target.name: target.why_not(packed) for target in TARGETS.values()}


def about_targets(targets: Mapping[str, str]) -> list[Note]:
    """Returns notes on the targets that can store the saved model, and on the others."""
    fits = {name: TARGETS[name] for name, why in targets.items() if not why}
    exact = [f"{name} ({x.engines})" for name, x in fits.items() if not x.holds_any]
    others = [f"{name} ({x.engines})" for name, x in fits.items() if x.holds_any]
    kinds = {"": exact, ", some formats as floats": others}
    texts = [f"{', '.join(names)}{how}" for how, names in kinds.items() if names]
    refusing: dict[str, list[str]] = {}
    for name, why in targets.items():
        if why:
            refusing.setdefault(why.removeprefix(f"{name}: ").removesuffix("."), []).append(name)
    reasons = [f"{', '.join(names)}: {why}" for why, names in refusing.items()]
    fitting = f"Targets of chop export that can store this model: {'; '.join(texts)}."
    refused = f"Targets that cannot store it: {'; '.join(reasons)}."
    notes = [Note(fitting)] if texts else []
    return notes + ([Note(refused, is_detail=True)] if reasons else [])
