// Gradients of learned scales and of the values that they round.

#include <algorithm>
#include <atomic>
#include <vector>

#include "numeric.h"
#include "plan.h"
#include "threads.h"

extern "C" int chop_fake_quantize(const Plan* plan, const void* x, void* y, uint8_t* mask,
                                  double* scales, int32_t type, int64_t count, int64_t length,
                                  int32_t threads);

namespace {

constexpr int64_t LANES = 16;  // sums side by side, since additions may not be reordered

// A number where a mask has every bit, 0 where it has none: a branch would be mispredicted.
INLINE float masked(float v, int32_t mask) { return bit_cast<float>(bit_cast<int32_t>(v) & mask); }

// Bits of an integer for a number within the elements' range, whose gradient is that of the result,
// and 0 beyond. NaN is within.
INLINE int32_t within(float x, float low, float high) { return ~-((x <= low) | (x >= high)); }

// Returns whether a number may lie beyond the range. NaN may.
CLONES bool may_have_beyond(const float* x, int64_t n, float low, float high) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) largest = std::max(largest, magnitude_bits(x[i]));
    return !(bit_cast<float>(largest) < std::min(-low, high));
}

// Adds up slope(i) for each i below n.
template <class Slope> INLINE double sum_in_lanes(int64_t n, Slope slope) {
    float sums[LANES] = {};
    const int64_t whole = n / LANES * LANES;
    for (int64_t first = 0; first < whole; first += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) sums[lane] += slope(first + lane);
    double total = 0;
    for (float sum : sums) total += sum;
    for (int64_t i = whole; i < n; i++) total += slope(i);
    return total;
}

// Returns the gradient of the scale, times the scale: that of the result times `rounded`, minus x
// where it is within the range.
CLONES double gradient_of_scale(const float* grad, const float* x, const float* rounded,
                                int64_t n) {
    return sum_in_lanes(n, [=](int64_t i) { return grad[i] * (rounded[i] - x[i]); });
}

CLONES double gradient_of_scale(const float* grad, const float* x, const float* rounded, int64_t n,
                                float low, float high) {
    return sum_in_lanes(n, [=](int64_t i) {
        return grad[i] * (rounded[i] - masked(x[i], within(x[i], low, high)));
    });
}

CLONES void gradient_of_values(const float* grad, const float* x, float* of_x, int64_t n, float low,
                               float high) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) of_x[i] = masked(grad[i], within(x[i], low, high));
}

}  // namespace

extern "C" {

// Writes gradients of the scales, times the scales, to `of_scales`, one for each line, or one in all
// for one scale. If a number may lie beyond the range, `has_beyond` is 1, and the gradient of `x` is
// written to `of_x`; else it is `grad`. Values are rounded again in the cache, which takes less time
// than reading them. Sums do not depend on the number of threads. Returns 0, or 1 for an unknown
// plan.
int chop_lsq_gradients(const Plan* plan, const float* grad, const float* x, const float* scales,
                       float* of_x, double* of_scales, int32_t* has_beyond, int64_t lines,
                       int64_t length, float lowest, float largest, int32_t threads) {
    const Tiling tiling(1, lines, length);
    std::vector<double> sums(tiling.count);
    std::vector<uint8_t> beyond(tiling.count);
    std::atomic<int> status{0};
    parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
        std::vector<float> rounded(std::min(tiling.size, length));
        for (int64_t i = first; i < last; i++) {
            const Tile tile = tiling[i];
            const float scale = scales[tile.line], low = lowest * scale, high = largest * scale;
            const int64_t at = tile.start, n = tile.elements;
            double given = scale;
            if (chop_fake_quantize(plan, x + at, rounded.data(), nullptr, &given, FLOAT32, 1, n, 1))
                status = 1;
            beyond[i] = may_have_beyond(x + at, n, low, high);
            if (beyond[i]) {
                sums[i] = gradient_of_scale(grad + at, x + at, rounded.data(), n, low, high);
                gradient_of_values(grad + at, x + at, of_x + at, n, low, high);
            } else {
                sums[i] = gradient_of_scale(grad + at, x + at, rounded.data(), n);
            }
        }
    });
    for (int64_t line = 0; line < lines; line++) {
        of_scales[line] = 0;
        for (int64_t i = 0; i < tiling.per_line; i++)
            of_scales[line] += sums[line * tiling.per_line + i];
    }
    // Tiles that have every number within the range are copied only if others do not.
    *has_beyond = std::count(beyond.begin(), beyond.end(), 1) > 0;
    if (*has_beyond)
        parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; i++) {
                const Tile tile = tiling[i];
                if (!beyond[i]) std::copy_n(grad + tile.start, tile.elements, of_x + tile.start);
            }
        });
    return status;
}
}
