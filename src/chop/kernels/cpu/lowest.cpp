// Selection of the lowest magnitudes of a tensor.

#include <atomic>

#include "select.h"

namespace {

constexpr int32_t EVERY_BIT = 0x7fffffff;  // of a magnitude

CLONES int64_t finite_of(const float* x, int64_t n) {
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++) found += magnitude_bits(x[i]) < INFINITE;
    return found;
}

CLONES int64_t mark_below(const float* x, uint8_t* marks, int64_t n, int32_t threshold) {
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool is_below = magnitude_bits(x[i]) < threshold;
        marks[i] = is_below;
        found += is_below;
    }
    return found;
}

CLONES void drop(const float* x, const uint8_t* marks, float* y, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = bit_cast<float>(bit_cast<uint32_t>(x[i]) & (uint32_t{marks[i]} - 1));
}

// The sum of count(start, elements) over all tiles.
template <class Count> int64_t over_tiles(int64_t n, int threads, Count count) {
    const Tiling tiling(1, 1, n);
    std::atomic<int64_t> sum{0};
    parallel(tiling.count, n, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) sum += count(tiling[i].start, tiling[i].elements);
    });
    return sum;
}

}  // namespace

extern "C" {

// Marks the `count` lowest magnitudes by 1, of equal ones the first, and writes x without them to
// `y` if it is not null. Returns 1, and writes nothing, where some of them are not finite.
int chop_lowest_magnitudes(const float* x, uint8_t* marks, float* y, int64_t n, int64_t count,
                           int32_t threads) {
    const int64_t finite = over_tiles(
        n, threads, [=](int64_t start, int64_t elements) { return finite_of(x + start, elements); });
    if (count > finite) return 1;
    const int32_t threshold =
        bit_cast<int32_t>(order_statistic(x, n, EVERY_BIT, finite - count, threads));
    int64_t missing = count - over_tiles(n, threads, [=](int64_t start, int64_t elements) {
                          return mark_below(x + start, marks + start, elements, threshold);
                      });
    for (int64_t i = 0; missing > 0; i++) {
        const bool is_tied = magnitude_bits(x[i]) == threshold;
        marks[i] |= is_tied;
        missing -= is_tied;
    }
    if (y)
        over_tiles(n, threads, [=](int64_t start, int64_t elements) {
            drop(x + start, marks + start, y + start, elements);
            return 0;
        });
    return 0;
}
}
