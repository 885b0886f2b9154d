// Products of many rows of x with codes that are decoded a span at a time. Included once for each set of
// instructions, in its namespace, with TARGET as its attribute.

#ifndef TARGET
#error "TARGET: the attribute of functions for a set of instructions"
#endif

// Numbers as they are kept and multiplied: float32 as it is.
struct Singles {
    using Number = float;
    static constexpr int64_t IN_VECTOR = LANES;
    TARGET_INLINE static Vector load_numbers(const float* from) { return load(from); }
    TARGET_INLINE static void add_products(Vector& sum, Vector a, Vector b) {
        sum = multiply_add(a, b, sum);
    }
    // Whole vectors of them, at least `count`.
    static void keep(const float* from, int64_t count, float* to) { std::copy(from, from + count, to); }
};

// What four rows of a span are multiplied by, and where sums go: `count` of them for each row of x, added
// to what is there.
template <class Kind> struct SpanProducts {
    const typename Kind::Number *values, *x;
    int64_t columns;
    float* y;
    int64_t stride, count;
    bool adds;

    // Of ROWS rows of x from row `m` on. Sums stay in registers only where no loop counts them.
    template <int ROWS> TARGET __attribute__((noinline)) void multiply(int64_t m) const {
        Vector sums[ROWS][4];
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
            for (int n = 0; n < 4; n++) sums[i][n] = zeros();
        const auto* from = x + m * NUMBERS;
        for (int64_t at = 0; at < columns; at += Kind::IN_VECTOR) {
            Vector rows[ROWS];
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++) rows[i] = Kind::load_numbers(from + i * NUMBERS + at);
#pragma GCC unroll 8
            for (int n = 0; n < 4; n++) {
                const Vector value = Kind::load_numbers(values + n * NUMBERS + at);
#pragma GCC unroll 8
                for (int i = 0; i < ROWS; i++) Kind::add_products(sums[i][n], value, rows[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
            write(sums_of(sums[i][0], sums[i][1], sums[i][2], sums[i][3]), y + (m + i) * stride);
    }
    TARGET_INLINE void write(__m128 sums, float* to) const {
        float found[4];
        _mm_storeu_ps(found, sums);
        for (int64_t n = 0; n < count; n++) to[n] = found[n] + (adds ? to[n] : 0.0f);
    }
    template <int ROWS> void multiply_rest(int64_t m, int64_t rows) const {
        if constexpr (ROWS > 0) {
            if (rows - m == ROWS) return multiply<ROWS>(m);
            multiply_rest<ROWS - 1>(m, rows);
        }
    }
    void multiply_all(int64_t rows) const {
        int64_t m = 0;
        for (; m + TILE_ROWS <= rows; m += TILE_ROWS) multiply<TILE_ROWS>(m);
        multiply_rest<TILE_ROWS - 1>(m, rows);
    }
};

// Values of a row's columns `first` to `last`, written from `out` on. Their scales are multiplied by the
// factor of all first, which is one rounding more than a decoded weight has.
template <class Reader, bool ZEROS>
TARGET void read_span(const Packed& w, int64_t row, int64_t first, int64_t last, float* out) {
    const Codes& c = w.codes;
    const Reader read(c);
    const int64_t row_bytes = w.columns * c.width / 8;
    const uint8_t* from = w.packed + row * row_bytes;
    for (int64_t at = first * c.width / 8; at < last * c.width / 8; at += CACHE_LINE)
        _mm_prefetch(from + 4 * row_bytes + at, _MM_HINT_T1);
    int64_t at = first, group = first / c.group;
    if (!ZEROS && c.scale_storage == SCALE_CODES && c.scale_width == 8 && c.group == BLOCK) {
        const uint8_t* scales = static_cast<const uint8_t*>(w.scales) + row * c.groups_per_row;
        for (; at + BLOCK <= last; at += BLOCK, group++) {
            const Vector scale = all_of(c.scale_table[scales[group]] * c.factor);
            for (int64_t part = at; part < at + BLOCK; part += LANES)
                store(out + part - first, bounded(multiply(read.all(from, part), scale)));
        }
    }
    for (; at < last; group++) {
        const int64_t start = group * c.group, end = last - start < c.group ? last : start + c.group;
        const int64_t index = row * c.groups_per_row + group;
        const Grid<ZEROS> grid{all_of(scale_at(c, w.scales, index) * c.factor),
                               all_of(ZEROS ? zero_at(c, w.scales, index) : 0.0f)};
        for (; at + LANES <= end; at += LANES)
            store(out + at - first, bounded(grid.scaled(read.all(from, at))));
        if (at < end) {
            const Vector value = read.some(from, at, end - at);
            store_some(out + at - first, bounded(grid.scaled(value)), end - at);
            at = end;
        }
    }
}

// Spans of four rows of codes are decoded once, to numbers that stay in the fastest cache, and
// multiplied by as many rows of x as stay in the next one.
template <class Kind, class Reader, bool ZEROS>
void multiply_decoded(const Packed& w, int64_t first, int64_t outputs, const float* x,
                      int64_t rows, float* y, int64_t stride) {
    using Number = typename Kind::Number;
    std::vector<Number> values(4 * NUMBERS), copies(std::min(rows, X_ROWS) * NUMBERS);
    std::vector<float> buffer(NUMBERS);
    const auto keep = [&](const float* from, int64_t count, Number* to) {
        std::fill(std::copy(from, from + count, buffer.begin()), buffer.end(), 0.0f);
        Kind::keep(buffer.data(), SPAN, to);
    };
    for (int64_t row = 0; row < rows; row += X_ROWS)
        for (int64_t at = 0; at < w.columns; at += SPAN) {
            const int64_t many = std::min(X_ROWS, rows - row), width = std::min(SPAN, w.columns - at);
            for (int64_t m = 0; m < many; m++)
                keep(x + (row + m) * w.columns + at, width, copies.data() + m * NUMBERS);
            std::fill(buffer.begin(), buffer.end(), 0.0f);
            for (int64_t n = 0; n < outputs; n += 4) {
                const int64_t count = std::min<int64_t>(4, outputs - n);
                for (int64_t i = 0; i < count; i++) {
                    read_span<Reader, ZEROS>(w, first + n + i, at, at + width, buffer.data());
                    Kind::keep(buffer.data(), SPAN, values.data() + i * NUMBERS);
                }
                float* to = y + row * stride + n;
                SpanProducts<Kind>{values.data(), copies.data(), width, to, stride, count, at > 0}
                    .multiply_all(many);
            }
        }
}

// Products in bfloat16, where there are instructions for them; else null.
template <class Reader, bool ZEROS, class Kind = Halves> ProductsOf in_bfloat16() {
    if constexpr (!std::is_void_v<Kind>)
        if (Kind::is_supported()) return multiply_decoded<Kind, Reader, ZEROS>;
    return nullptr;
}
