// Table: y = T[x - LOW] on each lane, T a read-only memory.
//
// in      LANES codes of IN_W bits, LOW to LOW + ENTRIES - 1
// out     LANES codes of OUT_W bits
// time    one beat per cycle, one register: that of the memory
// memory  for each lane ENTRIES words of OUT_W bits
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

  assign data_in_0_ready_o = !data_out_0_valid_o || data_out_0_ready_i;

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    logic signed [IN_W-1:0] x;
    logic [ADDR_W-1:0] addr;
    logic unused;
    assign unused = &{1'b0, x};
    assign x    = data_in_0_i[i*IN_W +: IN_W];
    assign addr = ADDR_W'(x) - ADDR_W'(LOW);
    chop_rom #(.W(OUT_W), .DEPTH(ENTRIES), .FILE(TABLE_FILE)) u_table (
      .clk_i(clk_i), .en_i(data_in_0_ready_o), .addr_i(addr),
      .data_o(data_out_0_o[i*OUT_W +: OUT_W]));
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) data_out_0_valid_o <= 1'b0;
    else if (data_in_0_ready_o) data_out_0_valid_o <= data_in_0_valid_i;
  end
endmodule
