"""What is no dense floating tensor is refused, by every format and way in."""

import builtins

import pytest
import torch

import chop.formats
from chop.errors import ConfigError
from chop.formats import MXFP, formats
from chop.formats.format_strings import format_string
from tests.formats.examples import EXAMPLES
from tests.subcases import subcases

ODD = {
    "a tensor of torch.complex64": lambda: torch.randn(4, dtype=torch.complex64),
    "a tensor of torch.int32": lambda: torch.ones(4).int(),
    "a tensor of torch.bool": lambda: torch.ones(4).bool(),
    "a tensor of layout torch.sparse_coo": lambda: torch.eye(4).to_sparse(),
    "a tensor of layout torch.sparse_csr": lambda: torch.eye(4).to_sparse_csr(),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a list": lambda: [1.0],
    "a ndarray": lambda: torch.ones(4).numpy(),
}


@subcases("kind", formats(), ids=lambda kind: kind.name)
@subcases("found", ODD)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta)")
def test_each_way_in_names_what_came(kind, found):
    fmt, x = EXAMPLES[kind.name][0], ODD[found]()
    for enter in (fmt, fmt.round, fmt.encode, fmt.saturates, fmt.fitted):
        with pytest.raises(
            ConfigError, match=f"{kind.name}: expected a dense floating tensor, got {found}; pass "
        ):
            enter(x)


def test_a_star_import_leaves_the_builtins_alone():
    names = {}
    exec("from chop.formats import *", names)
    assert names["Integer"] is chop.formats.Integer and {"NumberFormat", "parse_format"} <= set(
        names
    )
    assert not set(vars(builtins)) & set(chop.formats.__all__)


def test_mxfp_takes_the_standards_element_of_its_width():
    assert [MXFP(width).exponent_width for width in (4, 6, 8, 16)] == [2, 2, 4, 4]
    assert MXFP(4) == MXFP(4, 2) and MXFP(6) == MXFP(6, 2) and MXFP() == MXFP(8, 4)
    assert MXFP(6).element.largest == 7.5 and MXFP(4).element.largest == 6
    x = torch.randn(64)
    assert torch.equal(MXFP(4)(x), MXFP(4, 2).round(x))
    assert format_string(MXFP(6, 2)) == "mxfp:width=6" and MXFP(4).label == "mxfp(width=4)"
    with pytest.raises(ConfigError, match="mxfp.exponent_width: got 4, expected 1 to 3"):
        MXFP(5)
