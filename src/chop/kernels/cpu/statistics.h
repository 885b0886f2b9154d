// What is measured of a line before it is rounded.
#pragma once

#include <algorithm>
#include <limits>

#include "scales.h"

namespace {

CLONES uint32_t largest_of_tile(const float* x, int64_t n) {
    const uint32_t bits = largest_bits(x, n);
    return bits < INFINITE ? bits : largest_finite_bits(x, n);
}

struct Sum {
    double sum, count;
};

// Sums in lanes, since additions may not be reordered. Magnitudes are compared and masked as bits:
// branches would be mispredicted half of the time.
CLONES Sum sum_of_tile(const float* x, int64_t n, float above) {
    constexpr int64_t LANES = 32;
    const int32_t above_bits = above < 0 ? -1 : bit_cast<int32_t>(above + 0.0f);
    double sums[LANES] = {};
    int32_t counts[LANES] = {};
    float padded[LANES];
    for (int64_t i = 0; i < n; i += LANES) {
        const float* part = x + i;
        if (n - i < LANES) {
            std::fill(padded, padded + LANES, std::numeric_limits<float>::quiet_NaN());
            std::copy(part, x + n, padded);
            part = padded;
        }
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int32_t bits = magnitude_bits(part[lane]);
            const int32_t mask = -((bits > above_bits) & (bits < int32_t(INFINITE)));
            sums[lane] += bit_cast<float>(bits & mask);
            counts[lane] -= mask;
        }
    }
    Sum total = {0, 0};
    for (int64_t lane = 0; lane < LANES; lane++) {
        total.sum += sums[lane];
        total.count += counts[lane];
    }
    return total;
}

}  // namespace
