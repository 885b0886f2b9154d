// Lists of steps: the operations of one generated token of a decoder, in one call.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codes.h"
#include "numeric.h"

extern "C" void chop_linear(const Codes* codes, const void* packed, const void* scales,
                            const float* x, const float* bias, float* y, int64_t rows,
                            int64_t outputs, int64_t columns, int32_t rounds, int32_t threads);

namespace {

constexpr int DIMS = 5;
constexpr int64_t LANES = 16;  // sums side by side, since additions may not be reordered

// Python reads the names, so that it has the numbers of the library that runs the steps.
#define EACH_KIND(X) \
    X(COPY) X(COPY_INTEGER) X(NEG) X(RSQRT) X(SQUARE) X(SILU) X(SIGMOID) X(TANH) X(EXP) X(COS) \
    X(SIN) X(RELU) X(GELU) X(GELU_TANH) X(ADD) X(SUB) X(MUL) X(DIV) X(MEAN) X(PRODUCT) X(LINEAR) \
    X(ATTEND)
#define AS_ENUMERATOR(kind) kind,
#define AS_TEXT(kind) #kind " "
enum Kind : int32_t { EACH_KIND(AS_ENUMERATOR) };

// `kernels/cpu/steps.py` has the same fields.
struct Step {
    int32_t kind;
    int32_t layer;             // ATTEND: number of the cache
    int64_t shape[DIMS];       // of the result. MEAN: of the operand. PRODUCT: with the sum's length.
                               // ATTEND: (1, 1, heads, groups, size)
    int64_t strides[3][DIMS];  // of two operands and the result, in elements
    const void* operands[3];   // null: `scalar`. ATTEND: query, key, value. LINEAR: x, bias
    void* result;
    float scalar;              // second operand, or factor of scores
    int64_t outputs, columns;  // LINEAR, as the next two lines
    const Codes* codes;
    const void *packed, *scales;
};

// exp by Cephes' polynomial on [-ln 2 / 2, ln 2 / 2], which compilers vectorize. `clamp` passes NaN.
INLINE float exponential(float x) {
    x = clamp(x, -87.0f, 88.0f);
    const float power = std::floor(x * 1.44269504f + 0.5f);
    const float r = (x - power * 0.693359375f) + power * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return y * bit_cast<float>((static_cast<int32_t>(power) + 127) << 23);
}

template <int32_t kind> INLINE float applied(float a, float b) {
    switch (kind) {
        case NEG: return -a;
        case RSQRT: return 1.0f / std::sqrt(a);
        case SQUARE: return a * a;
        case SILU: return a / (1.0f + exponential(-a));
        case SIGMOID: return 1.0f / (1.0f + exponential(-a));
        case TANH: return std::tanh(a);
        case EXP: return std::exp(a);
        case COS: return std::cos(a);
        case SIN: return std::sin(a);
        case RELU: return a < 0 ? 0 : a;  // NaN passes
        case GELU: return 0.5f * a * (1.0f + std::erf(a * 0.70710678f));
        case GELU_TANH:
            return 0.5f * a * (1.0f + std::tanh(0.79788456f * (a + 0.044715f * a * a * a)));
        case ADD: return a + b;
        case SUB: return a - b;
        case MUL: return a * b;
        case DIV: return a / b;
        default: return a;
    }
}

// One line of results; operands advance by `da` and `db` elements.
template <int32_t kind>
INLINE void line_of(const float* a, int64_t da, const float* b, int64_t db, float* y, int64_t dy,
                    int64_t n) {
    if (dy == 1 && da == 1 && db == 1)
        for (int64_t i = 0; i < n; i++) y[i] = applied<kind>(a[i], b[i]);
    else if (dy == 1 && da == 1 && db == 0)
        for (int64_t i = 0; i < n; i++) y[i] = applied<kind>(a[i], *b);
    else
        for (int64_t i = 0; i < n; i++) y[i * dy] = applied<kind>(a[i * da], b[i * db]);
}

// Calls work(offsets of operand, operand, result) for each line of the last dimension.
template <class Work> INLINE void each_line(const Step& s, Work work) {
    int64_t at[3] = {}, index[DIMS] = {};
    if (std::count(s.shape, s.shape + DIMS - 1, 0)) return;
    for (;;) {
        work(at[0], at[1], at[2]);
        int d = DIMS - 2;
        for (; d >= 0; d--) {
            for (int o = 0; o < 3; o++) at[o] += s.strides[o][d];
            if (++index[d] < s.shape[d]) break;
            for (int o = 0; o < 3; o++) at[o] -= s.strides[o][d] * s.shape[d];
            index[d] = 0;
        }
        if (d < 0) return;
    }
}

template <int32_t kind> CLONES void elementwise(const Step& s) {
    const float* a = static_cast<const float*>(s.operands[0]);
    const float* b = s.operands[1] ? static_cast<const float*>(s.operands[1]) : &s.scalar;
    float* y = static_cast<float*>(s.result);
    const int last = DIMS - 1;
    each_line(s, [&](int64_t i, int64_t j, int64_t k) {
        line_of<kind>(a + i, s.strides[0][last], b + j, s.strides[1][last], y + k,
                      s.strides[2][last], s.shape[last]);
    });
}

void copy_integers(const Step& s) {
    const int64_t* a = static_cast<const int64_t*>(s.operands[0]);
    float* y = static_cast<float*>(s.result);
    const int last = DIMS - 1;
    each_line(s, [&](int64_t i, int64_t, int64_t k) {
        for (int64_t n = 0; n < s.shape[last]; n++)
            y[k + n * s.strides[2][last]] = static_cast<float>(a[i + n * s.strides[0][last]]);
    });
}

INLINE float sum_of(const float* sums) {
    float total = 0;
    for (int64_t lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

INLINE float dot(const float* a, const float* b, int64_t n) {
    float sums[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) sums[lane] += a[i + lane] * b[i + lane];
    float total = sum_of(sums);
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

CLONES void means(const Step& s) {
    const float* a = static_cast<const float*>(s.operands[0]);
    float* y = static_cast<float*>(s.result);
    const int64_t n = s.shape[DIMS - 1], step = s.strides[0][DIMS - 1];
    each_line(s, [&](int64_t i, int64_t, int64_t k) {
        float sums[LANES] = {}, rest = 0;
        int64_t j = 0;
        if (step == 1)
            for (; j + LANES <= n; j += LANES)
                for (int64_t lane = 0; lane < LANES; lane++) sums[lane] += a[i + j + lane];
        for (; j < n; j++) rest += a[i + j * step];
        y[k] = (sum_of(sums) + rest) / static_cast<float>(n);
    });
}

// Small products of floats, such as positions by frequencies: sums along the last dimension.
CLONES void products(const Step& s) {
    const float* a = static_cast<const float*>(s.operands[0]);
    const float* b = static_cast<const float*>(s.operands[1]);
    float* y = static_cast<float*>(s.result);
    const int last = DIMS - 1;
    each_line(s, [&](int64_t i, int64_t j, int64_t k) {
        float total = 0;
        for (int64_t n = 0; n < s.shape[last]; n++)
            total += a[i + n * s.strides[0][last]] * b[j + n * s.strides[1][last]];
        y[k] = total;
    });
}

// Writes the token's keys and values into the cache, (heads, tokens, size) each, and attends from
// `groups` queries per head to all tokens up to `position`.
CLONES void attend(const Step& s, float* keys, float* values, int64_t tokens, int64_t position,
                   float* scores) {
    const int64_t heads = s.shape[2], groups = s.shape[3], size = s.shape[4];
    const float* query = static_cast<const float*>(s.operands[0]);
    const float* key = static_cast<const float*>(s.operands[1]);
    const float* value = static_cast<const float*>(s.operands[2]);
    for (int64_t h = 0; h < heads; h++) {
        float *k = keys + h * tokens * size, *v = values + h * tokens * size;
        std::memcpy(k + position * size, key + h * size, size * sizeof(float));
        std::memcpy(v + position * size, value + h * size, size * sizeof(float));
        for (int64_t g = 0; g < groups; g++) {
            const float* q = query + (h * groups + g) * size;
            float* y = static_cast<float*>(s.result) + (h * groups + g) * size;
            float largest = -INFINITY, total = 0;
            for (int64_t t = 0; t <= position; t++) {
                scores[t] = dot(q, k + t * size, size) * s.scalar;
                largest = scores[t] > largest ? scores[t] : largest;
            }
            for (int64_t t = 0; t <= position; t++) scores[t] = exponential(scores[t] - largest);
            for (int64_t t = 0; t <= position; t++) total += scores[t];
            for (int64_t n = 0; n < size; n++) y[n] = 0;
            for (int64_t t = 0; t <= position; t++) {
                const float weight = scores[t] / total;
                for (int64_t n = 0; n < size; n++) y[n] += weight * v[t * size + n];
            }
        }
    }
}

#define ELEMENTWISE(kind) case kind: return elementwise<kind>(s)
void run(const Step& s, int32_t threads) {
    switch (s.kind) {
        ELEMENTWISE(COPY); ELEMENTWISE(NEG); ELEMENTWISE(RSQRT); ELEMENTWISE(SQUARE);
        ELEMENTWISE(SILU); ELEMENTWISE(SIGMOID); ELEMENTWISE(TANH); ELEMENTWISE(EXP);
        ELEMENTWISE(COS); ELEMENTWISE(SIN); ELEMENTWISE(RELU); ELEMENTWISE(GELU);
        ELEMENTWISE(GELU_TANH); ELEMENTWISE(ADD); ELEMENTWISE(SUB); ELEMENTWISE(MUL);
        ELEMENTWISE(DIV);
        case COPY_INTEGER: return copy_integers(s);
        case MEAN: return means(s);
        case PRODUCT: return products(s);
        case LINEAR:
            return chop_linear(s.codes, s.packed, s.scales,
                               static_cast<const float*>(s.operands[0]),
                               static_cast<const float*>(s.operands[1]),
                               static_cast<float*>(s.result), 1, s.outputs, s.columns, 0, threads);
        default: return;
    }
}

}  // namespace

extern "C" {

// Names of the kinds of steps, in the order of their numbers.
const char* chop_step_kinds() { return EACH_KIND(AS_TEXT); }

int32_t chop_step_bytes() { return sizeof(Step); }

// Runs a list of steps for the token at `position`. `keys` and `values` are the caches of each
// layer, (heads, tokens, size), float32.
void chop_run_steps(const Step* steps, int64_t count, float* const* keys, float* const* values,
                    int64_t tokens, int64_t position, int32_t threads) {
    std::vector<float> scores(position + 1);
    for (int64_t i = 0; i < count; i++) {
        const Step& s = steps[i];
        if (s.kind == ATTEND)
            attend(s, keys[s.layer], values[s.layer], tokens, position, scores.data());
        else
            run(s, threads);
    }
}
}
