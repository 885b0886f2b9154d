// Rows of whole numbers, rounded activations, and the weights of 8 bits that they are multiplied by.
#pragma once

#include <memory>

#include "vectors.h"

namespace {

constexpr int64_t NARROW = 256;        // columns: rows of fewer count as such, for their sums
constexpr int64_t AT_ONCE = 1 << 19;   // numbers of x that are rounded together

// Rows of x as whole numbers of 8 or 16 bits, each filled up with zeros to whole cache lines: an odd
// number of them, so that rows do not fall on each other's places in a cache.
template <class Code> struct WholeRows {
    static constexpr int64_t PER_LINE = CACHE_LINE / sizeof(Code);
    struct alignas(CACHE_LINE) Line {
        Code values[PER_LINE];
    };
    static int64_t stride_of(int64_t columns) {
        return ((columns + PER_LINE - 1) / PER_LINE | 1) * PER_LINE;
    }
    int64_t count, columns, stride;
    std::unique_ptr<Line[]> lines;
    std::unique_ptr<float[]> scales;
    std::unique_ptr<int32_t[]> sums;
    WholeRows(int64_t count_, int64_t columns_)
        : count(count_), columns(columns_),
          stride(stride_of(columns_)), lines(new Line[count_ * stride / PER_LINE]),
          scales(new float[count_]), sums(new int32_t[count_]) {
        for (int64_t m = 0; m < count; m++)
            for (int64_t i = columns; i < stride; i++) row(m)[i] = 0;
    }
    Code* row(int64_t m) const { return lines.get()->values + m * stride; }
};

using WordRows = WholeRows<int16_t>;
using ByteRows = WholeRows<int8_t>;

// Number of rows that are rounded together: whole tiles.
INLINE int64_t rows_at_once(int64_t columns) {
    constexpr int64_t TILE = 12;
    return std::max(AT_ONCE / std::max(columns, NARROW) / TILE, int64_t(1)) * TILE;
}

// Rows of `columns` codes of 8 bits; `stride` is 0 where all have the same scale, and `bias` null
// without one. Same fields as in chop.kernels.cpu.int8.
struct Weights {
    const int8_t* codes;
    int64_t columns;
    const float* scales;
    int64_t stride;
    const float* bias;
    const int8_t* row(int64_t n) const { return codes + n * columns; }
    INLINE_MEMBER float scaled(int32_t sum, int64_t n, float x_scale) const {
        return sum * (x_scale * scales[n * stride]) + (bias ? bias[n] : 0.0f);
    }
};

CLONES int32_t portable_sum(const int8_t* w, const int16_t* x, int64_t columns) {
    int32_t sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += static_cast<int16_t>(w[i]) * x[i];
    return sum;
}

void portable_whole(const Weights& w, const WordRows& x, int64_t first, int64_t last, float* y,
                    int64_t outputs) {
    for (int64_t n = first; n < last; n++)
        for (int64_t m = 0; m < x.count; m++) {
            const int32_t sum = portable_sum(w.row(n), x.row(m), w.columns);
            y[m * outputs + n] = w.scaled(sum, n, x.scales[m]);
        }
}

}  // namespace
