// Selects the x86-64 vector loops to compile: those of this machine, if it is known.
#pragma once

#include <algorithm>
#include <cfloat>
#include <type_traits>
#include <vector>

#include "codes.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(CHOP_ONE_INSTRUCTION_SET)
#include <immintrin.h>
#define CHOP_HAS_AVX2 (CHOP_LEVEL >= 3)
#define CHOP_HAS_AVX512 (CHOP_LEVEL >= 4)
#else
#define CHOP_HAS_AVX2 0
#define CHOP_HAS_AVX512 0
#endif

namespace {

constexpr int64_t CACHE_LINE = 64;  // bytes
constexpr int64_t BLOCK = 32;  // columns that are read together where a group holds them
// Of decoded rows: columns, rows of x that they are multiplied with at once, and how far rows are apart, so that they do not
// fall on each other's places in a cache.
constexpr int64_t SPAN = 1024, X_ROWS = 120, NUMBERS = SPAN + 32;
constexpr int64_t DECODED_ROWS = 5;  // of x, from which codes are decoded a span at a time

// How many bytes ahead codes are fetched, where a tile of rows has so many: the processor does not
// foresee the next tile, nor the next page.
INLINE int64_t ahead_of(int64_t tile_bytes) { return std::max<int64_t>(tile_bytes, 3072); }

// A packed matrix.
struct Packed {
    const Codes& codes;
    const uint8_t* packed;
    const void* scales;
    int64_t columns;
};

// A row's values, and the same in bfloat16.
using RowOf = void (*)(const Packed&, int64_t row, float* out);
using HalfRowOf = void (*)(const Packed&, int64_t row, uint16_t* out);
// Products of `outputs` rows from row `first` on with rows of x, written to y[m * stride + n].
using ProductsOf = void (*)(const Packed&, int64_t first, int64_t outputs, const float* x,
                            int64_t rows, float* y, int64_t stride);

struct Ways {
    RowOf row;
    HalfRowOf half_row;            // or null: values are rounded after they are read
    ProductsOf products, decoded;  // decoding at each use; and a span at a time
    ProductsOf in_bfloat16;        // as `decoded`, of numbers that are rounded to it; or null
    int64_t decoded_rows;          // of x: from here on these are faster than `products`
    int32_t few_rows;              // of x: up to here they are as fast as decoding the whole first
    bool pairs = false;  // x of `products` is to have even columns before odd ones in every block
};

}  // namespace
