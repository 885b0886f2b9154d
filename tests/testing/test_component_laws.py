"""Laws of circuit components: each finds a component that breaks it alone."""

from dataclasses import replace

import pytest

from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.plan import Component
from chop.hardware.design.stream import Stream
from chop.testing import check_component, draw_codes
from tests.hardware.bench import needs_tools
from tests.hardware.test_toy_operator import GRID, SOURCE, IntegerClip, plan_clip

READ = "assign x = data_in_0_i[i*IN_W +: IN_W];"
READ_WITH_STATE = """logic is_used_q = 1'b0, is_stale_q = 1'b0;
    always_ff @(posedge clk_i) begin
      if (data_out_0_valid_o) is_used_q <= 1'b1;
      if (!rst_ni && is_used_q) is_stale_q <= 1'b1;
    end
    assign x = data_in_0_i[i*IN_W +: IN_W] ^ {IN_W{is_stale_q}};"""


def planned(**changes):
    return lambda site: replace(plan_clip(site), **changes)


def planned_shape(site):
    plan = plan_clip(site)
    return replace(plan, out=Stream.in_order((3, 4), plan.out.edge, plan.out.lanes))


class IntegerLoud(IntegerClip):
    """Clip whose codes leave its bounds."""

    def forward(self, codes):
        return codes


BROKEN = {
    "has a row": (IntegerClip, "", "", None),
    "plan fits .*samples of": (IntegerClip, "", "", planned_shape),
    "plan fits .*cannot pass in 3 cycles": (IntegerClip, "", "", planned(cycles=3)),
    "plan fits .*lanes for 2 inputs": (IntegerClip, "", "", planned(lanes=(1, 1))),
    "proven bounds.*from -128 to 127": (IntegerLoud, "", "", plan_clip),
    "linters are silent.*WIDTH": (IntegerClip, "OUT_W'(x)", "{1'b0, x}", plan_clip),
    "rtl equals integer.*expected": (IntegerClip, "IN_W'(LIMIT))", "IN_W'(1))", plan_clip),
    "as often as planned.* 90 cycles": (IntegerClip, "", "", planned(cycles=90)),
    "result leaves when planned.*40 cycles": (IntegerClip, "", "", planned(latency=40)),
    "result leaves when .*planned after 0 ": (IntegerClip, "", "", planned(latency=0)),
    "reset starts afresh": (IntegerClip, READ, READ_WITH_STATE, plan_clip),
}


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks a clip after a change of its source and with another plan."""

    def run(operator, old, new, plan):
        assert old in SOURCE
        (tmp_path / "chop_clip.sv").write_text(SOURCE.replace(old, new))
        if plan is not None:
            row = Component(operator, "chop_clip", plan, tmp_path)
            monkeypatch.setitem(COMPONENTS, operator.__name__, row)
        driven = draw_codes(GRID.edge, 3, 10)
        return check_component(operator(GRID.edge, 37), driven, fold=30, profiles=("none",))

    return run


@needs_tools
def test_a_component_obeys_all_laws(check):
    assert check(IntegerClip, "", "", plan_clip).cycles == 30


@pytest.mark.sampled(2)
@needs_tools
@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_law_is_named(message, check):
    with pytest.raises(AssertionError, match=f"(?s)breaks the law '.*{message}"):
        check(*BROKEN[message])
