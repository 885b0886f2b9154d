// Source of a stream, for simulation only. It sends the BEATS words of FILE in order, with the
// pauses of chop_stall. Data are unknown while valid_o is low. done_o is high after all words have
// been taken.
module chop_stream_source #(
  parameter int W      = 8,
  parameter int BEATS  = 1,
  parameter     FILE   = "",
  parameter int STREAM = 0
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [31:0]  seed_i,
  input  logic [31:0]  share_i,
  input  logic [31:0]  pause_every_i,
  input  logic [31:0]  pause_cycles_i,
  output logic [W-1:0] data_o,
  output logic         valid_o,
  input  logic         ready_i,
  output logic         done_o
);
  logic [W-1:0] beats [0:BEATS-1];
  int sent_q;
  logic go;

  initial $readmemh(FILE, beats);

  assign done_o = (sent_q == BEATS) && !valid_o;

  chop_stall #(.STREAM(STREAM)) u_stall (
    .clk_i(clk_i), .rst_ni(rst_ni), .seed_i(seed_i), .share_i(share_i),
    .pause_every_i(pause_every_i), .pause_cycles_i(pause_cycles_i), .go_o(go));

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      valid_o <= 1'b0;
      sent_q  <= 0;
    end else if (!valid_o || ready_i) begin
      valid_o <= go && (sent_q < BEATS);
      data_o  <= (go && (sent_q < BEATS)) ? beats[sent_q] : 'x;
      if (go && (sent_q < BEATS)) sent_q <= sent_q + 1;
    end
  end
endmodule
