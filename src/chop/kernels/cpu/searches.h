// Groups side by side, for searches that repeat the same arithmetic for each group.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "numeric.h"
#include "threads.h"

namespace {

constexpr int64_t LANES = 8;  // groups side by side
// Every function with such vectors is inlined, so their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
// One number of each group. Compilers split the vector for processors with narrower registers.
typedef double Lanes __attribute__((vector_size(LANES * sizeof(double))));
// Memory of a vector. Outside of CLONES, the compiler may align the vector type for fewer bytes.
struct alignas(sizeof(Lanes)) Element {
    Lanes lanes;
};

constexpr double ROUNDING = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves an integer

// The nearest integers, ties to even, of numbers far below 2^51.
INLINE Lanes nearest(const Lanes& v) { return (v + ROUNDING) - ROUNDING; }

INLINE Lanes bounded(const Lanes& v, const Lanes& low, const Lanes& high) {
    const Lanes above = v < low ? low : v;
    return above > high ? high : above;
}

// The nearest bfloat16 of a positive number within its normal range. As in PyTorch, by way of
// float32.
INLINE double nearest_bfloat16(double v) {
    const uint32_t bits = bit_cast<uint32_t>(static_cast<float>(v));
    return bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

// Sums `n` terms into the first one, in the order of chop.formats.ordered_sum.
INLINE void sum_in_halves(Lanes* terms, int64_t n) {
    while (n > 1) {
        const int64_t half = (n + 1) / 2;
        for (int64_t i = 0; i < n - half; i++) terms[i] += terms[half + i];
        n = half;
    }
}

// Transposes up to LANES rows, with zeros for NaN, infinities and missing rows.
CLONES void load_finite(const double* rows, int64_t size, int64_t count, Lanes* x) {
    for (int64_t i = 0; i < size; i++)
        for (int64_t lane = 0; lane < LANES; lane++) {
            const double v = lane < count ? rows[lane * size + i] : 0.0;
            x[i][lane] = std::fabs(v) <= std::numeric_limits<double>::max() ? v : 0.0;
        }
}

}  // namespace
