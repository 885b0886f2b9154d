// Gradients of learned scales and of the values that they round.

#include <algorithm>
#include <atomic>
#include <vector>

#include "loops.h"
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

// Values of a line with one scale, and the gradients of their rounded values.
struct Values {
    const float *grad, *x;
    float low, high;  // the elements' range, times the scale
    // Returns what value i adds to the gradient of the scale, times the scale: the gradient times
    // `rounded`, minus x where it is within the range.
    INLINE_MEMBER float slope(int64_t i, float rounded) const {
        return grad[i] * (rounded - masked(x[i], within(x[i], low, high)));
    }
};

// Sums of slopes side by side, since additions may not be reordered, and the largest magnitude.
struct Sums {
    float lanes[LANES];
    int32_t largest;
};

// Adds the slopes of `n` values, a multiple of LANES, that are rounded already.
CLONES void add_slopes(const Values& v, const float* rounded, int64_t n, Sums& sums) {
    for (int64_t first = 0; first < n; first += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t i = first + lane;
            sums.lanes[lane] += v.slope(i, rounded[i]);
            sums.largest = std::max(sums.largest, magnitude_bits(v.x[i]));
        }
}

// Rounds values as well. Returns false, and adds nothing, if a code is not certain.
CLONES bool round_and_add_slopes(const ProductCore& core, const Values& v, int64_t n, Sums& sums) {
    float lanes[LANES];
    int32_t largest[LANES] = {}, farthest[LANES] = {};
    std::copy(sums.lanes, sums.lanes + LANES, lanes);
    for (int64_t first = 0; first < n; first += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t i = first + lane;
            const float rounded = core.round(v.x[i], farthest[lane]);
            lanes[lane] += v.slope(i, rounded);
            largest[lane] = std::max(largest[lane], magnitude_bits(v.x[i]));
        }
    if (!core.is_certain(*std::max_element(farthest, farthest + LANES))) return false;
    std::copy(lanes, lanes + LANES, sums.lanes);
    sums.largest = std::max(sums.largest, *std::max_element(largest, largest + LANES));
    return true;
}

CLONES void gradient_of_values(const float* grad, const float* x, float* of_x, int64_t n, float low,
                               float high) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) of_x[i] = masked(grad[i], within(x[i], low, high));
}

// Adds up the slopes of a tile, in `total`, and finds its largest magnitude. Values are rounded again
// in registers or in the cache, which takes less time than reading them. Returns false for an unknown
// plan.
bool sum_slopes(const Plan& plan, double scale, const Values& v, int64_t n, Sums& sums,
                double& total) {
    const bool fits = plan.core == FIXED && ProductCore::fits(plan, scale);
    const ProductCore core(plan, fits ? scale : 1.0);
    float rounded[CHUNK];
    const int64_t whole = n / LANES * LANES;
    const auto round = [&](int64_t at, int64_t count) {
        return !chop_fake_quantize(&plan, v.x + at, rounded, nullptr, &scale, FLOAT32, 1, count, 1);
    };
    for (int64_t at = 0; at < whole; at += CHUNK) {
        const Values part = {v.grad + at, v.x + at, v.low, v.high};
        const int64_t count = std::min(CHUNK, whole - at);
        if (fits && round_and_add_slopes(core, part, count, sums)) continue;
        if (!round(at, count)) return false;
        add_slopes(part, rounded, count, sums);
    }
    total = 0;
    for (float sum : sums.lanes) total += sum;
    if (whole == n) return true;
    if (!round(whole, n - whole)) return false;
    for (int64_t i = whole; i < n; i++) {
        total += v.slope(i, rounded[i - whole]);
        sums.largest = std::max(sums.largest, magnitude_bits(v.x[i]));
    }
    return true;
}

}  // namespace

extern "C" {

// Writes gradients of the scales, times the scales, to `of_scales`, one for each line, or one in all
// for one scale. If a number may lie beyond the range, `has_beyond` is 1, and the gradient of `x` is
// written to `of_x`; else it is `grad`. Sums do not depend on the number of threads. Returns 0, or 1
// for an unknown plan.
int chop_lsq_gradients(const Plan* plan, const float* grad, const float* x, const float* scales,
                       float* of_x, double* of_scales, int32_t* has_beyond, int64_t lines,
                       int64_t length, float lowest, float largest, int32_t threads) {
    const Tiling tiling(1, lines, length);
    std::vector<double> sums(tiling.count);
    std::vector<uint8_t> beyond(tiling.count);
    std::atomic<int> status{0};
    parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            const Tile tile = tiling[i];
            const float scale = scales[tile.line], low = lowest * scale, high = largest * scale;
            const Values v = {grad + tile.start, x + tile.start, low, high};
            Sums found = {};
            if (!sum_slopes(*plan, scale, v, tile.elements, found, sums[i])) status = 1;
            beyond[i] = !(bit_cast<float>(found.largest) < std::min(-low, high));  // NaN may be
            if (beyond[i])
                gradient_of_values(v.grad, v.x, of_x + tile.start, tile.elements, low, high);
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
