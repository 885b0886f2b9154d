"""What all figures share: how they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chop.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 160
HASH_SALT = "chop"
UNDATED = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Kind of file -> what matplotlib would write into it of the moment and of itself."""


def save_figure(figure: Figure, path: Path) -> Path:
    """Writes a figure in one step; the suffix of the path picks the kind.

    The same figure has the same bytes each time: identifiers follow from what is drawn, and no
    file says when it was written.
    """
    from matplotlib import rc_context

    kind = path.suffix.lstrip(".")
    with replacing(path) as temporary, rc_context({"svg.hashsalt": HASH_SALT}):
        figure.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=UNDATED.get(kind))
    return path
