// Rounding with learned offsets, and their update, each in one pass over memory.
// chop.quantization.rounding.learned_weights defines them; the results are equal.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "numeric.h"
#include "threads.h"

namespace {

constexpr float REACH = 0.5f;         // largest offset, in steps
constexpr float ROUNDING = 12582912;  // 1.5 * 2^23: adding it leaves an integer

// One weight as groups of `size` values, in steps of the initial scales. Pointers are null for what
// the format does not have.
struct Weight {
    const float* points;     // positions of the float values, minus zero points
    float* offsets;          // of each value
    const float* ratios;     // of each group's scale to the initial one
    const float* zeros;      // zero point of each group
    const int64_t* anchors;  // position in each group of the value that determines the scale
    const float* least;      // smallest element there, with its sign; 0 for no limit
    const uint8_t* held;     // of each value, whether it has the element in `elements`
    const float* elements;   // minus zero points
    int64_t groups, size;
    float low, high;  // smallest and largest element
};

// Numbers of one group: positions by the current scale, the same with offsets, rounded elements.
struct Group {
    float *exact, *wanted, *codes;
};

// The nearest integer, ties to even, of a number below 2^22. Its sign stays for zeros.
INLINE float nearest(float v) {
    const float rounded = (v + ROUNDING) - ROUNDING;
    return bit_cast<float>(bit_cast<int32_t>(rounded) | (bit_cast<int32_t>(v) & ~0x7fffffff));
}

INLINE void round_group(const Weight& x, int64_t number, Group group) {
    const int64_t at = number * x.size, size = x.size;
    const float *points = x.points + at, *offsets = x.offsets + at, low = x.low, high = x.high;
    const float ratio = x.ratios ? x.ratios[number] : 1, zero = x.zeros ? x.zeros[number] : 0;
    INDEPENDENT
    for (int64_t i = 0; i < size; i++) {
        group.exact[i] = points[i] / ratio;
        group.wanted[i] = offsets[i] + group.exact[i];
        group.codes[i] = nearest(clamp(group.wanted[i] + zero, low, high));
    }
    if (x.anchors) {
        float& code = group.codes[x.anchors[number]];
        const float least = x.least[number];
        if (least > 0) code = code < least ? least : code;
        if (least < 0) code = code > least ? least : code;
    }
    if (x.zeros)
        INDEPENDENT
        for (int64_t i = 0; i < size; i++) group.codes[i] -= zero;
    if (x.held)
        INDEPENDENT
        for (int64_t i = 0; i < size; i++)
            group.codes[i] = x.held[at + i] ? x.elements[at + i] : group.codes[i];
}

CLONES void write_values(const Weight& x, int64_t number, Group group, float scale, float* y) {
    round_group(x, number, group);
    INDEPENDENT
    for (int64_t i = 0; i < x.size; i++) y[i] = group.codes[i] * scale;
}

INLINE float sign(float v) { return static_cast<float>((v > 0) - (v < 0)); }

// In the order of chop.formats.ordered_sum.
INLINE float sum_in_halves(float* terms, int64_t n) {
    while (n > 1) {
        const int64_t half = (n + 1) / 2;
        INDEPENDENT
        for (int64_t i = 0; i < n - half; i++) terms[i] += terms[half + i];
        n = half;
    }
    return terms[0];
}

// Updates offsets against the signs of the gradient. Returns the gradient's part along the group's
// scale, up to a positive factor.
CLONES float learn_group(const Weight& x, int64_t number, Group group, const float* gradient,
                         float scale_sign, float rate) {
    round_group(x, number, group);
    const int64_t at = number * x.size;
    float* offsets = x.offsets + at;
    INDEPENDENT
    for (int64_t i = 0; i < x.size; i++) {
        const float given = clamp(gradient[i] * scale_sign, -FLT_MAX, FLT_MAX);
        const float pull = given != given ? 0 : given;
        // 1 where values are neither saturated nor held, else 0.
        float moves = std::fabs(group.wanted[i] - group.codes[i]) <= REACH;
        if (x.held) moves = x.held[at + i] ? 0 : moves;
        offsets[i] = clamp(offsets[i] - rate * (sign(pull) * moves), -REACH, REACH);
        group.exact[i] = pull * (group.codes[i] - group.exact[i] * moves);
    }
    return x.ratios ? sum_in_halves(group.exact, x.size) : 0;
}

// Calls work(number, group) for each group, with memory for its numbers.
template <class Work> void over_groups(const Weight& x, int32_t threads, Work work) {
    parallel(x.groups, x.groups * x.size, threads, [&](int64_t first, int64_t last) {
        std::vector<float> memory(3 * x.size);
        const Group group = {&memory[0], &memory[x.size], &memory[2 * x.size]};
        for (int64_t number = first; number < last; number++) work(number, group);
    });
}

}  // namespace

extern "C" {

// Writes rounded values by the scale of each group.
void chop_values_with_offsets(const Weight* x, const float* scales, float* y, int32_t threads) {
    prefer_huge_pages(y, x->groups * x->size * static_cast<int64_t>(sizeof(float)));
    over_groups(*x, threads, [=](int64_t number, Group group) {
        write_values(*x, number, group, scales[number], y + number * x->size);
    });
}

// Takes a step of `rate` against the signs of a gradient. Writes the sign of each scale's gradient.
void chop_learn_offsets(const Weight* x, const float* gradient, const float* scale_signs,
                        float* turns, float rate, int32_t threads) {
    over_groups(*x, threads, [=](int64_t number, Group group) {
        turns[number] = sign(learn_group(*x, number, group, gradient + number * x->size,
                                         scale_signs[number], rate));
    });
}
}
