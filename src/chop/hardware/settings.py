"""Settings of the passes that write a project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chop.errors import ConfigError

TOP = "top"
PROJECT = Path("~/.mase/top")
"""Default project folder, as in MASE."""
BENCH = "testbench"
"""Module name of the testbench."""
RESERVED_WORDS = """
accept_on alias always always_comb always_ff always_latch and assert assign assume automatic
before begin bind bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle
checker class clocking cmos config const constraint context continue cover covergroup coverpoint
cross deassign default defparam design disable dist do edge else end endcase endchecker endclass
endclocking endconfig endfunction endgenerate endgroup endinterface endmodule endpackage
endprimitive endprogram endproperty endsequence endspecify endtable endtask enum event eventually
expect export extends extern final first_match for force foreach forever fork forkjoin function
generate genvar global highz0 highz1 if iff ifnone ignore_bins illegal_bins implements implies
import incdir include initial inout input inside instance int integer interconnect interface
intersect join join_any join_none large let liblist library local localparam logic longint
macromodule matches medium modport module nand negedge nettype new nexttime nmos nor
noshowcancelled not notif0 notif1 null or output package packed parameter pmos posedge primitive
priority program property protected pull0 pull1 pulldown pullup pulsestyle_ondetect
pulsestyle_onevent pure rand randc randcase randsequence rcmos real realtime ref reg reject_on
release repeat restrict return rnmos rpmos rtran rtranif0 rtranif1 s_always s_eventually
s_nexttime s_until s_until_with scalared sequence shortint shortreal showcancelled signed small
soft solve specify specparam static string strong strong0 strong1 struct super supply0 supply1
sync_accept_on sync_reject_on table tagged task this throughout time timeprecision timeunit tran
tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union unique unique0 unsigned until
until_with untyped use uwire var vectored virtual void wait wait_order wand weak weak0 weak1 while
wildcard wire with within wor xnor xor
"""
"""Keywords of SystemVerilog, annex B of IEEE 1800-2017."""


@dataclass(frozen=True)
class EmitSettings:
    """Settings of the passes that write a project.

    Attributes:
        project_dir: project folder; files of the same names are replaced.
        top_name: name of the top module.
        fold: maximum cycles of a component per sample, the products that one multiplier computes.
            Each component gets the fewest lanes within this limit. 0 chooses a fold with about 256
            multipliers.
    """

    project_dir: Path = PROJECT
    top_name: str = TOP
    fold: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "project_dir", Path(self.project_dir).expanduser())
        name = self.top_name
        if not (name.isascii() and name.isidentifier()) or name.startswith("chop_"):
            raise ConfigError(
                f"top_name: expected letters, digits and _, without the prefix chop_ of library "
                f"modules; got '{name}'."
            )
        if name in RESERVED_WORDS.split() or name == BENCH:
            reason = "is the testbench's" if name == BENCH else "is a SystemVerilog keyword"
            raise ConfigError(
                f"top_name: '{name}' {reason}; choose another name, such as '{name}_top'."
            )
