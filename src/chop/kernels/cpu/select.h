// Order statistics of the finite magnitudes of a line.
#pragma once

#include <algorithm>
#include <vector>

#include "scales.h"
#include "threads.h"

namespace {

constexpr int64_t SAMPLE = 1 << 16;    // values that narrow the search
constexpr int64_t PER_SAMPLE = 16;     // a sample is at most this fraction of a line
constexpr int64_t RUN = 16;            // values next to each other that are drawn together
constexpr int64_t WORTH_SAMPLING = 1 << 10;
constexpr int32_t LARGEST_FINITE = INFINITE - 1;

// Keys between two, both included, and how many lie above or count at all: negative ones do not.
struct Between {
    std::vector<int32_t> keys;
    int64_t above = 0, count = 0;
};

// As unsigned numbers, keys below the lowest wrap around and lie above all of the range.
INLINE bool is_in_range(int32_t key, int32_t low, int32_t count) {
    return static_cast<uint32_t>(key) - static_cast<uint32_t>(low) < static_cast<uint32_t>(count);
}

CLONES void count_keys(const float* x, int64_t n, int32_t mask, int32_t high, Between& found) {
    int32_t above = 0, count = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t key = bit_cast<int32_t>(x[i]) & mask;
        above += is_in_range(key, high + 1, LARGEST_FINITE - high);
        count += is_in_range(key, 0, INFINITE);
    }
    found.above += above;
    found.count += count;
}

Between between(const float* x, int64_t n, int32_t mask, int32_t low, int32_t high) {
    Between found;
    int64_t inside = 0;
    for (int64_t first = 0; first < n; first += TILE) {
        const int64_t last = std::min(n, first + TILE);
        count_keys(x + first, last - first, mask, high, found);
        if (static_cast<int64_t>(found.keys.size()) < inside + last - first)
            found.keys.resize(2 * inside + last - first);
        int32_t* keys = found.keys.data();
        for (int64_t i = first; i < last; i++) {
            const int32_t key = bit_cast<int32_t>(x[i]) & mask;
            keys[inside] = key;
            inside += is_in_range(key, low, high - low + 1);
        }
    }
    found.keys.resize(inside);
    return found;
}

Between between(const float* x, int64_t n, int32_t mask, int32_t low, int32_t high, int threads) {
    const int64_t tiles = (n + TILE - 1) / TILE, parts = parts_of(tiles, n, threads);
    std::vector<Between> of_part(parts);
    parallel(parts, n, threads, [&](int64_t first, int64_t last) {
        for (int64_t part = first; part < last; part++) {
            const int64_t start = tiles * part / parts * TILE;
            const int64_t end = std::min(n, tiles * (part + 1) / parts * TILE);
            of_part[part] = between(x + start, end - start, mask, low, high);
        }
    });
    Between all = std::move(of_part[0]);
    for (int64_t part = 1; part < parts; part++) {
        const Between& other = of_part[part];
        all.keys.insert(all.keys.end(), other.keys.begin(), other.keys.end());
        all.above += other.above;
        all.count += other.count;
    }
    return all;
}

CLONES int64_t count_from(const int32_t* keys, int64_t n, int32_t least) {
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++) found += keys[i] >= least;
    return found;
}

CLONES void range_of(const int32_t* keys, int64_t n, int32_t& low, int32_t& high) {
    int32_t smallest = INFINITE, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        smallest = std::min(smallest, keys[i]);
        largest = std::max(largest, keys[i]);
    }
    low = smallest;
    high = largest;
}

// The key with `rank` larger ones. Counting is so fast that halving the range, some twenty times,
// takes a quarter of what std::nth_element does.
int32_t from_the_top(const std::vector<int32_t>& keys, int64_t rank) {
    const int64_t n = keys.size();
    int32_t low, high;
    range_of(keys.data(), n, low, high);
    while (low < high) {
        const int32_t middle = high - (high - low) / 2;
        int64_t found = 0;
        for (int64_t i = 0; i < n; i += TILE)
            found += count_from(keys.data() + i, std::min(TILE, n - i), middle);
        if (found > rank)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Keys that the one looked for most likely lies between: five standard deviations of the rank that
// a sample gives it. Places are drawn, since a regular stride would see only some columns.
void look_around(const float* x, int64_t n, int32_t mask, int64_t rank, int32_t& low,
                 int32_t& high) {
    const int64_t drawn = std::min(SAMPLE, n / PER_SAMPLE) / RUN * RUN;
    std::vector<int32_t> keys;
    uint64_t state = 1;
    for (int64_t run = 0; run < drawn / RUN; run++) {
        state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth, MMIX
        const float* place = x + (state >> 33) % (n - RUN);
        for (int64_t i = 0; i < RUN; i++) {
            const int32_t key = bit_cast<int32_t>(place[i]) & mask;
            if (is_in_range(key, 0, INFINITE)) keys.push_back(key);
        }
    }
    const int64_t count = keys.size();
    const double share = rank < 0 ? 0.5 * count / drawn : static_cast<double>(rank) / n;
    const int64_t reach = 5 * std::sqrt(share * (1 - share) * drawn) + 1;
    const int64_t from = share * drawn - reach, to = share * drawn + reach;
    if (from >= 0 && from < count) high = from_the_top(keys, from);
    if (to >= 0 && to < count) low = from_the_top(keys, to);
}

// The finite magnitude with `rank` larger ones: of equal ones the first counts as the larger. A
// negative rank is half of their number, rounded down, which is the lower median. 0 where there
// are too few.
float order_statistic(const float* x, int64_t n, int32_t mask, int64_t rank, int threads) {
    int32_t low = 0, high = LARGEST_FINITE;
    if (n >= WORTH_SAMPLING) look_around(x, n, mask, rank, low, high);
    for (;;) {
        Between found = between(x, n, mask, low, high, threads);
        const int64_t inside = found.keys.size();
        const int64_t wanted = rank < 0 ? found.count / 2 : rank;
        if (wanted >= found.count) return 0;
        if (wanted < found.above) {
            low = high + 1;
            high = LARGEST_FINITE;
        } else if (wanted >= found.above + inside) {
            high = low - 1;
            low = 0;
        } else {
            return bit_cast<float>(from_the_top(found.keys, wanted - found.above));
        }
    }
}

}  // namespace
