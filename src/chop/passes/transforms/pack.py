"""Stores quantized weights as codes: the model then really is as small as its formats say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chop.base.tables import print_table
from chop.ir.graph import MaseGraph
from chop.ir.parameters import stored_parameters, total_bits
from chop.passes.base import graph_pass
from chop.quantization.packing import (
    WHERE,
    PackedRow,
    Selection,
    explained,
    pack_layers,
    packed_rows,
    unpack_layers,
)
from chop.quantization.unreached import warn_about_unreached


@dataclass(frozen=True)
class PackConfig:
    """Settings of `pack_transform_pass`.

    Attributes:
        include: operators, module paths, node names or patterns of these; default, every
            quantized layer.
        exclude: the same, to be left out.
        exact: packed layers give the same bits as unpacked ones; otherwise linear layers are
            multiplied in the fastest way that is precise enough for their formats, see `pack`.
        unpack: gives packed layers their parameters back instead.
        silent: prints no table.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    exact: bool = False
    unpack: bool = False
    silent: bool = False


@graph_pass(config=PackConfig, takes_packed=True)
def pack_transform_pass(mg: MaseGraph, config: PackConfig) -> dict[str, Any]:
    """Replaces quantized parameters by bit-packed codes and scales; what is computed stays.

    Learned scales of all operators settle first: they become part of the formats. A packed graph
    runs, draws, and is exported and read back as any other. It is not trained:
    `{"unpack": True}` gives the layers their parameters back, with the values that were stored.

    Warns (`UnreachedWarning`) where more than a tenth of the weights are in no layer that can be
    packed, unless `include` names some.

    Returns:
        packed: number of layers that were packed.
        unpacked: number of layers that were unpacked.
        rows: one dict per module with parameters, see `PackedRow`.
        bits_per_weight: average of the weights that are packed, from their buffers; None where
            there are none.
        packed_share: how many of all parameters are packed, 0 to 1; tied ones count once.
        float_bytes: what all parameters took as floats.
        bytes: what they take now.

    Raises:
        ConfigError: a selector means no layer, there is none to pack or unpack, or learned scales
            still wait for a first batch.

    Example::

        mg, info = pack_transform_pass(mg, {"exclude": ["classifier"]})
    """
    selection = Selection(config.include, config.exclude)
    packed, unpacked, reasons = 0, 0, dict[str, str]()
    if config.unpack:
        unpacked, reasons = unpack_layers(mg, selection)
    else:
        packed, reasons = pack_layers(mg, selection, config.exact)
        if config.include is None:
            warn_about_unreached(mg, WHERE, packs=True)
    return {"packed": packed, "unpacked": unpacked, **_measure(mg, reasons, config)}


def _measure(mg: MaseGraph, reasons: dict[str, str], config: PackConfig) -> dict[str, Any]:
    stored = stored_parameters(mg)
    rows = packed_rows(mg, stored, reasons)
    weights = [s for s in stored if s.packed and s.operand == "weight"]
    bits, count = total_bits(weights)
    if not config.silent:
        print_table("What parameters take", _grouped(rows))
    return {
        "rows": [dataclasses.asdict(row) for row in rows],
        "bits_per_weight": bits / count if count else None,
        "packed_share": sum(s.value.numel() for s in stored if s.packed)
        / max(sum(s.value.numel() for s in stored), 1),
        "float_bytes": sum(s.value.nbytes for s in stored),
        "bytes": sum(row.bytes for row in rows),
    }


def _grouped(rows: Iterable[PackedRow]) -> list[dict[str, Any]]:
    """A line for all modules of a kind that stayed float for the same reason, or did not."""
    groups: dict[tuple[str, str], list[PackedRow]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.why_float), []).append(row)
    lines = []
    for (kind, reason), members in groups.items():
        elements, size = sum(r.elements for r in members), sum(r.bytes for r in members)
        bits = f"{8 * size / max(elements, 1):.3f}"
        counts = {"modules": len(members), "elements": elements, "bytes": size, "bits": bits}
        why = explained(reason, [name for r in members for name in r.parameters])
        lines.append({"kind": kind, **counts, "why float": why})
    return lines
