"""A testbench of one stream in and one out that shares no code with the emitted one.

Valid and ready are random, data are X while valid is low, and resets of one cycle come at random.
After each reset the source begins again, and so must the circuit.
"""

import subprocess

from chop.hardware.design.plan import RTL
from chop.hardware.design.verilog import sources
from chop.hardware.tools import tool_path

BENCH = """`timescale 1ns/1ns
module bench;
  reg clk = 0, rst_n = 0, valid_in = 0, ready_out = 0;
  wire ready_in, valid_out;
  wire [{in_w}-1:0] data_in;
  wire [{out_w}-1:0] data_out;
  reg [{in_w}-1:0] sent [0:{n_in}-1];
  reg [{out_w}-1:0] expected [0:{n_out}-1];
  integer at_in = 0, at_out = 0, resets = 0, idle = 0, cycle = 0, seed = {seed};
  always #5 clk = !clk;
  initial begin $readmemh("sent.hex", sent); $readmemh("expected.hex", expected); end
  assign data_in = valid_in ? sent[at_in] : {{{in_w}{{1'bx}}}};
  {module} #({parameters}) u_dut (
    .clk_i(clk), .rst_ni(rst_n), .data_in_0_i(data_in), .data_in_0_valid_i(valid_in),
    .data_in_0_ready_o(ready_in), .data_out_0_o(data_out), .data_out_0_valid_o(valid_out),
    .data_out_0_ready_i(ready_out));
  always @(negedge clk) begin
    cycle = cycle + 1;
    if (cycle == 4) rst_n = 1;
    else if (cycle > 4 && resets < {resets} && $random(seed) % {every} == 0) begin
      rst_n = 0; resets = resets + 1; at_in = 0; at_out = 0; valid_in = 0;
    end else if (cycle > 4) rst_n = 1;
    if (!rst_n) valid_in = 0;
    else if (!valid_in) valid_in = at_in < {n_in} && $random(seed) % 3 != 0;
    ready_out = $random(seed) % 4 != 0;
  end
  always @(posedge clk) if (rst_n) begin
    if (valid_out === 1'bx) begin $display("FAIL valid is X"); $finish; end
    if (valid_out && ready_out) begin
      if (at_out >= {n_out} || data_out !== expected[at_out]) begin
        $display("FAIL beat %0d: %h, not %h", at_out, data_out, expected[at_out]); $finish;
      end
      at_out <= at_out + 1;
      idle <= 0;
    end else idle <= idle + 1;
    if (valid_in && ready_in) begin at_in <= at_in + 1; end
    if (idle > 300 && resets == {resets}) begin
      if (at_out == {n_out}) $display("PASS"); else $display("FAIL %0d beats left", at_out);
      $finish;
    end
  end
  // The next beat is offered only after the negative edge, as above.
  always @(posedge clk) if (rst_n && valid_in && ready_in) valid_in <= 0;
endmodule
"""


def passes_own_bench(module, parameters, sent, expected, folder, resets=12, seed=1, source=RTL):
    """Returns the last line of a simulation, which is PASS.

    Args:
        module: name of a module with one stream in and one out.
        parameters: its parameters as text.
        sent: beats in, as (bits, list of numbers).
        expected: beats out, in the same form.
        folder: empty folder.
        resets: number of resets, each one cycle long.
        seed: seed of all random numbers.
        source: folder of the module.
    """
    for name, (bits, beats) in (("sent", sent), ("expected", expected)):
        text = "".join(f"{beat & (1 << bits) - 1:x}\n" for beat in beats)
        (folder / f"{name}.hex").write_text(text)
    values = {"in_w": sent[0], "out_w": expected[0], "n_in": len(sent[1]), "seed": seed}
    values |= {"n_out": len(expected[1]), "resets": resets, "every": max(len(sent[1]), 8)}
    joined = ", ".join(f".{name}({value})" for name, value in parameters.items())
    text = BENCH.format(module=module, parameters=joined, **values)
    (folder / "bench.sv").write_text(text)
    files = [str(path) for path in sources(text, source).values()]
    compiler = [tool_path("iverilog"), "-g2012", "-s", "bench", "-o", "bench.vvp", *files]
    subprocess.run([*compiler, "bench.sv"], cwd=folder, check=True, timeout=60)
    run = [tool_path("vvp"), "-n", "bench.vvp"]
    done = subprocess.run(run, cwd=folder, check=True, timeout=60, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]
