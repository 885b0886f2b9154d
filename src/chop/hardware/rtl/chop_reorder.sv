// Reordering: stores a frame of WORDS beats and sends them in another order, once, several times or
// not at all. Beats outside the frame are zeros.
//
// Input:   frames of WORDS beats of W bits.
// Output:  for each frame, the beats whose addresses six nested counters give, counter 0 fastest:
//          BASE + the sum of STEP_k times the value of counter k, which runs from 0 to
//          COUNT_k - 1. If any counter is below FIRST_k or above LAST_k, the beat is zero.
// Timing:  a frame is sent when all of it is stored, one beat per cycle, while the next frame is
//          stored. Pipeline: address | memory, two cycles | zeros | FIFO of chop_credits.
// Memory:  two banks of WORDS beats, one for reading and one for writing.
module chop_reorder #(
  parameter int W = 8,
  parameter int WORDS = 4,
  parameter int BASE = 0,
  parameter int COUNT_0 = 1,
  parameter int STEP_0 = 0,
  parameter int FIRST_0 = 0,
  parameter int LAST_0 = COUNT_0 - 1,
  parameter int COUNT_1 = 1,
  parameter int STEP_1 = 0,
  parameter int FIRST_1 = 0,
  parameter int LAST_1 = COUNT_1 - 1,
  parameter int COUNT_2 = 1,
  parameter int STEP_2 = 0,
  parameter int FIRST_2 = 0,
  parameter int LAST_2 = COUNT_2 - 1,
  parameter int COUNT_3 = 1,
  parameter int STEP_3 = 0,
  parameter int FIRST_3 = 0,
  parameter int LAST_3 = COUNT_3 - 1,
  parameter int COUNT_4 = 1,
  parameter int STEP_4 = 0,
  parameter int FIRST_4 = 0,
  parameter int LAST_4 = COUNT_4 - 1,
  parameter int COUNT_5 = 1,
  parameter int STEP_5 = 0,
  parameter int FIRST_5 = 0,
  parameter int LAST_5 = COUNT_5 - 1
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
  localparam int LEVELS = 6;
  localparam int ADDRESS_W = $clog2(2 * WORDS);
  localparam int STAGES = 3;
  // Distance that the counters below a level have moved when all of them are at their ends.
  localparam int REWIND_1 = (COUNT_0 - 1) * STEP_0;
  localparam int REWIND_2 = REWIND_1 + (COUNT_1 - 1) * STEP_1;
  localparam int REWIND_3 = REWIND_2 + (COUNT_2 - 1) * STEP_2;
  localparam int REWIND_4 = REWIND_3 + (COUNT_3 - 1) * STEP_3;
  localparam int REWIND_5 = REWIND_4 + (COUNT_4 - 1) * STEP_4;

  // ---- store ----
  // Words of the bank that is read are never written.
  (* no_rw_check *) logic [W-1:0] banks [2*WORDS];
  logic [ADDRESS_W-1:0] write_q;
  logic [1:0] full_q;
  logic write_bank_q, is_written, is_bank_full;

  assign data_in_0_ready_o = !full_q[write_bank_q];
  assign is_written = data_in_0_valid_i && data_in_0_ready_o;
  assign is_bank_full =
    write_q == (write_bank_q ? ADDRESS_W'(2 * WORDS - 1) : ADDRESS_W'(WORDS - 1));

  always_ff @(posedge clk_i) begin
    if (is_written) banks[write_q] <= data_in_0_i;
    if (!rst_ni) begin
      write_q <= '0;
      write_bank_q <= 1'b0;
    end else if (is_written) begin
      write_q <= is_bank_full && write_bank_q ? '0 : write_q + ADDRESS_W'(1);
      if (is_bank_full) write_bank_q <= !write_bank_q;
    end
  end

  // ---- address ----
  logic [LEVELS-1:0] is_end, is_inside;
  // Addresses of zeros may lie outside the banks. They wrap, and the word that is read is not used.
  logic [ADDRESS_W-1:0] read_q, step;
  logic read_bank_q, is_read, is_frame_end, is_ready;

  assign is_read = full_q[read_bank_q] && is_ready;
  assign is_frame_end = is_read && &is_end;

  for (genvar k = 0; k < LEVELS; k++) begin : g_level
    localparam int COUNT = k == 0 ? COUNT_0 : k == 1 ? COUNT_1 : k == 2 ? COUNT_2
      : k == 3 ? COUNT_3 : k == 4 ? COUNT_4 : COUNT_5;
    localparam int FIRST = k == 0 ? FIRST_0 : k == 1 ? FIRST_1 : k == 2 ? FIRST_2
      : k == 3 ? FIRST_3 : k == 4 ? FIRST_4 : FIRST_5;
    localparam int LAST = k == 0 ? LAST_0 : k == 1 ? LAST_1 : k == 2 ? LAST_2
      : k == 3 ? LAST_3 : k == 4 ? LAST_4 : LAST_5;
    if (COUNT == 1) begin : g_fixed
      assign is_end[k] = 1'b1;
      assign is_inside[k] = 1'b1;
    end else begin : g_counter
      localparam int INDEX_W = $clog2(COUNT + 1);
      // A counter moves when all counters below it are at their ends.
      localparam logic [LEVELS-1:0] BELOW = LEVELS'((1 << k) - 1);
      logic [INDEX_W-1:0] index_q;
      assign is_end[k] = index_q == INDEX_W'(COUNT - 1);
      // With FIRST 0, `index_q >= FIRST` would be a comparison that is always true, which lint
      // reports.
      assign is_inside[k] =
        index_q + INDEX_W'(1) > INDEX_W'(FIRST) && index_q <= INDEX_W'(LAST);
      always_ff @(posedge clk_i) begin
        if (!rst_ni) index_q <= '0;
        else if (is_read && &(is_end | ~BELOW)) index_q <= is_end[k] ? '0 : index_q + INDEX_W'(1);
      end
    end
  end

  assign step =
    &is_end[4:0] ? ADDRESS_W'(STEP_5 - REWIND_5)
    : &is_end[3:0] ? ADDRESS_W'(STEP_4 - REWIND_4)
    : &is_end[2:0] ? ADDRESS_W'(STEP_3 - REWIND_3)
    : &is_end[1:0] ? ADDRESS_W'(STEP_2 - REWIND_2)
    : is_end[0] ? ADDRESS_W'(STEP_1 - REWIND_1) : ADDRESS_W'(STEP_0);

  // ---- read ----
  logic [W-1:0] word, word_q, beat_q;
  logic [STAGES-1:0] valid_q;
  logic [1:0] filled, emptied, inside_q;

  assign filled  = {write_bank_q, !write_bank_q} & {2{is_written && is_bank_full}};
  assign emptied = {read_bank_q, !read_bank_q} & {2{is_frame_end}};

  always_ff @(posedge clk_i) begin
    word     <= banks[read_q];
    word_q   <= word;
    beat_q   <= inside_q[1] ? word_q : '0;
    inside_q <= {inside_q[0], &is_inside};
    valid_q  <= rst_ni ? {valid_q[STAGES-2:0], is_read} : '0;
    if (!rst_ni) begin
      read_q <= ADDRESS_W'(BASE);
      read_bank_q <= 1'b0;
      full_q <= '0;
    end else begin
      if (is_frame_end) begin
        read_q <= read_bank_q ? ADDRESS_W'(BASE) : ADDRESS_W'(WORDS + BASE);
        read_bank_q <= !read_bank_q;
      end else if (is_read) begin
        read_q <= read_q + step;
      end
      // A bank cannot be filled and emptied in the same cycle, because only full banks are read and
      // only empty ones are written.
      full_q <= (full_q | filled) & ~emptied;
    end
  end

  chop_credits #(.W(W), .LATENCY(STAGES)) u_beats (
    .clk_i, .rst_ni, .starts_i(is_read), .ready_o(is_ready), .data_i(beat_q),
    .valid_i(valid_q[STAGES-1]), .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
