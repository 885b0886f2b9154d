// Rounding of activations and scaling of sums around products of 8-bit integers.

#include <atomic>
#include <cfloat>
#include <cmath>

#include "numeric.h"
#include "statistics.h"
#include "threads.h"
#include "whole_products.h"
#include "whole_products_vnni.h"

namespace {

constexpr int64_t ROUNDED_AT_ONCE = 64;
// Of a quotient of at most 128 in float32 by an inverse: three roundings and some more. Larger ones
// are cut to the range, on whichever side of a tie they lie.
constexpr float QUOTIENT_ERROR = 128 * 4 * 0x1p-24f;

template <class Code>
INLINE void round_exactly(const float* x, Code* codes, int64_t n, double divisor, double low,
                          double high) {
    for (int64_t i = 0; i < n; i++) {
        const double v = clamp(std::rint(x[i] / divisor), low, high);
        codes[i] = static_cast<Code>(static_cast<int32_t>(v == v ? v : 0));
    }
}

// Returns whether there is a NaN, which has no code: it becomes 0, as the reference stores it.
// Quotients are those of float32 where none is near a tie.
template <class Code>
INLINE bool round_line(const float* x, Code* codes, int64_t length, double divisor, double low,
                       double high) {
    int32_t found = 0;
    const float inverse = 1 / static_cast<float>(divisor), least = low, most = high;
    const bool is_normal = inverse >= FLT_MIN && inverse <= FLT_MAX;
    for (int64_t first = 0; first < length; first += ROUNDED_AT_ONCE) {
        const int64_t left = length - first, n = left < ROUNDED_AT_ONCE ? left : ROUNDED_AT_ONCE;
        int32_t near_a_tie = 0;
        for (int64_t i = first; i < first + n; i++) {
            const float v = x[i] * inverse, rounded = std::rint(v);
            near_a_tie |= std::fabs(std::fabs(v - rounded) - 0.5f) < QUOTIENT_ERROR;
            found |= x[i] != x[i];
            codes[i] = static_cast<Code>(static_cast<int32_t>(
                v == v ? clamp(rounded, least, most) : 0.0f));
        }
        if (near_a_tie || !is_normal) round_exactly(x + first, codes + first, n, divisor, low, high);
    }
    return found;
}

CLONES bool codes_of(const float* x, int8_t* codes, int64_t n, double divisor, double low,
                     double high) {
    return round_line(x, codes, n, divisor, low, high);
}

CLONES bool codes_of(const float* x, int16_t* codes, int64_t n, double divisor, double low,
                     double high) {
    return round_line(x, codes, n, divisor, low, high);
}

// Rounding of activations to integers. The scale of a line is given, or follows its largest finite
// magnitude if it is 0: float32(amax/high), at least `smallest`, and `zero_scale` in a line of zeros.
// Same fields as in chop.kernels.cpu.int8.
struct Rule {
    double low, high;
    float given, smallest, zero_scale;

    float scale_of(float largest) const {
        if (given != 0) return given;
        const double wanted = static_cast<double>(largest) / high;
        return largest == 0 ? zero_scale : wanted < smallest ? smallest : static_cast<float>(wanted);
    }
    float scale_of(const float* x, int64_t n) const {
        return scale_of(given != 0 ? 0.0f : bit_cast<float>(largest_of_tile(x, n)));
    }
};

// Weights, and how the rows that they are multiplied by are rounded: each by itself or, if they are
// one line, all of them together. Same fields as in chop.kernels.cpu.int8.
struct Product {
    Rule rule;
    Weights weights;
    int64_t outputs;
    int32_t is_one_line;
};

CLONES void rescale(const int32_t* sums, float x_scale, const float* scales, int64_t stride,
                    const float* bias, float* y, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = sums[i] * (x_scale * scales[i * stride]) + (bias ? bias[i] : 0.0f);
}

CLONES int32_t sum_of_codes(const int8_t* codes, int64_t n) {
    int32_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += codes[i];
    return sum;
}

bool has_vnni() {
#if CHOP_HAS_AVX512
    return vnni::is_supported();
#else
    return false;
#endif
}

#if CHOP_HAS_AVX512
void multiply_whole(const Weights& w, const ByteRows& x, int64_t first, int64_t last, float* y,
                    int64_t outputs) {
    vnni::multiply_whole(w, x, first, last, y, outputs);
}
#endif

// Workspace of the loops in bytes.
template <class Code> int64_t workspace(int64_t rows, int64_t columns, int32_t threads) {
    const int64_t count = std::min(rows, rows_at_once(columns));
    const int64_t stride = WholeRows<Code>::stride_of(columns);
    const int64_t panels = sizeof(Code) == 1 ? 0 : panel_bytes(count, columns);
    return count * (stride * sizeof(Code) + sizeof(float) + sizeof(int32_t)) + threads * panels;
}

template <class Code>
int linear(const Product& product, const float* x, float* y, int64_t rows, int32_t threads) {
    const Rule& rule = product.rule;
    const Weights& weights = product.weights;
    const int64_t columns = weights.columns, outputs = product.outputs;
    const bool is_one_line = product.is_one_line;
    const float of_all = is_one_line ? rule.scale_of(x, rows * columns) : 0.0f;
    const int64_t at_once = rows_at_once(columns);
    WholeRows<Code> whole(std::min(rows, at_once), columns);
    for (int64_t row = 0; row < rows; row += at_once) {
        whole.count = std::min(rows - row, at_once);
        std::atomic<bool> found{false};
        parallel(whole.count, whole.count * columns, threads, [&](int64_t first, int64_t last) {
            for (int64_t m = first; m < last; m++) {
                const float* from = x + (row + m) * columns;
                whole.scales[m] = is_one_line ? of_all : rule.scale_of(from, columns);
                if (codes_of(from, whole.row(m), columns, whole.scales[m], rule.low, rule.high))
                    found = true;
                if constexpr (sizeof(Code) == 1) whole.sums[m] = sum_of_codes(whole.row(m), columns);
            }
        });
        if (found) return 1;
        const int64_t cost = whole.count * outputs * columns / 4;
        parallel(outputs, cost, threads, [&](int64_t first, int64_t last) {
            multiply_whole(weights, whole, first, last, y + row * outputs, outputs);
        });
    }
    return 0;
}

}  // namespace

extern "C" {

// Computes the integers and the scale of each line. Returns 1 if there is a NaN.
int chop_int8_codes(const float* x, int8_t* codes, float* scales, int64_t lines, int64_t length,
                    const Rule* rule, int32_t threads) {
    std::atomic<bool> found{false};
    parallel(lines, lines * length, threads, [=, &found](int64_t first, int64_t last) {
        for (int64_t line = first; line < last; line++) {
            const float* from = x + line * length;
            scales[line] = rule->scale_of(from, length);
            if (codes_of(from, codes + line * length, length, scales[line], rule->low, rule->high))
                found = true;
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

// y (rows, outputs) = the rounded x (rows, columns) times the transposed weights, scaled, plus their
// bias. Returns 1 if there is a NaN in x: y is then undefined.
int chop_int8_linear(const Product* product, const float* x, float* y, int64_t rows,
                     int32_t threads) {
#if CHOP_HAS_AVX512
    if (has_vnni()) return linear<int8_t>(*product, x, y, rows, threads);
#endif
    return linear<int16_t>(*product, x, y, rows, threads);
}

// Workspace of `chop_int8_linear` in bytes.
int64_t chop_int8_workspace(int64_t rows, int64_t columns, int32_t threads) {
    return has_vnni() ? workspace<int8_t>(rows, columns, threads)
                      : workspace<int16_t>(rows, columns, threads);
}
}
