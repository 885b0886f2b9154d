// Computation of a block's scale.
#pragma once

#include <limits>

#include "cores.h"

namespace {

constexpr int32_t EVERY_MAGNITUDE = 0x7fffffff;
constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();

// The largest magnitude as bits, which order like the numbers; NaN and infinities come last. By a
// mask with the sign's bit, negative numbers are below zero and so left out.
INLINE int32_t largest_bits(const float* x, int64_t n, int32_t mask) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = bit_cast<int32_t>(x[i]) & mask;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

INLINE int32_t largest_finite_bits(const float* x, int64_t n, int32_t mask) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = bit_cast<int32_t>(x[i]) & mask;
        largest = bits < INFINITE && bits > largest ? bits : largest;
    }
    return largest;
}

// The largest finite magnitude, and NaN for a block with a NaN or an infinity, else 0.
INLINE void measure_block(const float* x, int64_t n, int32_t mask, double& largest,
                          double& poison) {
    int32_t bits = largest_bits(x, n, mask);
    poison = bits < INFINITE ? 0.0 : NOT_A_NUMBER;
    if (bits >= INFINITE) bits = largest_finite_bits(x, n, mask);
    largest = bit_cast<float>(bits);
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
        const double wanted = largest / p.small_divisor / p.tensor_scale;
        scale = round_minifloat(wanted, p.small_low, p.small_high, p.small_magic_factor);
        scale *= p.tensor_scale;
        divisor = scale == 0 ? 1.0 : scale;
        scale += poison;
    }
    static INLINE_MEMBER double divide(double v, double divisor) { return v / divisor; }
};

// Float32 scale that maps the largest magnitude to the largest element. NaN does not affect others.
struct LargestFloat {
    static INLINE_MEMBER void find(const Plan& p, double largest, double, double& scale,
                                   double& divisor) {
        constexpr double tiny = std::numeric_limits<float>::min();
        constexpr double epsilon = std::numeric_limits<float>::epsilon();
        const double wanted = largest / p.small_divisor;
        scale = static_cast<float>(wanted < tiny ? tiny : wanted);
        scale = largest == 0 ? epsilon : scale;
        divisor = scale;
    }
    static INLINE_MEMBER double divide(double v, double divisor) { return v / divisor; }
};

}  // namespace
