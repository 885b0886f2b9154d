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

constexpr int64_t CHUNK = 512;  // values whose levels are worked on at a time

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
