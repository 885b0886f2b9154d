// Statistics of a line, computed before rounding.
#pragma once

#include <algorithm>

#include "loops.h"

namespace {

CLONES int32_t largest_of_tile(const float* x, int64_t n, int32_t mask = EVERY_MAGNITUDE) {
    const int32_t bits = largest_bits(x, n, mask);
    return bits < INFINITE ? bits : largest_finite_bits(x, n, mask);
}

struct Sum {
    double sum, count;
    void add(const Sum& other) {
        sum += other.sum;
        count += other.count;
    }
};

constexpr int64_t LANES = 32;  // sums side by side, since additions may not be reordered

template <class Count> INLINE Sum sum_of_lanes(const double* sums, const Count* counts) {
    Sum total = {0, 0};
    for (int64_t lane = 0; lane < LANES; lane++) {
        total.sum += sums[lane];
        total.count += counts[lane];
    }
    return total;
}

// Of the finite magnitudes above a number. They are compared and masked as bits: branches would be
// mispredicted half of the time.
CLONES Sum sum_of_tile(const float* x, int64_t n, float above) {
    const int32_t above_bits = above < 0 ? -1 : bit_cast<int32_t>(above + 0.0f);
    double sums[LANES] = {};
    int32_t counts[LANES] = {};
    float padded[LANES];
    for (int64_t i = 0; i < n; i += LANES) {
        const float* part = x + i;
        if (n - i < LANES) {
            std::fill(padded, padded + LANES, static_cast<float>(NOT_A_NUMBER));
            std::copy(part, x + n, padded);
            part = padded;
        }
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int32_t bits = magnitude_bits(part[lane]);
            const int32_t mask = -((bits > above_bits) & (bits < INFINITE));
            sums[lane] += bit_cast<float>(bits & mask);
            counts[lane] -= mask;
        }
    }
    return sum_of_lanes(sums, counts);
}

// Of the finite magnitudes that the known levels of a residual leave.
CLONES Sum sum_of_rests(const Plan& p, const float* x, int64_t n) {
    if (!p.levels) return sum_of_tile(x, n, -1.0f);
    double sums[LANES] = {}, rest[CHUNK];
    int64_t counts[LANES] = {};
    for (int64_t first = 0; first < n; first += CHUNK) {
        const int64_t size = std::min(CHUNK, n - first);
        split_levels<false>(p, x + first, size, rest, nullptr);
        const int64_t padded = (size + LANES - 1) / LANES * LANES;
        std::fill(rest + size, rest + padded, NOT_A_NUMBER);
        for (int64_t i = 0; i < padded; i += LANES)
            for (int64_t lane = 0; lane < LANES; lane++) {
                const double magnitude = std::fabs(rest[i + lane]);
                const bool is_finite = magnitude <= std::numeric_limits<double>::max();
                sums[lane] += is_finite ? magnitude : 0.0;
                counts[lane] += is_finite;
            }
    }
    return sum_of_lanes(sums, counts);
}

// Two bounds of the mean that this sum and the reference's can give. Both add partial sums, so that
// far fewer than 8 sqrt(n) additions follow one another. Source: Higham 2002, Accuracy and Stability
// of Numerical Algorithms, section 4.2: a sum of terms of one sign is off by less than a unit
// roundoff for each addition in a chain. Twice, for both sums; a few more for the quotients.
struct Bounds {
    double low, high;
    Bounds(const Sum& of, int64_t n, double roundoff) {
        const double mean = of.sum / std::max(of.count, 1.0);
        const double slack = mean * (2 * 8 * std::sqrt(static_cast<double>(n)) + 8) * roundoff;
        low = mean - slack;
        high = mean + slack;
    }
};

}  // namespace
