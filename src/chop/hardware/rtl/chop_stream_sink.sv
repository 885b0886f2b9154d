// Sink of a stream, for simulation only. It takes beats with the pauses of chop_stall and compares
// them with the BEATS words of FILE. It prints the cycle of the last beat of each sample (PERIOD
// beats), and the first difference: sample, position in the sample, and both codes.
//
// done_o is high after all beats have arrived. failed_o is high if a beat was wrong, if a surplus
// beat arrived (unless ENDLESS is 1), or if the stream violated the rules of chop_stream_check.
module chop_stream_sink #(
  parameter int W       = 8,
  parameter int LANES   = 1,
  parameter int BEATS   = 1,
  parameter int PERIOD  = 1,
  parameter bit ENDLESS = 1'b0,
  parameter     FILE    = "",
  parameter     NAME    = "",
  parameter int STREAM  = 0
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic [31:0]        seed_i,
  input  logic [31:0]        share_i,
  input  logic [31:0]        pause_every_i,
  input  logic [31:0]        pause_cycles_i,
  input  logic [31:0]        cycle_i,
  input  logic [LANES*W-1:0] data_i,
  input  logic               valid_i,
  output logic               ready_o,
  output logic               done_o,
  output logic               failed_o
);
  logic [LANES*W-1:0] beats [0:BEATS-1];
  logic [LANES*W-1:0] expected;
  int came_q, first;
  logic go, wrong_q, violated;

  initial $readmemh(FILE, beats);

  assign expected = beats[came_q < BEATS ? came_q : 0];
  assign done_o   = (came_q == BEATS);
  assign failed_o = wrong_q || violated;

  always_comb begin
    first = 0;
    for (int lane = LANES - 1; lane >= 0; lane--)
      if (data_i[lane*W +: W] !== expected[lane*W +: W]) first = lane;
  end

  chop_stall #(.STREAM(STREAM)) u_stall (
    .clk_i(clk_i), .rst_ni(rst_ni), .seed_i(seed_i), .share_i(share_i),
    .pause_every_i(pause_every_i), .pause_cycles_i(pause_cycles_i), .go_o(go));

  chop_stream_check #(.W(LANES * W)) u_check (
    .clk_i(clk_i), .rst_ni(rst_ni), .data_i(data_i), .valid_i(valid_i), .ready_i(ready_o),
    .violated_o(violated));

  always @(posedge violated)
    $display("%0s: broke the rules of a stream in cycle %0d", NAME, cycle_i - 1);

  always @(posedge clk_i) begin
    if (!rst_ni) begin
      ready_o <= 1'b0;
      came_q  <= 0;
      wrong_q <= 1'b0;
    end else begin
      ready_o <= go;
      if (valid_i && done_o && !wrong_q && !ENDLESS) begin
        $display("%0s: a beat too many in cycle %0d", NAME, cycle_i);
        wrong_q <= 1'b1;
      end else if (valid_i && ready_o && !wrong_q && !done_o) begin
        if (data_i !== expected) begin
          $display("%0s: sample %0d, place %0d: expected %0d, got %0d", NAME, came_q / PERIOD,
                   (came_q % PERIOD) * LANES + first, $signed(expected[first*W +: W]),
                   $signed(data_i[first*W +: W]));
          wrong_q <= 1'b1;
        end else if (came_q % PERIOD == PERIOD - 1)
          $display("%0s: sample %0d left in cycle %0d", NAME, came_q / PERIOD, cycle_i);
        came_q <= came_q + 1;
      end
    end
  end
endmodule
