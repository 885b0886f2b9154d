// Products with codes of 8 and 4 bits, a vector at a time. Included once for each set of
// instructions, in its namespace, with TARGET as its attribute.

#ifndef TARGET
#error "TARGET: the attribute of functions for a set of instructions"
#endif
#define TARGET_INLINE TARGET INLINE_MEMBER

// Readers give LANES values from column `at` of a row on, or, at its end, the first of them; and a
// whole block of them.
template <class Values> struct Bytes : Values {
    TARGET_INLINE explicit Bytes(const Codes& c) : Values(c) {}
    TARGET_INLINE Vector all(const uint8_t* row, int64_t at) const {
        return this->values(load_bytes(row + at));
    }
    TARGET_INLINE Vector some(const uint8_t* row, int64_t at, int64_t count) const {
        return this->values(load_some_bytes(row + at, count));
    }
    TARGET_INLINE void block(const uint8_t* row, int64_t at, Vector* to) const {
        for (int part = 0; part < BLOCK / LANES; part++) to[part] = all(row, at + part * LANES);
    }
};

struct WholeValues {
    static constexpr int32_t few_rows = INT32_MAX;
    TARGET_INLINE explicit WholeValues(const Codes&) {}
    TARGET_INLINE Vector values(__m128i codes) const { return to_floats(widen_signed(codes)); }
};

struct NaturalValues {
    static constexpr int32_t few_rows = INT32_MAX;
    TARGET_INLINE explicit NaturalValues(const Codes&) {}
    TARGET_INLINE Vector values(__m128i codes) const { return to_floats(widen(codes)); }
};

struct MagnitudeValues {
    static constexpr int32_t few_rows = INT32_MAX;
    TARGET_INLINE explicit MagnitudeValues(const Codes&) {}
    TARGET_INLINE Vector values(__m128i codes) const {
        const __m128i magnitudes = _mm_and_si128(codes, _mm_set1_epi8(0x7f));
        return with_sign_of(to_floats(widen(magnitudes)), widen_signed(codes));
    }
};

// Looked-up codes are slow to decode: from this many rows of x, they are decoded once.
constexpr int32_t FEW_LOOKED_UP = 128;

struct TableValues {
    static constexpr int32_t few_rows = FEW_LOOKED_UP;
    const float* table;
    TARGET_INLINE explicit TableValues(const Codes& c) : table(c.table) {}
    TARGET_INLINE Vector values(__m128i codes) const { return look_up(table, widen(codes)); }
};

struct FloatValues : TableValues {
    static constexpr int32_t few_rows = INT32_MAX;
    int shift;
    int32_t fields;
    float step;
    __m128i largest;
    TARGET_INLINE explicit FloatValues(const Codes& c)
        : TableValues(c),
          shift(23 - c.mantissa_width),
          fields(INT32_MIN | 0x7f << (23 - c.mantissa_width)),
          step(c.step),
          largest(_mm_set1_epi8(c.largest_code)) {}
    TARGET_INLINE Vector values(__m128i codes) const {
        const __m128i magnitudes = _mm_and_si128(codes, _mm_set1_epi8(0x7f));
        if (__builtin_expect(_mm_movemask_epi8(_mm_cmpgt_epi8(magnitudes, largest)), 0))
            return TableValues::values(codes);
        // The fields lie as float32's do; only the bias differs.
        return multiply(shifted_bits(widen_signed(codes), shift, fields), all_of(step));
    }
};

TARGET INLINE Vector bounded(Vector v) {
    // These instructions return the second operand if one is NaN.
    return larger(all_of(-FLT_MAX), smaller(all_of(FLT_MAX), v));
}

// Decoding of a group's values: the zero point is subtracted (none without ZEROS), and
// the scale multiplies them.
template <bool ZEROS> struct Grid {
    Vector scale, zero;
    TARGET_INLINE Vector distance(Vector value) const {
        return ZEROS ? subtract(value, zero) : value;
    }
    TARGET_INLINE Vector scaled(Vector value) const { return multiply(distance(value), scale); }
};

template <class Reader, bool ZEROS, class Number>
TARGET void read_row(const Packed& w, int64_t row, Number* out) {
    const Codes& c = w.codes;
    const Reader read(c);
    const Vector factor = all_of(c.factor);
    const uint8_t* from = w.packed + row * w.columns * c.width / 8;
    int64_t index = row * c.groups_per_row;
    for (int64_t at = 0; at < w.columns; index++) {
        const int64_t last = w.columns - at < c.group ? w.columns : at + c.group;
        const Grid<ZEROS> grid{all_of(scale_at(c, w.scales, index)),
                               all_of(ZEROS ? zero_at(c, w.scales, index) : 0.0f)};
        for (; at + LANES <= last; at += LANES)
            store(out + at, bounded(multiply(grid.scaled(read.all(from, at)), factor)));
        if (at < last) {
            const Vector value = read.some(from, at, last - at);
            store_some(out + at, bounded(multiply(grid.scaled(value), factor)), last - at);
            at = last;
        }
    }
}

// Sums over columns of value times x, for each of OUTPUTS rows of codes from row `first` on and ROWS
// rows of x. Several of either share what is loaded, and keep additions that wait for one another
// apart.
template <class Reader, int OUTPUTS, int ROWS, bool ZEROS> struct Products {
    const Packed& w;
    const Codes& c;
    const Reader read;
    const uint8_t* codes;
    const float* x;
    int64_t row_bytes, ahead, index;
    Vector sums[OUTPUTS][ROWS];

    TARGET_INLINE Products(const Packed& w_, int64_t first, const float* x_)
        : w(w_), c(w_.codes), read(w_.codes), x(x_), row_bytes(w.columns * c.width / 8),
          ahead(ahead_of(OUTPUTS * row_bytes)), index(first * c.groups_per_row) {
        codes = w.packed + first * row_bytes;
        for (int n = 0; n < OUTPUTS; n++)
            for (int m = 0; m < ROWS; m++) sums[n][m] = zeros();
    }
    TARGET_INLINE const uint8_t* row(int n) const { return codes + n * row_bytes; }
    TARGET_INLINE Grid<ZEROS> grid(int n, int64_t group) const {
        const int64_t at = index + n * c.groups_per_row + group;
        const float zero = ZEROS ? zero_at(c, w.scales, at) : 0.0f;
        return {all_of(scale_at(c, w.scales, at)), all_of(zero)};
    }
    TARGET_INLINE Grid<ZEROS> byte_grid(int n, int64_t group) const {
        const uint8_t* bytes = static_cast<const uint8_t*>(w.scales);
        return {all_of(c.scale_table[bytes[index + n * c.groups_per_row + group]]), zeros()};
    }
    // A block of one group. The sum for one row of x is scaled; for several, the values.
    TARGET_INLINE void add_block(int64_t at, int n, const Grid<ZEROS>& grid) {
        if (ROWS == 1) _mm_prefetch(row(n) + at * c.width / 8 + ahead, _MM_HINT_T0);
        Vector values[BLOCK / LANES];
        read.block(row(n), at, values);
        add_parts<BLOCK / LANES>(at, n, grid, values);
    }
    // As many columns as vectors have, which are as wide as half a block or less.
    template <int PARTS> TARGET_INLINE void add_some(int64_t at, int n, const Grid<ZEROS>& grid) {
        Vector values[PARTS];
        for (int part = 0; part < PARTS; part++) values[part] = read.all(row(n), at + part * LANES);
        add_parts<PARTS>(at, n, grid, values);
    }
    template <int PARTS>
    TARGET_INLINE void add_parts(int64_t at, int n, const Grid<ZEROS>& grid, const Vector* values) {
        if (ROWS == 1) {
            Vector sum = multiply(grid.distance(values[0]), load(x + at));
            for (int part = 1; part < PARTS; part++)
                sum = multiply_add(grid.distance(values[part]), load(x + at + part * LANES), sum);
            sums[n][0] = multiply_add(sum, grid.scale, sums[n][0]);
            return;
        }
        for (int part = 0; part < PARTS; part++) {
            const Vector value = grid.scaled(values[part]);
            const float* from = x + at + part * LANES;
            for (int m = 0; m < ROWS; m++)
                sums[n][m] = multiply_add(value, load(from + m * w.columns), sums[n][m]);
        }
    }
    // `count` columns, fewer than a vector has.
    TARGET_INLINE void add_last(int64_t at, int64_t count, int n, const Grid<ZEROS>& grid) {
        const Vector value = grid.scaled(read.some(row(n), at, count));
        for (int m = 0; m < ROWS; m++)
            sums[n][m] =
                multiply_add(value, load_some(x + m * w.columns + at, count), sums[n][m]);
    }
    // Whole groups of a size that is known, whose scales are bytes; returns how many.
    template <int GROUP> TARGET_INLINE int64_t add_groups() {
        int64_t group = 0;
        for (; (group + 1) * GROUP <= w.columns; group++)
            for (int n = 0; n < OUTPUTS; n++) {
                const Grid<ZEROS> grid = byte_grid(n, group);
                if (GROUP == BLOCK)
                    add_block(group * GROUP, n, grid);
                else
                    add_some<GROUP / LANES>(group * GROUP, n, grid);
            }
        return group;
    }
    TARGET_INLINE void add_all() {
        int64_t group = 0;
        if (!ZEROS && c.scale_storage == SCALE_CODES && c.scale_width == 8) {
            if (c.group == BLOCK) group = add_groups<BLOCK>();
            if (c.group == BLOCK / 2) group = add_groups<BLOCK / 2>();
        }
        for (int64_t at = group * c.group; at < w.columns; group++) {
            const int64_t last = w.columns - at < c.group ? w.columns : at + c.group;
            Grid<ZEROS> grids[OUTPUTS];
            for (int n = 0; n < OUTPUTS; n++) grids[n] = grid(n, group);
            for (; at + BLOCK <= last; at += BLOCK)
                for (int n = 0; n < OUTPUTS; n++) add_block(at, n, grids[n]);
            for (; at + LANES <= last; at += LANES)
                for (int n = 0; n < OUTPUTS; n++) add_some<1>(at, n, grids[n]);
            for (int n = 0; at < last && n < OUTPUTS; n++) add_last(at, last - at, n, grids[n]);
            at = last;
        }
    }
};

template <class Reader, bool ZEROS, int OUTPUTS, int ROWS>
TARGET void multiply_tile(const Packed& w, int64_t first, const float* x, float* y,
                          int64_t stride) {
    Products<Reader, OUTPUTS, ROWS, ZEROS> products(w, first, x);
    products.add_all();
    for (int n = 0; n < OUTPUTS; n++)
        for (int m = 0; m < ROWS; m++)
            y[m * stride + n] = sum_of(products.sums[n][m]) * w.codes.factor;
}

// OUTPUTS rows of codes at a time, and then single ones.
template <class Reader, bool ZEROS, int OUTPUTS, int ROWS>
void multiply_rows(const Packed& w, int64_t first, int64_t outputs, const float* x, float* y,
                   int64_t stride) {
    int64_t n = 0;
    for (; n + OUTPUTS <= outputs; n += OUTPUTS)
        multiply_tile<Reader, ZEROS, OUTPUTS, ROWS>(w, first + n, x, y + n, stride);
    for (; n < outputs; n++)
        multiply_tile<Reader, ZEROS, 1, ROWS>(w, first + n, x, y + n, stride);
}

#include "decoded_products.h"

template <class Reader, bool ZEROS = false>
void multiply_all(const Packed& w, int64_t first, int64_t outputs, const float* x, int64_t rows,
                  float* y, int64_t stride) {
    constexpr int ROWS = 4;
    int64_t m = 0;
    for (; m + ROWS <= rows; m += ROWS)
        multiply_rows<Reader, ZEROS, 2, ROWS>(w, first, outputs, x + m * w.columns,
                                              y + m * stride, stride);
    for (; m < rows; m++)
        multiply_rows<Reader, ZEROS, 4, 1>(w, first, outputs, x + m * w.columns, y + m * stride,
                                           stride);
}

template <class Reader, bool ZEROS, class ReaderOfFew = Reader> Ways ways_of_reader() {
    return {read_row<Reader, ZEROS, float>, read_row<Reader, ZEROS, uint16_t>,
            multiply_all<ReaderOfFew, ZEROS>, multiply_decoded<Singles, Reader, ZEROS>,
            in_bfloat16<Reader, ZEROS>(), DECODED_ROWS, Reader::few_rows};
}

template <class Reader> Ways ways_of_reader(const Packed& w) {
    return w.codes.scale_storage == SCALES_AND_ZEROS ? ways_of_reader<Reader, true>()
                                                     : ways_of_reader<Reader, false>();
}

// Selects how codes are read and multiplied; false without a reader for them.
bool find_ways(const Packed& w, Ways& found) {
    if (w.codes.width == 4) found = ways_of_nibbles(w);
    if (w.codes.width != 8) return w.codes.width == 4;
    if (w.codes.reading == WHOLE)
        found = ways_of_reader<Bytes<WholeValues>>(w);
    else if (w.codes.reading == FLOAT)
        found = ways_of_reader<Bytes<FloatValues>>(w);
    else if (w.codes.reading == NATURAL)
        found = ways_of_reader<Bytes<NaturalValues>>(w);
    else if (w.codes.reading == MAGNITUDE)
        found = ways_of_reader<Bytes<MagnitudeValues>>(w);
    else
        found = ways_of_reader<Bytes<TableValues>>(w);
    return true;
}

#undef TARGET_INLINE
