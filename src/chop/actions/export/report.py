"""Results of an export: one row per target, and the tables of the verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chop.actions.export.proof import RowProof, WeightProof
from chop.actions.export.times import CHOP, FLOAT, Timed, Times
from chop.bench.record import format_bytes
from chop.bench.statistics import Interval
from chop.errors import ConfigError, enumerate_names
from chop.export.nearest import Change, describe
from chop.export.refusals import refusal_text
from chop.export.targets import target
from chop.report.report import Block, Cell, Note, Table
from chop.statistics.intervals import LEVEL_TEXT
from chop.train.intervals import Score
from chop.workloads.workload import Workload

NONE = "none"
NOT_GIVEN = "not given"


@dataclass(frozen=True)
class RowResult:
    """Results of a model on the test rows.

    Attributes:
        model: a target, whose reference is the exported graph; `CHOP`; or, with `CHOP` as the
            reference, `FLOAT` or a target's graph in chop after modules were rounded again.
        score: the task's metric.
        agreed: number of answers equal to the reference's; None if answers are not classes.
        answers: number of answers: rows or tokens.
        difference: largest difference between answers and the reference's.
        largest: largest absolute value of the reference's answers.
    """

    model: str
    score: Score
    agreed: int | None
    answers: int
    difference: float
    largest: float

    @classmethod
    def of(cls, model: str, proof: RowProof, workload: Workload, rows: int) -> RowResult:
        """Returns the result of a model from its comparison."""
        score = proof.score(workload, rows)
        return cls(model, score, proof.agreed, proof.answers, proof.difference, proof.largest)

    def formatted(self, workload: Workload) -> dict[str, Any]:
        """Returns the row for a table."""
        metric = workload.task.metric
        is_reference = self.model == CHOP
        same = None if self.agreed is None else f"{self.agreed:,} of {self.answers:,}"
        return {
            "model": self.model,
            metric.name: Cell(self.score.value, self.score.format_cell(metric)),
            "same answers": None if is_reference else same,
            "largest difference": None if is_reference else Cell.of(self.difference, ".2g"),
        }


@dataclass(frozen=True)
class Exported:
    """Files of a target, and their verification by its library or by chop.

    Attributes:
        target: name of the target.
        path: path of the file or folder.
        size_bytes: size of the files.
        difference: largest difference of outputs from the graph's on its example inputs.
        weights: comparison of packed weights; None if the library returns none.
        rows: results on the test rows; None if no rows are known.
        times: by batch size; empty if no times were measured, or the library computes in floats
            without an engine at hand.
        changes: modules that were rounded again.
        notes: sentences on surprises for users of the files.
        cause: reason why outputs differ although the file is right; "" for that of its target.
    """

    target: str
    path: str
    size_bytes: int
    difference: float
    weights: WeightProof | None
    rows: RowResult | None
    times: tuple[Timed, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    cause: str = ""

    @property
    def times_as_fast(self) -> Interval | None:
        """Speed-up over the graph in chop at the first batch size; None if not measured."""
        return self.times[0].times_as_chop if self.times else None

    def formatted(self) -> dict[str, Any]:
        """Returns the row for a table."""
        kind = target(self.target)
        return {
            "target": self.target,
            "file": Path(self.path).name,
            "size": Cell(self.size_bytes, str(format_bytes(self.size_bytes))),
            "read back by": kind.library,
            "made for": kind.engines,
            "weights equal": NOT_GIVEN if self.weights is None else str(self.weights),
            "largest difference": Cell.of(self.difference, ".2g"),
        }

    def numbers(self) -> dict[str, Any]:
        """Returns plain values for `manifest.json`."""
        changes = [
            {"path": x.path, "reason": x.reason, "old": describe(x.old), "new": describe(x.new)}
            for x in self.changes
        ]
        plain = ("target", "path", "size_bytes", "difference", "notes")
        nested = {
            "weights": self.weights and asdict(self.weights),
            "rows": self.rows and asdict(self.rows),
            "times": [asdict(each) for each in self.times],
        }
        return {name: getattr(self, name) for name in plain} | nested | {"changes": changes}

    @property
    def sentences(self) -> Iterator[str]:
        """Yields explanations of the numbers in the tables."""
        kind, rows = target(self.target), self.rows
        cause = self.cause or kind.cause
        if rows is not None and rows.difference:
            share = rows.difference / rows.largest if rows.largest else 0.0
            yield (
                f"outputs on the test rows differ by up to {rows.difference:.2g}, {share:.2g} of "
                f"the largest: {cause}"
            )
        elif rows is None and self.difference:
            yield f"outputs differ by up to {self.difference:.2g}: {cause}"
        if self.weights is not None and self.weights.difference:
            cause = kind.weight_cause or kind.cause
            yield f"a weight differs by up to {self.weights.difference:.2g}: {cause}"
        yield from self.notes


def refusal(changes: Mapping[str, Sequence[Change]], nearest: bool) -> str:
    """Lists the modules that targets do not support, with the nearest supported formats.

    Args:
        changes: by target; some have no `new`, or `nearest` is False.
        nearest: True if modules were to be rounded again.
    """
    lines = []
    for name, refused in changes.items():
        if not refused:
            continue
        listed = [x for x in refused if x.new is None] if nearest else refused
        reasons = [(x.path, f"{x.reason}; nearest: {_nearest(x)}") for x in listed]
        lines.append(refusal_text(name, reasons))
    way_out = "No files were written."
    if not nearest:
        way_out += " --nearest rounds these modules to the nearest formats and reports the loss."
    return "\n".join([*lines, way_out])


def _nearest(change: Change) -> str:
    old, new = change.old, change.new
    if new is None:
        return NONE
    loses_inputs = old is not None and not old.data_in.is_identity and new.data_in.is_identity
    return describe(new) + (", inputs float" if loses_inputs and not new.is_float else "")


def check_changes(changes: Mapping[str, Sequence[Change]], nearest: bool) -> None:
    """Raises ConfigError if targets cannot store modules that must not, or cannot, be changed."""
    unsolved = {
        name: refused
        for name, refused in changes.items()
        if any(x.new is None for x in refused) or (refused and not nearest)
    }
    if unsolved:
        raise ConfigError(refusal(unsolved, nearest))


def change_tables(exported: Sequence[Exported]) -> list[Block]:
    """Returns tables of re-rounded modules: one row each in the document, grouped in a terminal."""
    rows = [
        {
            "target": row.target,
            "module": change.path,
            "from": describe(change.old),
            "to": describe(change.new),
            "rounded from": "floats" if change.is_from_float else "rounded values",
        }
        for row in exported
        for change in row.changes
    ]
    if not rows:
        return []
    title = "Modules rounded to the nearest format that the target supports"
    return [
        Table(title, _together(rows), is_written=False),
        Note(f"{title}:", is_printed=False),
        Table(title, rows, is_printed=False),
    ]


def _together(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = tuple(x for name, x in row.items() if name != "module")
        groups.setdefault(key, []).append(row["module"])
    names = [name for name in rows[0] if name != "module"]
    return [
        {
            "modules": enumerate_names(paths, 1),
            **dict(zip(names, key, strict=True)),
        }
        for key, paths in groups.items()
    ]


def time_blocks(times: Times, exact_is: str) -> list[Block]:
    """Returns the table of times by engine and batch size, with its notes."""
    if not times.rows:
        return []
    how = next(iter(times.by_batch.values())).how
    blocks: list[Block] = [
        Table(f"Times ({how})", [row.formatted() for row in times.rows]),
        Note(
            f"{FLOAT}: {exact_is}, in torch; {CHOP}: the quantized graph in torch. Speed-ups have "
            f"{LEVEL_TEXT} confidence intervals."
        ),
    ]
    return [*blocks, *(Note(f"Not measured: {x}: {why}") for x, why in times.missing.items())]
