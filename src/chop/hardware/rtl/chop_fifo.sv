// FIFO of any depth from 1; valid, data and ready are registered at both ends.
//
// in      beats of W bits
// out     the same beats
// time    one beat per cycle; two cycles from end to end, one up to DEPTH 2
// memory  DEPTH - 1 words of a beat with synchronous read, and a register after it; up to DEPTH 2
//         a skid buffer, which holds two beats
module chop_fifo #(
  parameter int W     = 8,
  parameter int DEPTH = 16
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [W-1:0] data_in_0_i,
  input  logic         data_in_0_valid_i,
  output logic         data_in_0_ready_o,
  output logic [W-1:0] data_out_0_o,
  output logic         data_out_0_valid_o,
  input  logic         data_out_0_ready_i
);
  if (DEPTH <= 2) begin : g_skid
    chop_skid #(.W(W)) u_skid (
      .clk_i(clk_i), .rst_ni(rst_ni),
      .data_in_0_i(data_in_0_i), .data_in_0_valid_i(data_in_0_valid_i),
      .data_in_0_ready_o(data_in_0_ready_o),
      .data_out_0_o(data_out_0_o), .data_out_0_valid_o(data_out_0_valid_o),
      .data_out_0_ready_i(data_out_0_ready_i));
  end else begin : g_memory
    localparam int WORDS   = DEPTH - 1;
    localparam int INDEX_W = $clog2(WORDS);
    localparam int COUNT_W = $clog2(WORDS + 1);

    logic [W-1:0] memory [0:WORDS-1];
    logic [INDEX_W-1:0] write_q, read_q;
    logic [COUNT_W-1:0] count_q;
    logic push, pop;

    assign push = data_in_0_valid_i && data_in_0_ready_o;
    assign pop  = (count_q != '0) && (!data_out_0_valid_o || data_out_0_ready_i);
    assign data_in_0_ready_o = (count_q != COUNT_W'(WORDS));

    always_ff @(posedge clk_i) begin
      if (push) memory[write_q] <= data_in_0_i;
      if (pop) data_out_0_o <= memory[read_q];
      if (!rst_ni) begin
        write_q            <= '0;
        read_q             <= '0;
        count_q            <= '0;
        data_out_0_valid_o <= 1'b0;
      end else begin
        if (push) write_q <= (write_q == INDEX_W'(WORDS - 1)) ? '0 : write_q + INDEX_W'(1);
        if (pop) read_q <= (read_q == INDEX_W'(WORDS - 1)) ? '0 : read_q + INDEX_W'(1);
        if (push && !pop) count_q <= count_q + COUNT_W'(1);
        if (pop && !push) count_q <= count_q - COUNT_W'(1);
        if (pop) data_out_0_valid_o <= 1'b1;
        else if (data_out_0_ready_i) data_out_0_valid_o <= 1'b0;
      end
    end
  end
endmodule
