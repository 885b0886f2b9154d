"""What MASE's page says of names that are not built."""

import re

from chop import passes
from chop.paths.not_built import NOT_BUILT
from tests.pages import ROOT


def test_what_is_called_not_built_is_not_and_the_rest_is():
    text = (ROOT / "docs/mase.md").read_text()
    table = text[text.index("## Not implemented") : text.index("## Differences")]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][2:]
    names = [re.findall(r"`(\w+?)`", cell) for row in rows for cell in row]
    missing, meanwhile = ({n for cell in names[side::2] for n in cell} for side in (0, 1))
    assert {name for name in missing if name.endswith("_pass")} <= NOT_BUILT.keys()
    assert {
        "train",
        "test",
        "transform",
        "mxint_hardware",
    } <= missing & NOT_BUILT.keys()
    assert meanwhile and not meanwhile & NOT_BUILT.keys()
    assert all(hasattr(passes, name) for name in meanwhile if name.endswith("_pass"))
