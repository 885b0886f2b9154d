// Decodes packed weights, and multiplies by them without writing them out.

#include <algorithm>
#include <memory>
#include <vector>

#include "codes.h"
#include "codes_avx512.h"
#include "halves.h"
#include "plan.h"
#include "threads.h"

namespace {

constexpr int64_t ROWS_AT_ONCE = 4;     // of activations, for one reading of a row of weights
constexpr int32_t FEW_ROWS = 8, MORE_ROWS = 32;
constexpr size_t CACHE_LINE = 64;       // bytes
constexpr int64_t PAIRED = 32;          // columns that are parted into even and odd ones
constexpr int64_t OUTPUTS_AT_ONCE = 4;  // rows of weights, for one reading of fewer activations

// A packed matrix.
struct Packed {
    const Codes& codes;
    const uint8_t* packed;
    const void* scales;
    int64_t columns;
};

// A row's values.
using RowOf = void (*)(const Packed&, int64_t row, float* out);
// Products of `outputs` rows from row `first` on with rows of x, written to y[m * stride + n].
using ProductsOf = void (*)(const Packed&, int64_t first, int64_t outputs, const float* x,
                            int64_t rows, float* y, int64_t stride);

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

#if defined(CHOP_AVX512)
template <class Reader, bool ZEROS = false> void row16(const Packed& w, int64_t row, float* out) {
    const uint8_t* from = w.packed + row * w.columns * w.codes.width / 8;
    read_row16<Reader, ZEROS>(w.codes, from, w.scales, row * w.codes.groups_per_row, w.columns, out);
}

template <class Reader, bool ZEROS, int OUTPUTS, int ROWS>
void block16(const Packed& w, int64_t first, const float* x, float* y, int64_t stride) {
    const int64_t row_bytes = w.columns * w.codes.width / 8;
    const Operands from{w.packed + first * row_bytes,        w.scales, x, row_bytes,
                        first * w.codes.groups_per_row, w.columns};
    float sums[OUTPUTS * ROWS];
    products16<Reader, OUTPUTS, ROWS, ZEROS>(w.codes, from, sums);
    for (int n = 0; n < OUTPUTS; n++)
        for (int m = 0; m < ROWS; m++)
            y[m * stride + n] = sums[n * ROWS + m] * w.codes.factor;
}

template <class Reader, bool ZEROS = false>
void products16_of(const Packed& w, int64_t first, int64_t outputs, const float* x, int64_t rows,
                   float* y, int64_t stride) {
    int64_t m = 0;
    for (; m + ROWS_AT_ONCE <= rows; m += ROWS_AT_ONCE) {
        const float* from = x + m * w.columns;
        float* to = y + m * stride;
        int64_t n = 0;
        for (; n + 2 <= outputs; n += 2)
            block16<Reader, ZEROS, 2, ROWS_AT_ONCE>(w, first + n, from, to + n, stride);
        if (n < outputs)
            block16<Reader, ZEROS, 1, ROWS_AT_ONCE>(w, first + n, from, to + n, stride);
    }
    for (; m < rows; m++) {
        const float* from = x + m * w.columns;
        float* to = y + m * stride;
        int64_t n = 0;
        for (; n + OUTPUTS_AT_ONCE <= outputs; n += OUTPUTS_AT_ONCE)
            block16<Reader, ZEROS, OUTPUTS_AT_ONCE, 1>(w, first + n, from, to + n, stride);
        for (; n < outputs; n++) block16<Reader, ZEROS, 1, 1>(w, first + n, from, to + n, stride);
    }
}

// Whether rows begin at whole bytes and groups are cut into vectors without much waste.
bool suits_vectors(const Packed& w) {
    static const bool has_avx512 = __builtin_cpu_supports("avx512f") &&
                                   __builtin_cpu_supports("avx512bw") &&
                                   __builtin_cpu_supports("avx512dq") &&
                                   __builtin_cpu_supports("avx512vl") &&
                                   __builtin_cpu_supports("bmi2");
    const bool whole_bytes = w.columns * w.codes.width % 8 == 0 && w.codes.group % 2 == 0;
    return has_avx512 && whole_bytes && (w.codes.group >= w.columns || w.codes.group >= VECTOR);
}
#endif

struct Ways {
    RowOf row;
    ProductsOf products;
    int32_t few_rows = FEW_ROWS;  // of x: up to here it is faster than decoding first
    bool pairs = false;           // x is to have even columns before odd ones in every 32 of a row
};

#if defined(CHOP_AVX512)
template <bool ZEROS> Ways nibbles_of(const Packed& w) {
    if (w.codes.group % PAIRED == 0 || w.codes.group >= w.columns)
        return {row16<NibbleReader, ZEROS>, products16_of<PairedNibbleReader, ZEROS>, MORE_ROWS,
                true};
    return {row16<NibbleReader, ZEROS>, products16_of<NibbleReader, ZEROS>, MORE_ROWS};
}
#endif

Ways ways_of(const Packed& w) {
#if defined(CHOP_AVX512)
    if (suits_vectors(w)) {
        const bool has_zeros = w.codes.scale_storage == SCALES_AND_ZEROS;
        if (w.codes.reading == WHOLE)
            return {row16<WholeReader>, products16_of<WholeReader>, MORE_ROWS};
        if (w.codes.reading == FLOAT)
            return {row16<FloatReader>, products16_of<FloatReader>, MORE_ROWS};
        if (w.codes.reading == TABLE && w.codes.width == 8)
            return has_zeros ? Ways{row16<ByteReader, true>, products16_of<ByteReader, true>}
                             : Ways{row16<ByteReader>, products16_of<ByteReader>};
        if (w.codes.reading == TABLE && w.codes.width == 4)
            return has_zeros ? nibbles_of<true>(w) : nibbles_of<false>(w);
    }
#endif
    (void)w;
    return {portable_row, portable_products};
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
            for (int64_t at = row * columns; at + PAIRED <= (row + 1) * columns; at += PAIRED)
                for (int64_t i = 0; i < PAIRED / 2; i++) {
                    rows[at + i] = x[at + 2 * i];
                    rows[at + PAIRED / 2 + i] = x[at + 2 * i + 1];
                }
    }
};

template <class Half>
void decode_half(const Packed& w, RowOf read, int64_t first, int64_t last, Half* y) {
    std::vector<float> buffer(w.columns);
    for (int64_t row = first; row < last; row++) {
        read(w, row, buffer.data());
        narrow(buffer.data(), y + row * w.columns, w.columns);
    }
}

}  // namespace

extern "C" {

// Writes the values of `rows` rows to y, of that type. Returns 0, or 1 for an unknown type.
int chop_decode(const Codes* codes, const void* packed, const void* scales, void* y, int32_t type,
                int64_t rows, int64_t columns, int32_t threads) {
    const Packed w{*codes, static_cast<const uint8_t*>(packed), scales, columns};
    const RowOf read = ways_of(w).row;
    const int64_t size = type == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    if (type != FLOAT32 && type != BFLOAT16) return 1;
    prefer_huge_pages(y, rows * columns * size);
    parallel(rows, rows * columns, threads, [=](int64_t first, int64_t last) {
        if (type == BFLOAT16)
            decode_half(w, read, first, last, static_cast<uint16_t*>(y));
        else
            for (int64_t row = first; row < last; row++)
                read(w, row, static_cast<float*>(y) + row * columns);
    });
    return 0;
}

// How many rows of x `chop_linear` multiplies faster than decoding first.
int32_t chop_few_rows(const Codes* codes, int64_t columns) {
    return ways_of(Packed{*codes, nullptr, nullptr, columns}).few_rows;
}

// y (rows, outputs) = x (rows, columns) times the transposed weights, plus `bias` if there is one.
void chop_linear(const Codes* codes, const void* packed, const void* scales, const float* x,
                 const float* bias, float* y, int64_t rows, int64_t outputs, int64_t columns,
                 int32_t threads) {
    const Packed w{*codes, static_cast<const uint8_t*>(packed), scales, columns};
    const Ways ways = ways_of(w);
    const ProductsOf products = ways.products;
    const PairedRows paired(x, ways.pairs ? rows : 0, columns);
    if (ways.pairs) x = paired.rows;
    parallel(outputs, rows * outputs * columns, threads, [=](int64_t first, int64_t last) {
        products(w, first, last - first, x, rows, y + first, outputs);
        for (int64_t m = 0; bias && m < rows; m++)
            for (int64_t n = first; n < last; n++) y[m * outputs + n] += bias[n];
    });
}
}
