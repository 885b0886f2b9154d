// Gradients of learned scales and of the values that they round.

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

// Where x lies within the elements' range its gradient is that of the result, and the scale's gets
// (rounded - x) of it; beyond, nothing and `rounded`. Returns what the scale's gets, times the scale.
// `of_x` may be `rounded`.
CLONES double gradients_of_tile(const float* grad, const float* x, const float* rounded,
                                float* of_x, int64_t n, float low, float high) {
    float sums[LANES] = {};
    const int64_t whole = n / LANES * LANES;
    for (int64_t first = 0; first < whole; first += LANES) {
        float kept[LANES];
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t i = first + lane;
            const int32_t is_within = ~-((x[i] <= low) | (x[i] >= high));
            kept[lane] = masked(grad[i], is_within);
            sums[lane] += grad[i] * (rounded[i] - masked(x[i], is_within));
        }
        for (int64_t lane = 0; lane < LANES; lane++) of_x[first + lane] = kept[lane];
    }
    double total = 0;
    for (float sum : sums) total += sum;
    for (int64_t i = whole; i < n; i++) {
        const int32_t is_within = ~-((x[i] <= low) | (x[i] >= high));
        total += grad[i] * (rounded[i] - masked(x[i], is_within));
        of_x[i] = masked(grad[i], is_within);
    }
    return total;
}

}  // namespace

extern "C" {

// Writes gradients of `x` to `of_x`, and those of the scales, times the scales, to `of_scales`, one
// for each line, or one in all for one scale. Values are rounded again in the cache, which takes
// less time than reading them. Sums do not depend on the number of threads. Returns 0, or 1 for an
// unknown plan.
int chop_lsq_gradients(const Plan* plan, const float* grad, const float* x, const float* scales,
                       float* of_x, double* of_scales, int64_t lines, int64_t length, float lowest,
                       float largest, int32_t threads) {
    const Tiling tiling(1, lines, length);
    std::vector<double> sums(tiling.count);
    std::atomic<int> status{0};
    parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            const Tile tile = tiling[i];
            const float scale = scales[tile.line];
            const int64_t at = tile.start;
            double given = scale;
            if (chop_fake_quantize(plan, x + at, of_x + at, nullptr, &given, FLOAT32, 1,
                                   tile.elements, 1))
                status = 1;
            sums[i] = gradients_of_tile(grad + at, x + at, of_x + at, of_x + at, tile.elements,
                                        lowest * scale, largest * scale);
        }
    });
    for (int64_t line = 0; line < lines; line++) {
        of_scales[line] = 0;
        for (int64_t i = 0; i < tiling.per_line; i++)
            of_scales[line] += sums[line * tiling.per_line + i];
    }
    return status;
}
}
