// The loops over elements that stand alone, or whose scale is known.
#pragma once

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

INLINE void each_ternary(const Plan& p, const Part& part) {
    const double limit = p.limit, threshold = p.low, scale = *part.scales;
    const float* x = part.x;
    float* y = part.y;
    INDEPENDENT
    for (int64_t i = 0; i < part.n; i++) {
        const double v = x[i], kept = v < 0 ? -scale : scale;
        const double rounded = std::fabs(v) > threshold ? clamp(kept, -limit, limit) + 0.0 : 0.0;
        y[i] = static_cast<float>(v == v ? rounded : v);
    }
}

constexpr int64_t CHUNK = 512;  // values whose levels are worked on at a time

// The sum of the known levels of each value, and what they leave of it.
INLINE void split_levels(const Plan& p, const float* x, int64_t n, double* sum, double* rest) {
    for (int64_t i = 0; i < n; i++) {
        sum[i] = 0;
        rest[i] = x[i];
    }
    for (int32_t level = 0; level < p.levels; level++) {
        const double upper = p.factors[level], lower = upper * p.low;
        const double direction = upper < 0 ? -1.0 : 1.0;
        for (int64_t i = 0; i < n; i++) {
            const double v = rest[i], sign = v * direction >= 0 ? upper : lower;
            const double taken = v == v ? sign : v;
            sum[i] += taken;
            rest[i] = v - taken;
        }
    }
}

INLINE void each_residual(const Plan& p, const Part& part) {
    const double limit = p.limit;
    double sum[CHUNK], rest[CHUNK];
    for (int64_t first = 0; first < part.n; first += CHUNK) {
        const int64_t left = part.n - first, n = left < CHUNK ? left : CHUNK;
        float* y = part.y + first;
        split_levels(p, part.x + first, n, sum, rest);
        for (int64_t i = 0; i < n; i++) y[i] = static_cast<float>(clamp(sum[i], -limit, limit));
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

}  // namespace
