// FIFO of depth 1 or more, with registered valid, data and ready at both ends.
//
// Input:   beats of W bits.
// Output:  the same beats.
// Timing:  one beat per cycle. The latency is one cycle up to DEPTH 2, three cycles from DEPTH
//          LARGE on, and otherwise two.
// Memory:  up to DEPTH 2, a skid buffer of two beats. Deeper FIFOs have a memory with synchronous
//          read and an output register. FIFOs from LARGE on have a second output register, because
//          the output of a block memory is slow.
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
    localparam int LARGE   = 50;
    localparam int WORDS   = DEPTH - (DEPTH < LARGE ? 1 : 2);
    localparam int INDEX_W = $clog2(WORDS);
    localparam int COUNT_W = $clog2(WORDS + 1);

    // Words in use are never overwritten.
    (* no_rw_check *) logic [W-1:0] memory [0:WORDS-1];
    logic [INDEX_W-1:0] write_q, read_q;
    logic [COUNT_W-1:0] count_q;
    logic push, pop, is_free;

    assign push = data_in_0_valid_i && data_in_0_ready_o;
    // The memory is read ahead of demand, so that the register behind it has the next beat.
    assign pop  = (count_q != '0) && is_free;
    assign data_in_0_ready_o = (count_q != COUNT_W'(WORDS));

    always_ff @(posedge clk_i) begin
      if (push) memory[write_q] <= data_in_0_i;
      if (!rst_ni) begin
        write_q <= '0;
        read_q  <= '0;
        count_q <= '0;
      end else begin
        if (push) write_q <= (write_q == INDEX_W'(WORDS - 1)) ? '0 : write_q + INDEX_W'(1);
        if (pop) read_q <= (read_q == INDEX_W'(WORDS - 1)) ? '0 : read_q + INDEX_W'(1);
        if (push && !pop) count_q <= count_q + COUNT_W'(1);
        if (pop && !push) count_q <= count_q - COUNT_W'(1);
      end
    end

    if (DEPTH < LARGE) begin : g_register
      assign is_free = !data_out_0_valid_o || data_out_0_ready_i;
      always_ff @(posedge clk_i) begin
        if (pop) data_out_0_o <= memory[read_q];
        if (!rst_ni) data_out_0_valid_o <= 1'b0;
        else if (is_free) data_out_0_valid_o <= pop;
      end
    end else begin : g_registers
      logic [W-1:0] word;
      logic has_word_q, moves;
      assign moves   = !data_out_0_valid_o || data_out_0_ready_i;
      assign is_free = !has_word_q || moves;
      always_ff @(posedge clk_i) begin
        if (pop) word <= memory[read_q];
        if (moves) data_out_0_o <= word;
        if (!rst_ni) begin
          has_word_q         <= 1'b0;
          data_out_0_valid_o <= 1'b0;
        end else begin
          if (is_free) has_word_q <= pop;
          if (moves) data_out_0_valid_o <= has_word_q;
        end
      end
    end
  end
endmodule
