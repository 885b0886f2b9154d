// The loops over elements and blocks.
#pragma once

#include "scales.h"

namespace {

constexpr int64_t BATCH = 256;  // blocks whose scales are found together

template <class Real, class CoreOf>
INLINE void each(const Plan& p, const float* x, float* y, int64_t n) {
    const CoreOf core(p);
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = static_cast<float>(core(static_cast<Real>(x[i])));
}

template <class CoreOf> INLINE void each_clamped(const Plan& p, const float* x, float* y, int64_t n) {
    const CoreOf core(p);
    const double limit = p.limit;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = static_cast<float>(clamp(core(x[i]), -limit, limit));
}

template <class CoreOf>
INLINE void each_scaled(const Plan& p, const float* x, float* y, int64_t n, double scale) {
    const CoreOf core(p);
    const double limit = p.limit, divisor = scale == 0 ? 1.0 : scale;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = static_cast<float>(clamp(core(x[i] / divisor) * scale, -limit, limit));
}

INLINE void each_ternary(const Plan& p, const float* x, float* y, int64_t n, double scale) {
    const double limit = p.limit, threshold = p.low;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const double v = x[i], kept = v < 0 ? -scale : scale;
        const double rounded = std::fabs(v) > threshold ? clamp(kept, -limit, limit) + 0.0 : 0.0;
        y[i] = static_cast<float>(v == v ? rounded : v);
    }
}

struct Scales {
    double largest[BATCH], poison[BATCH], scale[BATCH], divisor[BATCH];
};

INLINE void measure_block(const float* x, int64_t n, double& largest, double& poison) {
    uint32_t bits = largest_bits(x, n);
    poison = bits < INFINITE ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    if (bits >= INFINITE) bits = largest_finite_bits(x, n);
    largest = bit_cast<float>(bits);
}

// `count` blocks of `size` elements; the last one has `last_size`. Scales are found for all of
// them at once, which keeps the chain of operations behind a scale out of the elements' way.
template <class CoreOf, class ScaleOf>
INLINE void batch(const Plan& p, const float* x, float* y, int64_t size, int64_t count,
                  int64_t last_size) {
    const CoreOf core(p);
    const double limit = p.limit;
    const int64_t whole = last_size == size ? count : count - 1;
    Scales s;
    for (int64_t b = 0; b < whole; b++)
        measure_block(x + b * size, size, s.largest[b], s.poison[b]);
    if (whole < count)
        measure_block(x + whole * size, last_size, s.largest[whole], s.poison[whole]);
    INDEPENDENT
    for (int64_t b = 0; b < count; b++)
        ScaleOf::find(p, s.largest[b], s.poison[b], s.scale[b], s.divisor[b]);
    const auto round = [&](int64_t b, int64_t n) __attribute__((always_inline)) {
        const float* from = x + b * size;
        float* to = y + b * size;
        const double scale = s.scale[b], divisor = s.divisor[b];
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            const double rounded = core(ScaleOf::divide(from[i], divisor)) * scale;
            to[i] = static_cast<float>(clamp(rounded, -limit, limit));
        }
    };
    for (int64_t b = 0; b < whole; b++) round(b, size);
    if (whole < count) round(whole, last_size);
}

// A block size known to the compiler is worth a factor of two.
template <class CoreOf, class ScaleOf>
INLINE void blocks(const Plan& p, const float* x, float* y, int64_t n) {
    const int64_t size = p.block, total = (n + size - 1) / size;
    for (int64_t first = 0; first < total; first += BATCH) {
        const int64_t count = total - first < BATCH ? total - first : BATCH, at = first * size;
        const int64_t left = n - at - (count - 1) * size, last = left < size ? left : size;
        if (size == 32)
            batch<CoreOf, ScaleOf>(p, x + at, y + at, 32, count, last);
        else if (size == 16)
            batch<CoreOf, ScaleOf>(p, x + at, y + at, 16, count, last);
        else
            batch<CoreOf, ScaleOf>(p, x + at, y + at, size, count, last);
    }
}

}  // namespace
