// Loops over elements without a scale or with a known scale.
#pragma once

#include <algorithm>

#include "scales.h"

namespace {

// Of a tensor. `mask` is where it is marked which values saturate, or null. `scales` is the scale
// of all of them, or where the scales of lines are left.
struct Part {
    const float* x;
    float* y;
    uint8_t* mask;
    int64_t n;
    double* scales;
};

template <class Real, class CoreOf> INLINE void each(const Plan& p, const Part& part) {
    const CoreOf core(p);
    const float* x = part.x;
    float* y = part.y;
    INDEPENDENT
    for (int64_t i = 0; i < part.n; i++) y[i] = static_cast<float>(core(static_cast<Real>(x[i])));
}

template <class CoreOf> INLINE void each_clamped(const Plan& p, const Part& part) {
    const CoreOf core(p);
    const double limit = p.limit;
    const float* x = part.x;
    float* y = part.y;
    INDEPENDENT
    for (int64_t i = 0; i < part.n; i++)
        y[i] = static_cast<float>(clamp(core(x[i]), -limit, limit));
}

template <class CoreOf> INLINE void each_scaled(const Plan& p, const Part& part) {
    const CoreOf core(p);
    const double limit = p.limit, scale = *part.scales, divisor = scale == 0 ? 1.0 : scale;
    const float* x = part.x;
    float* y = part.y;
    INDEPENDENT
    for (int64_t i = 0; i < part.n; i++)
        y[i] = static_cast<float>(clamp(core(x[i] / divisor) * scale, -limit, limit));
}

constexpr int64_t CHUNK = 512;  // values that are worked on at a time

// Small integers by float32 products with the inverse of a scale, in a fraction of the time of
// quotients in float64. Product and quotient are within (largest code + 1) / 2^23 of each other, so
// both have the same code unless the product is that close to a tie.
struct ProductCore {
    float factor, unit, low, high, zero, certain;
    ProductCore(const Plan& p, double scale)
        : factor(p.steps / scale), unit(p.step * scale), low(p.low), high(p.high), zero(p.zero),
          certain(0.5f - (largest_code(p) + 1) * 0x1p-22f) {}
    static float largest_code(const Plan& p) { return std::max(-p.low, p.high); }
    // The scale is a float32, and nothing overflows or loses bits.
    static bool fits(const Plan& p, double scale) {
        const auto is_moderate = [](double v) { return v >= 0x1p-40 && v <= 0x1p40; };
        return largest_code(p) <= 256 && is_moderate(p.steps) && is_moderate(scale) &&
               static_cast<float>(scale) == scale && largest_code(p) * p.step * scale <= p.limit;
    }
    // `farthest` is the largest distance from a code, as bits.
    INLINE_MEMBER float round(float x, int32_t& farthest) const {
        // A quarter beyond the ends, products are far from ties and still round to the ends.
        const float near = clamp(x * factor, low - 0.25f, high + 0.25f);
        const float code = std::rint(near);
        farthest = std::max(farthest, magnitude_bits(near - code));
        return (code + zero) * unit;
    }
    // Returns whether all codes are certain, which those of NaN are not.
    INLINE_MEMBER bool is_certain(int32_t farthest) const {
        return bit_cast<float>(farthest) < certain;
    }
    INLINE_MEMBER bool round(const float* x, float* y, int64_t n) const {
        int32_t farthest = 0;
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) y[i] = round(x[i], farthest);
        return is_certain(farthest);
    }
};

INLINE void each_scaled_fixed(const Plan& p, const Part& part) {
    const bool fits = ProductCore::fits(p, *part.scales), is_in_place = part.x == part.y;
    const ProductCore core(p, fits ? *part.scales : 1.0);
    float buffer[CHUNK];  // for results that would replace values that may be needed again
    for (int64_t first = 0; first < part.n; first += CHUNK) {
        const int64_t n = std::min(CHUNK, part.n - first);
        const float* x = part.x + first;
        float *y = part.y + first, *rounded = is_in_place ? buffer : y;
        if (!fits || !core.round(x, rounded, n))
            each_scaled<FixedCore>(p, {x, y, nullptr, n, part.scales});
        else if (is_in_place)
            std::copy(rounded, rounded + n, y);
    }
}

// float32 holds the threshold, the scale and the limit. A scale that is NaN makes zeros NaN too.
INLINE void each_ternary(const Plan& p, const Part& part) {
    const float threshold = p.low, limit = p.limit;
    const float kept = clamp<float>(*part.scales, -limit, limit) + 0.0f;
    const float zero = kept == kept ? 0.0f : kept;
    const float* x = part.x;
    float* y = part.y;
    INDEPENDENT
    for (int64_t i = 0; i < part.n; i++) {
        const float v = x[i], rounded = v < 0 ? 0.0f - kept : kept;
        y[i] = v == v ? (std::fabs(v) > threshold ? rounded : zero) : v;
    }
}

// Some known levels of each value are taken from what is left of it, and added: first of float32
// values, then of what earlier levels left.
template <int LEVELS, bool ADDS, class From>
INLINE void take_levels(const Plan& p, int first, const From* from, int64_t n, double* rest,
                        double* sum) {
    constexpr bool CONTINUES = ADDS && sizeof(From) == sizeof(double);
    double upper[LEVELS], lower[LEVELS], direction[LEVELS];
    for (int level = 0; level < LEVELS; level++) {
        upper[level] = p.factors[first + level];
        lower[level] = upper[level] * p.low;
        direction[level] = upper[level] < 0 ? -1.0 : 1.0;
    }
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        double left = from[i], taken = CONTINUES ? sum[i] : 0.0;
#pragma GCC unroll 4
        for (int level = 0; level < LEVELS; level++) {
            const double factor = left * direction[level] >= 0 ? upper[level] : lower[level];
            taken += factor;
            left -= factor;
        }
        rest[i] = left;
        if (ADDS) sum[i] = taken;
    }
}

template <bool ADDS, class From>
INLINE void take_levels(const Plan& p, int first, int levels, const From* from, int64_t n,
                        double* rest, double* sum) {
    if (levels == 1) take_levels<1, ADDS>(p, first, from, n, rest, sum);
    if (levels == 2) take_levels<2, ADDS>(p, first, from, n, rest, sum);
    if (levels == 3) take_levels<3, ADDS>(p, first, from, n, rest, sum);
    if (levels >= 4) take_levels<4, ADDS>(p, first, from, n, rest, sum);
}

// What the known levels, one at least, leave of each value, NaN of NaN; and their sum, if asked
// for.
template <bool ADDS>
INLINE void split_levels(const Plan& p, const float* x, int64_t n, double* rest, double* sum) {
    take_levels<ADDS>(p, 0, p.levels, x, n, rest, sum);
    if (p.levels > 4) take_levels<ADDS>(p, 4, p.levels - 4, rest, n, rest, sum);
}

INLINE void each_residual(const Plan& p, const Part& part) {
    const double limit = p.limit;
    double sum[CHUNK], rest[CHUNK];
    for (int64_t first = 0; first < part.n; first += CHUNK) {
        const int64_t left = part.n - first, n = left < CHUNK ? left : CHUNK;
        const float* x = part.x + first;
        float* y = part.y + first;
        split_levels<true>(p, x, n, rest, sum);
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            const float rounded = clamp(sum[i], -limit, limit);
            y[i] = x[i] == x[i] ? rounded : x[i];
        }
    }
}

// Marks what lies beyond the range, which NaN does not.
CLONES void mark(const float* x, uint8_t* mask, int64_t n, float low, float high) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) mask[i] = (x[i] < low) | (x[i] > high);
}

CLONES void mark_scaled(const float* x, uint8_t* mask, int64_t n, double low, double high,
                        double scale) {
    const double divisor = scale == 0 ? 1.0 : scale;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const double v = x[i] / divisor;
        mask[i] = (v < low) | (v > high);
    }
}

// Zero where the mask is set. Any float of that size.
CLONES void clip(const uint32_t* x, const uint8_t* mask, uint32_t* y, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? 0 : x[i];
}

CLONES void clip(const uint16_t* x, const uint8_t* mask, uint16_t* y, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? 0 : x[i];
}

}  // namespace
