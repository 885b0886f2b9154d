// How the scale of a block is found.
#pragma once

#include <limits>

#include "cores.h"

namespace {

// The largest magnitude as bits, which order like the numbers; NaN and infinities come last.
INLINE uint32_t largest_bits(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = magnitude_bits(x[i]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

INLINE uint32_t largest_finite_bits(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = magnitude_bits(x[i]);
        largest = bits < INFINITE && bits > largest ? bits : largest;
    }
    return largest;
}

// How a block's scale follows its largest finite magnitude, and how values are divided by it.
// `poison` is NaN for a block with a NaN or an infinity, else 0.
struct SharedExponent {
    static INLINE_MEMBER void find(const Plan& p, double largest, double poison, double& scale,
                                   double& divisor) {
        const int64_t bits = bit_cast<int64_t>(largest);
        int64_t exponent = (bits >> MANTISSA_WIDTH) - BIAS + p.offset;
        exponent += (bits & FRACTION_BITS) >= p.carry;
        exponent = clamp<int64_t>(exponent, p.lowest_exponent, p.largest_exponent);
        scale = exp2i(exponent) + (p.has_nan ? poison : 0.0);
        divisor = exp2i(-exponent);
    }
    // By a power of two: multiplying by its inverse is exact.
    static INLINE_MEMBER double divide(double v, double divisor) { return v * divisor; }
};

struct SmallFloat {
    static INLINE_MEMBER void find(const Plan& p, double largest, double poison, double& scale,
                                   double& divisor) {
        const double wanted = largest / p.small_divisor / p.of_tensor;
        scale = round_minifloat(wanted, p.small_low, p.small_high, p.small_turn) * p.of_tensor;
        divisor = scale == 0 ? 1.0 : scale;
        scale += poison;
    }
    static INLINE_MEMBER double divide(double v, double divisor) { return v / divisor; }
};

}  // namespace
