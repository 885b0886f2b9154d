"""A project with odd widths, whose memory chooses what is wrong with it."""

import numpy as np
import torch

from chop.hardware.check.project import Project
from chop.hardware.design.port import Port

PORTS = (
    Port("a", lanes=3, width=3, beats=2, is_input=True),
    Port("c", lanes=1, width=7, beats=2, is_input=True),
    Port("y", lanes=5, width=13, beats=2, is_input=False),
    Port("z", lanes=60, width=5, beats=2, is_input=False),
    Port("w", lanes=1, width=1, beats=2, is_input=False),
)
PROJECT = Project("top", PORTS, (("joined", 16), ("probe", 9)), interval=2, codes={})
FAULTS = ("none", "probe", "changed", "hang", "wrong", "surplus", "finish", "fatal")
SAMPLES = 30
WRONG_BEAT = HANG_BEAT = 17
LAST_BEAT = 2 * SAMPLES - 1
_TEXT = f"""
module top (
  input  logic clk_i,
  input  logic rst_ni,
  {{}}
);
  logic [2:0] fault [1];
  initial $readmemh("memory/fault.hex", fault);

  // Beats of both inputs are joined, stored, and forked to the three outputs.
  logic [15:0] joined_data, data_q;
  logic joined_valid, joined_ready, valid_q, stalled_q;
  logic [2:0] done_q, valid, ready, taken;
  int beat_q;
  assign joined_data = {{{{c_i, a_i}}}};
  assign joined_valid = a_valid_i && c_valid_i;
  assign joined_ready = !valid_q || &taken;
  assign a_ready_o = c_valid_i && joined_ready;
  assign c_ready_o = a_valid_i && joined_ready;
  assign taken = done_q | (valid & ready);
  assign valid = {{{{3{{{{valid_q && !(fault[0] == 3'd3 && beat_q >= {HANG_BEAT})}}}}}}}} & ~done_q;
  assign ready = {{{{w_ready_i, z_ready_i, y_ready_i}}}};

  logic [8:0] probe_data;
  logic probe_valid, probe_ready;
  assign probe_data = joined_data[8:0];
  assign probe_valid = joined_valid && !(fault[0] == 3'd1 && stalled_q);
  assign probe_ready = joined_ready;

  always_ff @(posedge clk_i) begin
    stalled_q <= joined_valid && !joined_ready;
    if (!rst_ni) begin
      valid_q <= 1'b0;
      done_q  <= '0;
      beat_q  <= 0;
    end else begin
      if (joined_valid && joined_ready) data_q <= joined_data;
      if (joined_ready) valid_q <= joined_valid;
      done_q <= taken;
      if (!valid_q || &taken) done_q <= '0;
      if (fault[0] == 3'd5 && beat_q == {LAST_BEAT} && &taken) begin
        valid_q <= 1'b1;
        done_q  <= 3'b011;
      end
      if (valid_q && &taken) beat_q <= beat_q + 1;
    end
  end

  always @(posedge clk_i) begin
    if (fault[0] == 3'd6 && beat_q == 5) $finish;
    if (fault[0] == 3'd7 && beat_q == 5) $fatal(1, "beat 5 is refused");
  end

  logic changed;
  logic [2:0] offered;
  assign changed = fault[0] == 3'd2 && offered[0];
  always_ff @(posedge clk_i) offered <= valid & ~ready;
  for (genvar i = 0; i < 5; i++) begin : gen_y
    assign y_o[i*13 +: 13] = 13'($signed(data_q[15:9])) * 13'(i) + 13'(changed);
  end
  for (genvar i = 0; i < 60; i++) begin : gen_z
    assign z_o[i*5 +: 5] = 5'($signed(data_q[3*(i%3) +: 3]))
      ^ 5'(i == 7 && fault[0] == 3'd4 && beat_q == {WRONG_BEAT});
  end
  assign w_o = ^data_q;
  assign {{{{w_valid_o, z_valid_o, y_valid_o}}}} = valid;
endmodule
"""


def write(folder, fault="none"):
    """Writes the project; returns it."""
    for part in ("rtl", "memory"):
        (folder / part).mkdir(exist_ok=True, parents=True)
    declared = ",\n  ".join(line for port in PORTS for line in port.declaration())
    (folder / "rtl" / "top.sv").write_text(_TEXT.format(declared))
    (folder / "memory" / "fault.hex").write_text(f"{FAULTS.index(fault)}\n")
    return PROJECT


def codes(samples=SAMPLES, seed=0):
    """int64 (samples, beats * lanes) for each input, and for each output what has to leave."""
    draw = np.random.default_rng(seed)
    a = draw.integers(-4, 4, (samples * 2, 3))
    c = draw.integers(-64, 64, (samples * 2, 1))
    bits = [*((a.T >> k & 1) for k in range(3)), *((c.T >> k & 1) for k in range(7))]
    parity = sum(bit.sum(0) for bit in bits) % 2
    inputs = {"a": a, "c": c}
    outputs = {"y": c * np.arange(5), "z": np.tile(a, 20), "w": -parity[:, None]}
    return tuple(
        {name: torch.from_numpy(beats.reshape(samples, -1)) for name, beats in group.items()}
        for group in (inputs, outputs)
    )
