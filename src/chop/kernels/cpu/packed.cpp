// Decodes packed weights, and multiplies by them without storing the decoded weight.

#include <algorithm>
#include <memory>
#include <vector>

#include "halves.h"
#include "plan.h"
#include "threads.h"
#include "vectors_avx2.h"
#include "vectors_avx512.h"

namespace {

constexpr int32_t FEW_ROWS = 8;    // of x: portable loops multiply them faster than decoding first

void portable_row(const Packed& w, int64_t row, float* out) {
    read_row(w.codes, w.packed, w.scales, row, w.columns, out);
}

CLONES float portable_product(const float* w, const float* x, int64_t columns) {
    constexpr int64_t SUMS = 32;
    float sums[SUMS] = {}, sum = 0;
    int64_t at = 0;
    for (; at + SUMS <= columns; at += SUMS)
        for (int64_t i = 0; i < SUMS; i++) sums[i] += w[at + i] * x[at + i];
    for (; at < columns; at++) sum += w[at] * x[at];
    for (float part : sums) sum += part;
    return sum;
}

void portable_products(const Packed& w, int64_t first, int64_t outputs, const float* x,
                       int64_t rows, float* y, int64_t stride) {
    std::vector<float> values(w.columns);
    for (int64_t n = 0; n < outputs; n++) {
        portable_row(w, first + n, values.data());
        for (int64_t m = 0; m < rows; m++)
            y[m * stride + n] = portable_product(values.data(), x + m * w.columns, w.columns);
    }
}

// True if rows begin at whole bytes and vectors fit groups without much waste.
bool suits_vectors(const Packed& w, int64_t lanes) {
    const bool whole_bytes = w.columns * w.codes.width % 8 == 0 && w.codes.group % 2 == 0;
    return whole_bytes && (w.codes.group >= w.columns || w.codes.group >= lanes);
}

Ways ways_of([[maybe_unused]] const Packed& w) {
    Ways found{portable_row,      nullptr, portable_products, portable_products, nullptr, FEW_ROWS, FEW_ROWS};
#if CHOP_HAS_AVX512
    if (avx512::is_supported() && suits_vectors(w, avx512::LANES) && avx512::find_ways(w, found))
        return found;
#endif
#if CHOP_HAS_AVX2
    if (avx2::is_supported() && suits_vectors(w, avx2::LANES)) avx2::find_ways(w, found);
#endif
    return found;
}

// The rows of x with even columns before odd ones in every 32, the last few left as they are. They
// begin at a cache line, since loads across two of them cost twice.
struct PairedRows {
    std::vector<float> memory;
    float* rows;
    PairedRows(const float* x, int64_t count, int64_t columns)
        : memory(count * columns + CACHE_LINE / sizeof(float)) {
        void* from = memory.data();
        size_t space = memory.size() * sizeof(float);
        rows = static_cast<float*>(
            std::align(CACHE_LINE, count * columns * sizeof(float), from, space));
        std::copy(x, x + count * columns, rows);
        for (int64_t row = 0; row < count; row++)
            for (int64_t at = row * columns; at + BLOCK <= (row + 1) * columns; at += BLOCK)
                for (int64_t i = 0; i < BLOCK / 2; i++) {
                    rows[at + i] = x[at + 2 * i];
                    rows[at + BLOCK / 2 + i] = x[at + 2 * i + 1];
                }
    }
};

// Rows `first` to `last`, written from y on.
void decode(const Packed& w, const Ways& ways, int64_t first, int64_t last, float* y) {
    for (int64_t row = first; row < last; row++, y += w.columns) ways.row(w, row, y);
}

void decode(const Packed& w, const Ways& ways, int64_t first, int64_t last, uint16_t* y) {
    std::vector<float> buffer(ways.half_row ? 0 : w.columns);
    for (int64_t row = first; row < last; row++, y += w.columns)
        if (ways.half_row) {
            ways.half_row(w, row, y);
        } else {
            ways.row(w, row, buffer.data());
            narrow(buffer.data(), y, w.columns);
        }
}

}  // namespace

extern "C" {

// Writes the values of `rows` rows from row `start` on to y, of that type. Returns 0, or 1 for an unknown
// type.
int chop_decode(const Codes* codes, const void* packed, const void* scales, void* y, int32_t type,
                int64_t start, int64_t rows, int64_t columns, int32_t threads) {
    const Packed w{*codes, static_cast<const uint8_t*>(packed), scales, columns};
    const Ways ways = ways_of(w);
    const int64_t size = type == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    if (type != FLOAT32 && type != BFLOAT16) return 1;
    prefer_huge_pages(y, rows * columns * size);
    parallel(rows, rows * columns, threads, [=](int64_t first, int64_t last) {
        const int64_t at = first * columns;
        if (type == BFLOAT16)
            decode(w, ways, start + first, start + last, static_cast<uint16_t*>(y) + at);
        else
            decode(w, ways, start + first, start + last, static_cast<float*>(y) + at);
    });
    return 0;
}

// Limits of `chop_linear`: the largest number of rows of x for which it is as fast as decoding the whole
// weight first, the number of rows from which it decodes spans, and whether it can round them to bfloat16.
void chop_row_limits(const Codes* codes, int64_t columns, int32_t* limits) {
    const Ways ways = ways_of(Packed{*codes, nullptr, nullptr, columns});
    limits[0] = ways.few_rows;
    limits[1] = ways.decoded_rows;
    limits[2] = ways.in_bfloat16 != nullptr;
}

// Workspace of `chop_linear` in bytes.
int64_t chop_linear_workspace(const Codes* codes, int64_t rows, int64_t columns, int32_t threads) {
    const Ways ways = ways_of(Packed{*codes, nullptr, nullptr, columns});
    if (ways.pairs && rows < ways.decoded_rows) return rows * columns * sizeof(float);
    if (ways.decoded == portable_products || rows < ways.decoded_rows) return 0;
    return threads * (std::min(rows, X_ROWS) + 5) * NUMBERS * sizeof(float);
}

// y (rows, outputs) = x (rows, columns) times the transposed weights, plus `bias` if there is one.
// `rounds`: of many rows, x and the weights may be rounded to bfloat16.
void chop_linear(const Codes* codes, const void* packed, const void* scales, const float* x,
                 const float* bias, float* y, int64_t rows, int64_t outputs, int64_t columns,
                 int32_t rounds, int32_t threads) {
    const Packed w{*codes, static_cast<const uint8_t*>(packed), scales, columns};
    const Ways ways = ways_of(w);
    const bool decodes = rows >= ways.decoded_rows, pairs = ways.pairs && !decodes;
    const ProductsOf many = rounds && ways.in_bfloat16 ? ways.in_bfloat16 : ways.decoded;
    const ProductsOf products = decodes ? many : ways.products;
    const PairedRows paired(x, pairs ? rows : 0, columns);
    if (pairs) x = paired.rows;
    parallel(outputs, rows * outputs * columns, threads, [=](int64_t first, int64_t last) {
        products(w, first, last - first, x, rows, y + first, outputs);
        for (int64_t m = 0; bias && m < rows; m++)
            for (int64_t n = first; n < last; n++) y[m * outputs + n] += bias[n];
    });
}
}
