// Searches for the scales of groups. chop.formats defines them; the results are bit-identical.

#include "searches.h"

namespace {

constexpr double EPSILON = 1.0 / (1 << 23), TINY = 0x1p-126;  // of float32
constexpr double LARGEST_BFLOAT16 = 0x1.fep127;
constexpr double MEAN_SHARE = 0.5;

// The first of the elements of largest magnitude.
INLINE Lanes largest_of(const Lanes* x, int64_t size) {
    Lanes largest = x[0];
    for (int64_t i = 1; i < size; i++) {
        const Lanes v = x[i], magnitude = v < 0 ? -v : v, before = largest < 0 ? -largest : largest;
        largest = magnitude > before ? v : largest;
    }
    return largest;
}

// SearchedScale.representable of a scale.
INLINE double representable(double scale, double limit) {
    const double magnitude = clamp(std::fabs(scale), scale == 0 ? EPSILON : TINY, limit);
    return std::copysign(nearest_bfloat16(magnitude), scale + 0.0);
}

// Codes times the scale, minus x.
struct Rounding {
    Lanes scale, inverse, low, high;
    INLINE_MEMBER Lanes error(const Lanes& x) const {
        return nearest(bounded(x * inverse, low, high)) * scale - x;
    }
};

INLINE Lanes sum_of_squares(const Rounding& rounding, const Lanes* x, int64_t size, Lanes* terms) {
    const int64_t half = (size + 1) / 2, rest = size - half;
    for (int64_t i = 0; i < rest; i++) {
        const Lanes first = rounding.error(x[i]), second = rounding.error(x[half + i]);
        terms[i] = first * first + second * second;
    }
    if (rest < half) {
        const Lanes middle = rounding.error(x[rest]);
        terms[rest] = middle * middle;
    }
    sum_in_halves(terms, half);
    return terms[0];
}

INLINE Lanes sum_of_errors(const Rounding& rounding, const Lanes* x, int64_t size, Lanes* terms) {
    for (int64_t i = 0; i < size; i++) terms[i] = rounding.error(x[i]);
    sum_in_halves(terms, size);
    return terms[0];
}

struct Candidates {
    int64_t lowest_code, count;
    const double* divisors;
};

// SearchedScale._search; `terms` is memory for `size` numbers.
CLONES void search_scales(const Candidates& candidates, const Lanes* x, int64_t size, Lanes* terms,
                          double* best_scales) {
    const double lowest = candidates.lowest_code, limit = LARGEST_BFLOAT16 / -lowest;
    const Lanes largest = largest_of(x, size), zero = {};
    Lanes best = zero, least = zero + INFINITY;
    Rounding rounding = {zero, zero, zero + lowest, zero - lowest - 1};
    for (int64_t i = 0; i < candidates.count; i++) {
        const Lanes wanted = -largest / candidates.divisors[i];
        for (int64_t lane = 0; lane < LANES; lane++)
            rounding.scale[lane] = representable(wanted[lane], limit);
        rounding.inverse = 1.0 / rounding.scale;
        Lanes total = sum_of_squares(rounding, x, size, terms);
        if (lowest == -2) {
            const Lanes sum = sum_of_errors(rounding, x, size, terms);
            total += sum * sum * MEAN_SHARE;
        }
        if (!i) best = rounding.scale;
        best = total < least ? rounding.scale : best;
        least = total < least ? total : least;
    }
    for (int64_t lane = 0; lane < LANES; lane++) best_scales[lane] = best[lane];
}

}  // namespace

extern "C" {

// Writes the best scale of each of `groups` rows of `size` elements, at least 1 of each.
void chop_search_scales(const double* rows, double* scales, int64_t groups, int64_t size,
                        int64_t lowest_code, const double* divisors, int64_t count,
                        int32_t threads) {
    const Candidates candidates = {lowest_code, count, divisors};
    const int64_t tiles = (groups + LANES - 1) / LANES;
    parallel(tiles, groups * size * count, threads, [=](int64_t first, int64_t last) {
        std::vector<Element> x_memory(size), memory(size);
        Lanes *x = &x_memory[0].lanes, *terms = &memory[0].lanes;
        for (int64_t tile = first; tile < last; tile++) {
            const int64_t start = tile * LANES, lanes = std::min(LANES, groups - start);
            double best[LANES];
            load_finite(rows + start * size, size, lanes, x);
            search_scales(candidates, x, size, terms, best);
            std::copy(best, best + lanes, scales + start);
        }
    });
}
}
