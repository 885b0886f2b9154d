// Loops over blocks, which compute the scale of each block.
#pragma once

#include "loops.h"

namespace {

constexpr int64_t BATCH = 256;  // blocks whose scales are computed together

struct Scales {
    double largest[BATCH], poison[BATCH], scale[BATCH], divisor[BATCH];
    template <class ScaleOf> INLINE_MEMBER void find(const Plan& p, int64_t count) {
        INDEPENDENT
        for (int64_t b = 0; b < count; b++)
            ScaleOf::find(p, largest[b], poison[b], scale[b], divisor[b]);
    }
};

// A NaN scale saturates nothing: its range is NaN, and every comparison is false.
template <class ScaleOf>
INLINE void mark_block(const Plan& p, const float* x, uint8_t* mask, int64_t n, double scale,
                       double divisor) {
    const double none = scale - scale, low = p.lowest_unsaturated + none, high = p.highest_unsaturated + none;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const double v = ScaleOf::divide(x[i], divisor);
        mask[i] = (v < low) | (v > high);
    }
}

// `count` blocks of `size` elements; the last one is what is left. Scales are found for all of
// them at once, which keeps the chain of operations behind a scale out of the elements' way.
template <class CoreOf, class ScaleOf>
INLINE void batch(const Plan& p, const Part& part, int64_t size) {
    const CoreOf core(p);
    const double limit = p.limit;
    const int64_t count = (part.n + size - 1) / size, whole = part.n / size;
    Scales s;
    for (int64_t b = 0; b < whole; b++)
        measure_block(part.x + b * size, size, p.magnitude_mask, s.largest[b], s.poison[b]);
    if (whole < count)
        measure_block(part.x + whole * size, part.n - whole * size, p.magnitude_mask,
                      s.largest[whole], s.poison[whole]);
    s.template find<ScaleOf>(p, count);
    const auto round = [&](int64_t b, int64_t n) __attribute__((always_inline)) {
        const float* from = part.x + b * size;
        float* to = part.y + b * size;
        const double scale = s.scale[b], divisor = s.divisor[b];
        if (part.mask) mark_block<ScaleOf>(p, from, part.mask + b * size, n, scale, divisor);
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            const double rounded = core(ScaleOf::divide(from[i], divisor)) * scale;
            to[i] = static_cast<float>(clamp(rounded, -limit, limit));
        }
    };
    for (int64_t b = 0; b < whole; b++) round(b, size);
    if (whole < count) round(whole, part.n - whole * size);
}

// A block size known to the compiler is worth a factor of two.
template <class CoreOf, class ScaleOf> INLINE void blocks(const Plan& p, const Part& part) {
    const int64_t size = p.block;
    for (int64_t at = 0; at < part.n; at += BATCH * size) {
        const int64_t left = part.n - at, n = left < BATCH * size ? left : BATCH * size;
        const Part some = {part.x + at, part.y + at, part.mask ? part.mask + at : nullptr, n,
                           part.scales};
        if (size == 32)
            batch<CoreOf, ScaleOf>(p, some, 32);
        else if (size == 16)
            batch<CoreOf, ScaleOf>(p, some, 16);
        else
            batch<CoreOf, ScaleOf>(p, some, size);
    }
}

// Columns next to each other, as tall as a block of several rows: at most BATCH of them.
struct Strip {
    const float* x;
    float* y;
    uint8_t* mask;
    int64_t rows, columns, stride, mask_stride;
};

// The largest magnitude in each column, as bits: of all, or of the finite ones.
template <bool IS_FINITE>
INLINE void largest_of_columns(const Strip& s, int32_t mask, int32_t* largest) {
    for (int64_t column = 0; column < s.columns; column++) largest[column] = 0;
    for (int64_t row = 0; row < s.rows; row++) {
        const float* x = s.x + row * s.stride;
        INDEPENDENT
        for (int64_t column = 0; column < s.columns; column++) {
            int32_t bits = bit_cast<int32_t>(x[column]) & mask;
            if (IS_FINITE) bits = bits < INFINITE ? bits : 0;
            largest[column] = bits > largest[column] ? bits : largest[column];
        }
    }
}

INLINE int32_t largest_of(const int32_t* bits, int64_t n) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) largest = bits[i] > largest ? bits[i] : largest;
    return largest;
}

// p.block columns wide blocks, side by side.
INLINE int64_t measure_strip(const Plan& p, const Strip& strip, Scales& s) {
    int32_t all[BATCH], finite[BATCH];
    largest_of_columns<false>(strip, p.magnitude_mask, all);
    const bool is_wild = largest_of(all, strip.columns) >= INFINITE;
    if (is_wild) largest_of_columns<true>(strip, p.magnitude_mask, finite);
    const int32_t* counted = is_wild ? finite : all;
    int64_t count = 0;
    for (int64_t first = 0; first < strip.columns; first += p.block, count++) {
        const int64_t left = strip.columns - first, n = left < p.block ? left : p.block;
        s.poison[count] = largest_of(all + first, n) < INFINITE ? 0.0 : NOT_A_NUMBER;
        s.largest[count] = bit_cast<float>(largest_of(counted + first, n));
    }
    return count;
}

template <class CoreOf, class ScaleOf> INLINE void strips(const Plan& p, const Strip& strip) {
    const CoreOf core(p);
    const double limit = p.limit;
    Scales s;
    s.template find<ScaleOf>(p, measure_strip(p, strip, s));
    double scale[BATCH], divisor[BATCH];
    for (int64_t first = 0, block = 0; first < strip.columns; first += p.block, block++)
        for (int64_t i = first; i < first + p.block && i < strip.columns; i++) {
            scale[i] = s.scale[block];
            divisor[i] = s.divisor[block];
        }
    for (int64_t row = 0; row < strip.rows; row++) {
        const float* x = strip.x + row * strip.stride;
        float* y = strip.y + row * strip.stride;
        uint8_t* mask = strip.mask ? strip.mask + row * strip.mask_stride : nullptr;
        if (mask) {
            INDEPENDENT
            for (int64_t i = 0; i < strip.columns; i++) {
                const double v = ScaleOf::divide(x[i], divisor[i]), none = scale[i] - scale[i];
                mask[i] = (v < p.lowest_unsaturated + none) | (v > p.highest_unsaturated + none);
            }
        }
        INDEPENDENT
        for (int64_t i = 0; i < strip.columns; i++) {
            const double rounded = core(ScaleOf::divide(x[i], divisor[i])) * scale[i];
            y[i] = static_cast<float>(clamp(rounded, -limit, limit));
        }
    }
}

}  // namespace
