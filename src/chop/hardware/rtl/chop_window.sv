// Sliding window over images: sends the codes under each window, with PAD_CODE outside the image.
//
// Input:   images of IN_HEIGHT x IN_WIDTH pixels, row by row. The channels of a pixel are FOLDS
//          beats of LANES codes.
// Output:  for each window, row by row, each of the FOLDS beats of a pixel, each kernel row and
//          each kernel column: LANES codes. A beat has TAP_LANES of these taps, the first one in
//          the lowest lanes.
// Timing:  one beat per cycle after the required rows are stored. Pipeline: address, two cycles |
//          memory, two cycles | padding | FIFO of chop_credits. A row of windows begins when the
//          last image row that it needs is complete, at least the first one. A row of the image is
//          loaded when a finished row of windows has freed its space.
// Memory:  a ring buffer of RING image rows: those under the kernel, and those that the next row of
//          windows, or the first one of the next image, needs in addition. A word is an input beat.
//          Each of TAP_LANES taps has a copy.
//
// The kernel has KERNEL_Y x KERNEL_X taps with distances DILATION_Y and DILATION_X. Windows are
// STRIDE_Y and STRIDE_X apart, and the first one begins PADDING_Y rows and PADDING_X columns ahead
// of the image. TAP_LANES divides a kernel row, or is a number of whole kernel rows that divides
// the kernel.
module chop_window #(
  parameter int LANES = 1,
  parameter int IN_W = 8,
  parameter int FOLDS = 1,
  parameter int IN_HEIGHT = 5,
  parameter int IN_WIDTH = 5,
  parameter int OUT_HEIGHT = 3,
  parameter int OUT_WIDTH = 3,
  parameter int KERNEL_Y = 3,
  parameter int KERNEL_X = 3,
  parameter int STRIDE_Y = 1,
  parameter int STRIDE_X = 1,
  parameter int PADDING_Y = 0,
  parameter int PADDING_X = 0,
  parameter int DILATION_Y = 1,
  parameter int DILATION_X = 1,
  parameter int RING = 6,
  parameter     PAD_CODE = 0,
  parameter int TAP_LANES = 1
) (
  input  logic                            clk_i,
  input  logic                            rst_ni,
  input  logic [LANES*IN_W-1:0]           data_in_0_i,
  input  logic                            data_in_0_valid_i,
  output logic                            data_in_0_ready_o,
  output logic [TAP_LANES*LANES*IN_W-1:0] data_out_0_o,
  output logic                            data_out_0_valid_o,
  input  logic                            data_out_0_ready_i
);
  // Columns and rows of the kernel in a beat, and how many beats it has along each.
  localparam int TAPS_X = TAP_LANES < KERNEL_X ? TAP_LANES : KERNEL_X;
  localparam int TAPS_Y = TAP_LANES / TAPS_X;
  localparam int BEATS_X = KERNEL_X / TAPS_X;
  localparam int BEATS_Y = KERNEL_Y / TAPS_Y;
  localparam int REACH = (KERNEL_Y - 1) * DILATION_Y + 1;
  localparam int ROW_WORDS = IN_WIDTH * FOLDS;
  localparam int WORDS = RING * ROW_WORDS;
  localparam int BEFORE_LAST = ROW_WORDS > 1 ? ROW_WORDS - 2 : 0;
  localparam int WORD_W = ROW_WORDS > 1 ? $clog2(ROW_WORDS) : 1;
  localparam int ADDRESS_W = WORDS > 1 ? $clog2(WORDS) : 1;
  localparam int FOLD_W = FOLDS > 1 ? $clog2(FOLDS) : 1;
  localparam int BEAT_Y_W = BEATS_Y > 1 ? $clog2(BEATS_Y) : 1;
  localparam int BEAT_X_W = BEATS_X > 1 ? $clog2(BEATS_X) : 1;
  localparam int OUT_Y_W = OUT_HEIGHT > 1 ? $clog2(OUT_HEIGHT) : 1;
  localparam int OUT_X_W = OUT_WIDTH > 1 ? $clog2(OUT_WIDTH) : 1;
  // Rows, and columns in words, outside of the image too, and counts of rows: signed.
  localparam int Y_W =
    $clog2(OUT_HEIGHT * STRIDE_Y + REACH + PADDING_Y + IN_HEIGHT + RING) + 2;
  localparam int X_W =
    $clog2((OUT_WIDTH * STRIDE_X + KERNEL_X * DILATION_X + PADDING_X + IN_WIDTH) * FOLDS) + 2;
  // Offset from one beat of a window to the next, in words and in rows.
  localparam int NEXT_X = TAPS_X * DILATION_X * FOLDS;
  localparam int NEXT_Y = TAPS_Y * DILATION_Y;
  // Steps of the ring, in words.
  localparam int NEXT_TAP = NEXT_Y % RING * ROW_WORDS;
  localparam int NEXT_ROW = STRIDE_Y % RING * ROW_WORDS;
  localparam int NEXT_IMAGE =
    ((IN_HEIGHT - (OUT_HEIGHT - 1) * STRIDE_Y) % RING + RING) % RING * ROW_WORDS;
  localparam int FIRST_SLOT = (RING - PADDING_Y % RING) % RING * ROW_WORDS;
  localparam int STAGES = 4;

  initial if (RING < (REACH < IN_HEIGHT ? REACH : IN_HEIGHT))
    $fatal(1, "chop_window: a kernel of %0d rows does not fit %0d", REACH, RING);
  initial if (BEATS_X * TAPS_X != KERNEL_X || BEATS_Y * TAPS_Y != KERNEL_Y
              || TAPS_Y * TAPS_X != TAP_LANES)
    $fatal(1, "chop_window: a kernel of %0d x %0d has no beats of %0d taps", KERNEL_Y, KERNEL_X,
           TAP_LANES);

  // Number of leading image rows that a row of windows needs, at least one.
  function automatic int needed(input int row);
    needed = row * STRIDE_Y - PADDING_Y + REACH;
    if (needed > IN_HEIGHT) needed = IN_HEIGHT;
    if (needed < 1) needed = 1;
  endfunction

  // Number of leading image rows that no later row of windows needs.
  function automatic int finished(input int row);
    finished = (row + 1) * STRIDE_Y - PADDING_Y;
    if (row == OUT_HEIGHT - 1 || finished > IN_HEIGHT) finished = IN_HEIGHT;
    if (row < 0 || finished < 0) finished = 0;
  endfunction

  // By row of windows: number of additional image rows that the next one needs.
  function automatic [OUT_HEIGHT*Y_W-1:0] more_needed(input int image);
    int row;
    more_needed = '0;
    for (row = OUT_HEIGHT - 1; row >= 0; row = row - 1)
      more_needed = (more_needed << Y_W) | (OUT_HEIGHT*Y_W)'(Y_W'(
        row == OUT_HEIGHT - 1 ? image + needed(0) - needed(row) : needed(row + 1) - needed(row)));
  endfunction

  // By row of windows: number of image rows that can be overwritten after it.
  function automatic [OUT_HEIGHT*Y_W-1:0] more_finished(input int ahead);
    int row;
    more_finished = '0;
    for (row = OUT_HEIGHT - 1; row >= 0; row = row - 1)
      more_finished = (more_finished << Y_W)
        | (OUT_HEIGHT*Y_W)'(Y_W'(finished(row) - finished(row - ahead)));
  endfunction

  localparam logic [OUT_HEIGHT*Y_W-1:0] MORE_NEEDED = more_needed(IN_HEIGHT);
  localparam logic [OUT_HEIGHT*Y_W-1:0] MORE_FINISHED = more_finished(1);
  localparam logic [OUT_Y_W-1:0] SECOND = OUT_Y_W'(OUT_HEIGHT > 1 ? 1 : 0);

  logic is_stepping, is_ready;

  // ---- load ----
  logic [ADDRESS_W-1:0] write_q;
  logic [WORD_W-1:0] word_q;
  logic signed [Y_W-1:0] room_q, released_q;  // rows with free space, less one
  logic is_loaded, is_word_last_q, is_row_loaded, was_row_loaded_q;

  assign data_in_0_ready_o = !room_q[Y_W-1];
  assign is_loaded = data_in_0_valid_i && data_in_0_ready_o;
  assign is_row_loaded = is_loaded && is_word_last_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      write_q <= '0;
      word_q <= '0;
      is_word_last_q <= ROW_WORDS == 1;
      was_row_loaded_q <= 1'b0;
      room_q <= Y_W'(RING - 1);
    end else begin
      if (is_loaded) begin
        write_q <= write_q == ADDRESS_W'(WORDS - 1) ? '0 : write_q + 1'b1;
        word_q <= is_word_last_q ? '0 : word_q + 1'b1;
        is_word_last_q <= ROW_WORDS == 1 || (!is_word_last_q && word_q == WORD_W'(BEFORE_LAST));
      end
      was_row_loaded_q <= is_row_loaded;
      // Both sums are computed before it is known whether a row is complete.
      room_q <= is_row_loaded ? room_q + released_q - Y_W'(1) : room_q + released_q;
    end
  end

  // ---- beats of taps, in the order in which they leave ----
  logic [BEAT_X_W-1:0] beat_x_q;
  logic [BEAT_Y_W-1:0] beat_y_q;
  logic [FOLD_W-1:0] fold_q;
  logic [OUT_X_W-1:0] out_x_q;
  logic [OUT_Y_W-1:0] out_y_q;
  logic is_row_end, is_kernel_end, is_window_end, is_line_end, is_image_end;

  assign is_row_end = beat_x_q == BEAT_X_W'(BEATS_X - 1);
  assign is_kernel_end = is_row_end && beat_y_q == BEAT_Y_W'(BEATS_Y - 1);
  assign is_window_end = is_kernel_end && fold_q == FOLD_W'(FOLDS - 1);
  assign is_line_end = is_window_end && out_x_q == OUT_X_W'(OUT_WIDTH - 1);
  assign is_image_end = is_line_end && out_y_q == OUT_Y_W'(OUT_HEIGHT - 1);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      beat_x_q <= '0;
      beat_y_q <= '0;
      fold_q <= '0;
      out_x_q <= '0;
      out_y_q <= '0;
    end else if (is_stepping) begin
      beat_x_q <= is_row_end ? '0 : beat_x_q + 1'b1;
      if (is_row_end) beat_y_q <= is_kernel_end ? '0 : beat_y_q + 1'b1;
      if (is_kernel_end) fold_q <= is_window_end ? '0 : fold_q + 1'b1;
      if (is_window_end) out_x_q <= is_line_end ? '0 : out_x_q + 1'b1;
      if (is_line_end) out_y_q <= is_image_end ? '0 : out_y_q + 1'b1;
    end
  end

  // ---- row, column and place in the ring of the beat's first tap, and of the window's ----
  logic signed [Y_W-1:0] first_y_q, y_q, next_y;
  logic signed [X_W-1:0] first_x_q, x_q, next_x;
  logic [ADDRESS_W-1:0] first_slot_q, slot_q, next_slot, tap_slot;

  // A step is below WORDS; the sums with and without wrap-around run in parallel.
  function automatic logic [ADDRESS_W-1:0] in_ring(
    input logic [ADDRESS_W-1:0] slot, input int step);
    logic [ADDRESS_W+1:0] beyond;
    beyond = (ADDRESS_W + 2)'(slot) + (ADDRESS_W + 2)'(step - WORDS);
    in_ring = beyond[ADDRESS_W+1] ? slot + ADDRESS_W'(step) : ADDRESS_W'(beyond);
  endfunction

  assign next_x = is_line_end ? X_W'(-PADDING_X * FOLDS) : first_x_q + X_W'(STRIDE_X * FOLDS);
  assign next_y = is_image_end ? Y_W'(-PADDING_Y) : first_y_q + Y_W'(STRIDE_Y);
  assign next_slot =
    is_image_end ? in_ring(first_slot_q, NEXT_IMAGE) : in_ring(first_slot_q, NEXT_ROW);
  assign tap_slot = in_ring(slot_q, NEXT_TAP);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      first_x_q <= X_W'(-PADDING_X * FOLDS);
      x_q <= X_W'(-PADDING_X * FOLDS);
      first_y_q <= Y_W'(-PADDING_Y);
      y_q <= Y_W'(-PADDING_Y);
      first_slot_q <= ADDRESS_W'(FIRST_SLOT);
      slot_q <= ADDRESS_W'(FIRST_SLOT);
    end else if (is_stepping) begin
      x_q <= !is_row_end ? x_q + X_W'(NEXT_X) : is_window_end ? next_x : first_x_q;
      if (is_window_end) first_x_q <= next_x;
      if (is_row_end) begin
        y_q <= !is_kernel_end ? y_q + Y_W'(NEXT_Y) : is_line_end ? next_y : first_y_q;
        slot_q <= !is_kernel_end ? tap_slot : is_line_end ? next_slot : first_slot_q;
      end
      if (is_line_end) begin
        first_y_q <= next_y;
        first_slot_q <= next_slot;
      end
    end
  end

  // ---- image rows received beyond those that the row of windows needs ----
  logic signed [Y_W-1:0] spare_q, came, needed_q, finished_q;
  logic [OUT_Y_W-1:0] after_y_q;  // row of windows after out_y_q

  assign came = was_row_loaded_q ? Y_W'(1) : '0;
  assign is_stepping = is_ready && !spare_q[Y_W-1];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      spare_q <= Y_W'(-needed(0));
      needed_q <= MORE_NEEDED[Y_W-1:0];
      finished_q <= MORE_FINISHED[Y_W-1:0];
      after_y_q <= SECOND;
    end else begin
      // As in room_q.
      spare_q <= is_stepping && is_line_end ? spare_q + came - needed_q : spare_q + came;
      if (is_stepping && is_line_end) begin
        needed_q <= MORE_NEEDED[after_y_q*Y_W +: Y_W];
        finished_q <= MORE_FINISHED[after_y_q*Y_W +: Y_W];
        after_y_q <= after_y_q == OUT_Y_W'(OUT_HEIGHT - 1) ? '0 : after_y_q + 1'b1;
      end
    end
  end

  // ---- address | memory | padding ----
  logic signed [Y_W-1:0] release_1_q;
  logic [TAP_LANES*LANES*IN_W-1:0] codes;
  logic [STAGES-1:0] valid_q;

  always_ff @(posedge clk_i) begin
    release_1_q <= is_line_end ? finished_q : '0;
    // A row can be overwritten as soon as its last tap has been read.
    // During a reset none is: room_q would count it for the next image.
    released_q <= rst_ni && valid_q[0] ? release_1_q : '0;
    valid_q <= rst_ni ? {valid_q[STAGES-2:0], is_stepping} : '0;
  end

  for (genvar tap = 0; tap < TAP_LANES; tap++) begin : g_tap
    // Offset from the beat's first tap to this one.
    localparam int ROWS = tap / TAPS_X * DILATION_Y;
    localparam int COLUMNS = tap % TAPS_X * DILATION_X * FOLDS;
    localparam int SLOTS = ROWS % RING * ROW_WORDS;

    // Words in use are never overwritten.
    (* no_rw_check *) logic [LANES*IN_W-1:0] ring [WORDS];
    logic [ADDRESS_W-1:0] slot_1_q, address_q;
    logic [X_W-1:0] word_1_q;
    logic signed [X_W-1:0] x_1_q;
    logic signed [Y_W-1:0] y_1_q;
    logic [LANES*IN_W-1:0] word, word_4_q;
    logic is_y_inside_2_q, is_x_inside_2_q, is_inside_3_q, is_inside_4_q, unused;

    assign unused = &{1'b0, word_1_q};

    always_ff @(posedge clk_i) begin
      if (is_loaded) ring[write_q] <= data_in_0_i;
      slot_1_q <= SLOTS == 0 ? slot_q : in_ring(slot_q, SLOTS);
      word_1_q <= x_q + X_W'(COLUMNS) + X_W'(fold_q);
      x_1_q <= x_q + X_W'(COLUMNS);
      y_1_q <= y_q + Y_W'(ROWS);
      address_q <= slot_1_q + ADDRESS_W'(word_1_q);
      is_y_inside_2_q <= y_1_q >= 0 && y_1_q < Y_W'(IN_HEIGHT);
      is_x_inside_2_q <= x_1_q >= 0 && x_1_q < X_W'(ROW_WORDS);
      word <= ring[address_q];
      is_inside_3_q <= is_y_inside_2_q && is_x_inside_2_q;
      word_4_q <= word;
      is_inside_4_q <= is_inside_3_q;
    end

    assign codes[tap*LANES*IN_W +: LANES*IN_W] =
      is_inside_4_q ? word_4_q : {LANES{IN_W'(PAD_CODE)}};
  end

  chop_credits #(.W(TAP_LANES * LANES * IN_W), .LATENCY(STAGES)) u_codes (
    .clk_i, .rst_ni, .starts_i(is_stepping), .ready_o(is_ready),
    .data_i(codes), .valid_i(valid_q[STAGES-1]),
    .data_out_0_o, .data_out_0_valid_o, .data_out_0_ready_i);
endmodule
