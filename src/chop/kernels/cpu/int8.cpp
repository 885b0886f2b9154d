// What stands around a product of 8-bit integers: rounding activations, scaling sums.

#include <atomic>
#include <cmath>

#include "numeric.h"
#include "statistics.h"
#include "threads.h"

namespace {

// Returns whether there is a NaN, which has no code: it becomes 0, as the reference stores it.
CLONES bool codes_of(const float* x, int8_t* codes, int64_t n, double divisor, double low,
                     double high) {
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        const double v = clamp(std::rint(x[i] / divisor), low, high);
        found |= x[i] != x[i];
        codes[i] = static_cast<int8_t>(static_cast<int32_t>(v == v ? v : 0));
    }
    return found;
}

CLONES void rescale(const int32_t* sums, float x_scale, const float* scales, int64_t stride,
                    const float* bias, float* y, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = sums[i] * (x_scale * scales[i * stride]) + (bias ? bias[i] : 0.0f);
}

}  // namespace

extern "C" {

// The integers of rows whose scale is given, or follows their largest finite magnitude if it is 0:
// float32(amax/high), at least `smallest`, and `of_zeros` in a row of zeros. Returns 1 if there is a
// NaN.
int chop_int8_codes(const float* x, int8_t* codes, float* scales, int64_t rows, int64_t columns,
                    double low, double high, float given, float smallest, float of_zeros,
                    int32_t threads) {
    std::atomic<bool> found{false};
    parallel(rows, rows * columns, threads, [=, &found](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++) {
            const float* from = x + row * columns;
            float scale = given;
            if (given == 0) {
                const double amax = bit_cast<float>(largest_of_tile(from, columns));
                const double wanted = amax / high;
                scale = amax == 0 ? of_zeros : wanted < smallest ? smallest : float(wanted);
            }
            scales[row] = scale;
            if (codes_of(from, codes + row * columns, columns, scale, low, high)) found = true;
        }
    });
    return found;
}

// y = sums times both scales, plus `bias` if there is one. `stride` is 0 for one scale of weights.
void chop_int8_rescale(const int32_t* sums, const float* x_scales, const float* scales,
                       int64_t stride, const float* bias, float* y, int64_t rows, int64_t outputs,
                       int32_t threads) {
    parallel(rows, rows * outputs, threads, [=](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++)
            rescale(sums + row * outputs, x_scales[row], scales, stride, bias, y + row * outputs,
                    outputs);
    });
}
}
