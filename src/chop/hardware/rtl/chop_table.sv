// Lookup table on each lane: y = T[x - LOW], with T in a read-only memory.
//
// Input:   LANES codes of IN_W bits from LOW to LOW + ENTRIES - 1.
// Output:  LANES codes of OUT_W bits.
// Timing:  one beat per cycle. Pipeline: address | memory | register | FIFO of chop_credits.
// Memory:  ENTRIES words of OUT_W bits for each lane.
module chop_table #(
  parameter int LANES      = 1,
  parameter int IN_W       = 8,
  parameter int OUT_W      = 8,
  parameter int LOW        = -128,
  parameter int ENTRIES    = 256,
  parameter     TABLE_FILE = ""
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [LANES*IN_W-1:0]  data_in_0_i,
  input  logic                   data_in_0_valid_i,
  output logic                   data_in_0_ready_o,
  output logic [LANES*OUT_W-1:0] data_out_0_o,
  output logic                   data_out_0_valid_o,
  input  logic                   data_out_0_ready_i
);
  localparam int ADDR_W = (ENTRIES > 1) ? $clog2(ENTRIES) : 1;
  localparam int STAGES = 3;

  logic [LANES*OUT_W-1:0] results_q;
  logic [STAGES-1:0] valid_q;
  logic enters;

  assign enters = data_in_0_valid_i && data_in_0_ready_o;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_W-1:0] x;
    logic [ADDR_W-1:0] addr_q;
    logic [OUT_W-1:0] word;
    logic unused;
    assign unused = &{1'b0, x};
    assign x = data_in_0_i[i*IN_W +: IN_W];
    chop_rom #(.W(OUT_W), .DEPTH(ENTRIES), .FILE(TABLE_FILE)) u_table (
      .clk_i(clk_i), .en_i(1'b1), .addr_i(addr_q), .data_o(word));
    always_ff @(posedge clk_i) begin
      addr_q <= ADDR_W'(x) - ADDR_W'(LOW);
      results_q[i*OUT_W +: OUT_W] <= word;
    end
  end

  always_ff @(posedge clk_i) valid_q <= rst_ni ? {valid_q[STAGES-2:0], enters} : '0;

  chop_credits #(.W(LANES * OUT_W), .LATENCY(STAGES)) u_results (
    .clk_i, .rst_ni, .starts_i(enters), .ready_o(data_in_0_ready_o), .data_i(results_q),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
