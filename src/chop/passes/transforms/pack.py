"""Packing of quantized weights as codes, with the size that their formats imply."""

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
        exclude: operators, paths, names or patterns to exclude.
        exact: makes packed layers bit-identical to unpacked ones; otherwise linear layers use the
            fastest product that is precise enough for their formats, see `pack`.
        unpack: unpacks layers to float parameters instead.
        silent: suppresses the table.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    exact: bool = False
    unpack: bool = False
    silent: bool = False


@graph_pass(config=PackConfig, takes_packed=True)
def pack_transform_pass(mg: MaseGraph, config: PackConfig) -> dict[str, Any]:
    """Replaces quantized parameters by bit-packed codes and scales without changing results.

    Learned scales of all operators become part of the formats. A packed graph can be run, drawn,
    exported and loaded. To train it, unpack it: `{"unpack": True}` restores the parameters with
    their stored values.

    Warns (`UnreachedWarning`) if more than a tenth of the weights are not in packable layers,
    unless `include` is set.

    Returns:
        packed: number of packed layers.
        unpacked: number of unpacked layers.
        rows: one dict per module with parameters, see `PackedRow`.
        bits_per_weight: average over packed weights, from their buffers; None if there are none.
        packed_share: packed share of all parameters, 0 to 1; tied ones count once.
        float_bytes: size of all parameters as floats.
        bytes: current size of all parameters.

    Raises:
        ConfigError: if a selector matches no layer, there is nothing to pack or unpack, or learned
            scales need a first batch.

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
        print_table("Storage of parameters", _grouped(rows))
    return {
        "rows": [dataclasses.asdict(row) for row in rows],
        "bits_per_weight": bits / count if count else None,
        "packed_share": sum(s.value.numel() for s in stored if s.packed)
        / max(sum(s.value.numel() for s in stored), 1),
        "float_bytes": sum(s.value.nbytes for s in stored),
        "bytes": sum(row.bytes for row in rows),
    }


def _grouped(rows: Iterable[PackedRow]) -> list[dict[str, Any]]:
    """Groups rows of modules with the same class and the same reason for staying float."""
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
