// Products of whole numbers: of 8 bits by rounded activations, whose sums 32 bits hold exactly.
#pragma once

#include "vectors_avx2.h"
#include "whole_rows.h"

namespace {

constexpr int64_t WHOLE_LANES = 16;         // 16 bits each
constexpr int64_t PANEL = 16;               // rows of codes that are multiplied together
constexpr int64_t PANEL_SPAN = 768;         // columns of a panel, which the fastest cache holds
// From so many rows of x on, laying codes out for it pays; or where rows are short.
constexpr int64_t PANEL_ROWS = 8, FEWER_PANEL_ROWS = 4, SHORT = 256;

// Loads of vectors do not cross cache lines.
struct alignas(2 * WHOLE_LANES) Lanes {
    int16_t values[WHOLE_LANES];
};

// Workspace of panel products per thread: the panel, and two vectors of sums per row.
INLINE int64_t panel_bytes(int64_t rows, int64_t columns) {
    return sizeof(Lanes) * (std::min(PANEL_SPAN, WordRows::stride_of(columns)) + 2 * rows);
}

#if CHOP_HAS_AVX2
namespace avx2 {

AVX2 INLINE Whole sixteen(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

AVX2 INLINE Whole sixteen(const int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const Whole*>(from));
}

// The first `count` of them, and zeros.
AVX2 INLINE Whole some_of_sixteen(const int8_t* from, int64_t count) {
    int8_t found[WHOLE_LANES] = {};
    std::memcpy(found, from, count);
    return sixteen(found);
}

AVX2 INLINE int32_t sum_of(Whole v) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

// Sums of products of OUTPUTS rows of codes with ROWS rows of x.
template <int OUTPUTS, int ROWS> struct WholeSums {
    Whole sums[OUTPUTS][ROWS];
    AVX2 INLINE_MEMBER WholeSums() {
        for (auto& row : sums)
            for (Whole& sum : row) sum = _mm256_setzero_si256();
    }
    AVX2 INLINE_MEMBER void add(const Whole* weights, int m, Whole x) {
        for (int n = 0; n < OUTPUTS; n++)
            sums[n][m] = _mm256_add_epi32(sums[n][m], _mm256_madd_epi16(weights[n], x));
    }
    AVX2 INLINE_MEMBER void add(const Whole* weights, const int16_t* x, int64_t stride) {
        for (int m = 0; m < ROWS; m++) add(weights, m, sixteen(x + m * stride));
    }
};

template <int OUTPUTS, int ROWS>
AVX2 void multiply_whole_tile(const Weights& w, const WordRows& x, int64_t first, int64_t row,
                              float* y, int64_t outputs) {
    WholeSums<OUTPUTS, ROWS> found;
    const int8_t* codes = w.row(first);
    const int16_t* from = x.row(row);
    const int64_t ahead = ahead_of(OUTPUTS * w.columns);
    Whole weights[OUTPUTS];
    int64_t at = 0;
#pragma GCC unroll 2
    for (; at + WHOLE_LANES <= w.columns; at += WHOLE_LANES) {
        for (int n = 0; n < OUTPUTS; n++) {
            if (ROWS == 1) _mm_prefetch(codes + n * w.columns + at + ahead, _MM_HINT_T0);
            weights[n] = sixteen(codes + n * w.columns + at);
        }
        found.add(weights, from + at, x.stride);
    }
    if (at < w.columns) {
        for (int n = 0; n < OUTPUTS; n++)
            weights[n] = some_of_sixteen(codes + n * w.columns + at, w.columns - at);
        found.add(weights, from + at, x.stride);
    }
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < OUTPUTS; n++)
            y[(row + m) * outputs + first + n] =
                w.scaled(sum_of(found.sums[n][m]), first + n, x.scales[row + m]);
}

template <int OUTPUTS>
void multiply_whole_rows(const Weights& w, const WordRows& x, int64_t n, float* y,
                         int64_t outputs) {
    constexpr int ROWS = 4;
    int64_t m = 0;
    for (; m + ROWS <= x.count; m += ROWS)
        multiply_whole_tile<OUTPUTS, ROWS>(w, x, n, m, y, outputs);
    for (; m < x.count; m++) multiply_whole_tile<OUTPUTS, 1>(w, x, n, m, y, outputs);
}

// Eight rows of eight words become eight columns of them.
AVX2 INLINE void transpose(Whole* rows) {
    Whole pairs[8], fours[8];
    for (int i = 0; i < 4; i++) {
        pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; half++) {
            const Whole a = pairs[i + half], b = pairs[i + half + 2];
            fours[i + 2 * half] = _mm256_unpacklo_epi64(a, b);
            fours[i + 2 * half + 1] = _mm256_unpackhi_epi64(a, b);
        }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
    }
}

// Rows of codes, of which `count` are there, in columns `first` to `last`: for each two columns, two of
// the first eight rows, and then of the others.
AVX2 void fill_panel(const Weights& w, int64_t row, int64_t count, int64_t first, int64_t last,
                     Lanes* panel) {
    constexpr int64_t EIGHT = PANEL / 2;
    for (int64_t at = first; at < last; at += WHOLE_LANES, panel += WHOLE_LANES)
        for (int half = 0; half < 2; half++) {
            Whole rows[EIGHT];
            for (int64_t i = 0; i < EIGHT; i++) {
                const int64_t place = half * EIGHT + i, left = place < count ? last - at : 0;
                const int8_t* from = left > 0 ? w.row(row + place) + at : w.codes;
                rows[i] = left >= WHOLE_LANES ? sixteen(from) : some_of_sixteen(from, left);
            }
            transpose(rows);
            for (int64_t i = 0; i < EIGHT; i++)
                _mm256_store_si256(reinterpret_cast<Whole*>(panel + 2 * i + half), rows[i]);
        }
}

// Scales and offsets of eight outputs.
struct Outputs {
    Vector scales, bias;
    int64_t count;
    AVX2 INLINE_MEMBER Outputs(const Weights& w, int64_t first, int64_t left)
        : scales(all_of(w.scales[0])), bias(zeros()), count(left < LANES ? left : LANES) {
        if (w.stride) scales = load_some(w.scales + first, count);
        if (w.bias) bias = load_some(w.bias + first, count);
    }
    AVX2 INLINE_MEMBER void write(Whole sums, float x_scale, float* y) const {
        const Vector scale = multiply(all_of(x_scale), scales);
        const Vector scaled = _mm256_add_ps(multiply(to_floats(sums), scale), bias);
        if (count == LANES)
            store(y, scaled);
        else
            store_some(y, scaled, count);
    }
};

// A panel's columns `first` to `last`, and the sums of each row of x with those before.
struct Span {
    const Lanes* panel;
    int64_t first, last;
    Lanes* sums;
};

// Adds the products of ROWS rows of x to their sums.
template <int ROWS> AVX2 void multiply_panel(const Span& span, const WordRows& x, int64_t row) {
    WholeSums<2, ROWS> found;
    Whole* sums = reinterpret_cast<Whole*>(span.sums + 2 * row);
    const int16_t* from = x.row(row) + span.first;
    const Lanes* panel = span.panel;
    if (span.first > 0)
        for (int m = 0; m < ROWS; m++)
            for (int n = 0; n < 2; n++) found.sums[n][m] = sums[2 * m + n];
    for (int64_t at = 0; at < span.last - span.first; at += 2, panel += 2) {
        const Whole weights[2] = {sixteen(panel[0].values), sixteen(panel[1].values)};
        for (int m = 0; m < ROWS; m++) {
            int32_t two;
            std::memcpy(&two, from + m * x.stride + at, sizeof two);
            found.add(weights, m, _mm256_set1_epi32(two));
        }
    }
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < 2; n++) sums[2 * m + n] = found.sums[n][m];
}

AVX2 void multiply_panels(const Weights& w, const WordRows& x, int64_t first, int64_t last,
                          float* y, int64_t outputs) {
    constexpr int ROWS = 4;
    const std::unique_ptr<Lanes[]> panel(new Lanes[std::min(PANEL_SPAN, x.stride)]);
    const std::unique_ptr<Lanes[]> sums(new Lanes[2 * x.count]);
    for (int64_t n = first; n < last; n += PANEL) {
        for (int64_t at = 0; at < w.columns; at += PANEL_SPAN) {
            const Span span{panel.get(), at, std::min(at + PANEL_SPAN, w.columns), sums.get()};
            fill_panel(w, n, std::min(PANEL, last - n), at, span.last, panel.get());
            int64_t m = 0;
            for (; m + ROWS <= x.count; m += ROWS) multiply_panel<ROWS>(span, x, m);
            for (; m < x.count; m++) multiply_panel<1>(span, x, m);
        }
        const Whole* found = reinterpret_cast<const Whole*>(sums.get());
        for (int64_t eight = n; eight < n + PANEL && eight < last; eight += LANES) {
            const Outputs scaled(w, eight, last - eight);
            for (int64_t m = 0; m < x.count; m++)
                scaled.write(found[2 * m + (eight > n)], x.scales[m], y + m * outputs + eight);
        }
    }
}

void multiply_whole(const Weights& w, const WordRows& x, int64_t first, int64_t last, float* y,
                    int64_t outputs) {
    constexpr int OUTPUTS = 2;
    if (x.count >= (w.columns < SHORT ? FEWER_PANEL_ROWS : PANEL_ROWS))
        return multiply_panels(w, x, first, last, y, outputs);
    int64_t n = first;
    for (; n + OUTPUTS <= last; n += OUTPUTS) multiply_whole_rows<OUTPUTS>(w, x, n, y, outputs);
    for (; n < last; n++) multiply_whole_rows<1>(w, x, n, y, outputs);
}

}  // namespace avx2
#endif

// Rows `first` to `last` of the codes by all rows of x.
void multiply_whole(const Weights& w, const WordRows& x, int64_t first, int64_t last, float* y,
                    int64_t outputs) {
#if CHOP_HAS_AVX2
    if (avx2::is_supported()) return avx2::multiply_whole(w, x, first, last, y, outputs);
#endif
    portable_whole(w, x, first, last, y, outputs);
}

}  // namespace
