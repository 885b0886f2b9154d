// Codes of 8 and 4 bits sixteen at a time.
#pragma once

#include "codes.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(CHOP_ONE_INSTRUCTION_SET)
#define CHOP_AVX512 1
#include <immintrin.h>

#if defined(__clang__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi2")))
#else
#define AVX512 __attribute__((target("arch=x86-64-v4")))
#endif
#define AVX512_INLINE AVX512 INLINE_MEMBER

namespace {

constexpr int64_t VECTOR = 16;
constexpr int64_t AHEAD = 3072;  // bytes: rows are too short for the processor to foresee the next

AVX512 INLINE __m512 bounded16(__m512 v) {
    // The second operand is what comes out if one is NaN.
    return _mm512_max_ps(_mm512_set1_ps(-FLT_MAX), _mm512_min_ps(_mm512_set1_ps(FLT_MAX), v));
}

// Readers give sixteen values from column `at` of a row on, or, at its end, the first of them.
// `pair` gives thirty-two: a first half and a second one, or, of paired nibbles, the even columns and
// the odd ones.
struct Pair {
    __m512 first, second;
};

AVX512 INLINE __m128i sixteen_bytes(const uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

struct WholeReader {
    AVX512_INLINE explicit WholeReader(const Codes&) {}
    AVX512_INLINE __m512 values(__m128i codes) const {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
    }
    AVX512_INLINE __m512 all(const uint8_t* row, int64_t at) const {
        return values(sixteen_bytes(row + at));
    }
    AVX512_INLINE __m512 some(const uint8_t* row, int64_t at, __mmask16 kept) const {
        return values(_mm_maskz_loadu_epi8(kept, row + at));
    }
    AVX512_INLINE Pair pair(const uint8_t* row, int64_t at) const {
        return {all(row, at), all(row, at + VECTOR)};
    }
};

struct FloatReader {
    const float* table;
    int shift;
    __m512 step;
    __m512i fields;
    __m128i magnitudes, largest;
    AVX512_INLINE explicit FloatReader(const Codes& c)
        : table(c.table),
          shift(23 - c.mantissa_width),
          step(_mm512_set1_ps(c.step)),
          fields(_mm512_set1_epi32(INT32_MIN | 0x7f << (23 - c.mantissa_width))),
          magnitudes(_mm_set1_epi8(0x7f)),
          largest(_mm_set1_epi8(c.largest_code)) {}
    AVX512_INLINE __m512 values(__m128i codes) const {
        if (__builtin_expect(_mm_cmpgt_epi8_mask(_mm_and_si128(codes, magnitudes), largest), 0))
            return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(codes), table, 4);
        // The fields lie as float32's do; only the bias differs.
        const __m512i spread = _mm512_slli_epi32(_mm512_cvtepi8_epi32(codes), shift);
        return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(spread, fields)), step);
    }
    AVX512_INLINE __m512 all(const uint8_t* row, int64_t at) const {
        return values(sixteen_bytes(row + at));
    }
    AVX512_INLINE __m512 some(const uint8_t* row, int64_t at, __mmask16 kept) const {
        return values(_mm_maskz_loadu_epi8(kept, row + at));
    }
    AVX512_INLINE Pair pair(const uint8_t* row, int64_t at) const {
        return {all(row, at), all(row, at + VECTOR)};
    }
};

struct ByteReader {
    const float* table;
    AVX512_INLINE explicit ByteReader(const Codes& c) : table(c.table) {}
    AVX512_INLINE __m512 values(__m128i codes) const {
        return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(codes), table, 4);
    }
    AVX512_INLINE __m512 all(const uint8_t* row, int64_t at) const {
        return values(sixteen_bytes(row + at));
    }
    AVX512_INLINE __m512 some(const uint8_t* row, int64_t at, __mmask16 kept) const {
        return values(_mm_maskz_loadu_epi8(kept, row + at));
    }
    AVX512_INLINE Pair pair(const uint8_t* row, int64_t at) const {
        return {all(row, at), all(row, at + VECTOR)};
    }
};

struct NibbleReader {
    __m512 table;
    __m512i word, shift;
    AVX512_INLINE explicit NibbleReader(const Codes& c)
        : table(_mm512_loadu_ps(c.table)),
          word(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)),
          shift(_mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28)) {}
    AVX512_INLINE __m512 values(__m128i packed) const {
        const __m512i words = _mm512_permutexvar_epi32(word, _mm512_castsi128_si512(packed));
        // Looks at the lowest four bits alone.
        return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), table);
    }
    AVX512_INLINE __m512 all(const uint8_t* row, int64_t at) const {
        return values(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + at / 2)));
    }
    AVX512_INLINE __m512 some(const uint8_t* row, int64_t at, __mmask16 kept) const {
        const __mmask16 bytes = _pext_u32(kept, 0x5555);
        return values(_mm_maskz_loadu_epi8(bytes, row + at / 2));
    }
    AVX512_INLINE Pair pair(const uint8_t* row, int64_t at) const {
        return {all(row, at), all(row, at + VECTOR)};
    }
};

struct PairedNibbleReader : NibbleReader {
    AVX512_INLINE explicit PairedNibbleReader(const Codes& c) : NibbleReader(c) {}
    AVX512_INLINE Pair pair(const uint8_t* row, int64_t at) const {
        const __m512i codes = _mm512_cvtepu8_epi32(sixteen_bytes(row + at / 2));
        return {_mm512_permutexvar_ps(codes, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table)};
    }
};

AVX512 INLINE __mmask16 first_lanes(int64_t count) {
    return count >= VECTOR ? 0xffff : (1u << count) - 1;
}

// A row of values, scaled. Without ZEROS no group has a zero point.
template <class Reader, bool ZEROS>
AVX512 void read_row16(const Codes& c, const uint8_t* row, const void* scales, int64_t index,
                       int64_t columns, float* out) {
    const Reader read(c);
    const __m512 factor = _mm512_set1_ps(c.factor);
    for (int64_t first = 0; first < columns; first += c.group) {
        const int64_t last = columns - first < c.group ? columns : first + c.group;
        const __m512 zero = ZEROS ? _mm512_set1_ps(zero_at(c, scales, index)) : _mm512_setzero_ps();
        const __m512 scale = _mm512_set1_ps(scale_at(c, scales, index++));
        for (int64_t at = first; at < last; at += VECTOR) {
            const __mmask16 kept = first_lanes(last - at);
            const __m512 value = kept == 0xffff ? read.all(row, at) : read.some(row, at, kept);
            const __m512 distance = ZEROS ? _mm512_sub_ps(value, zero) : value;
            const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(distance, scale), factor);
            _mm512_mask_storeu_ps(out + at, kept, bounded16(scaled));
        }
    }
}

// What lies where for a call of `products16`: rows of codes, `row_bytes` apart, their scales, and
// rows of x, `columns` apart.
struct Operands {
    const uint8_t* codes;
    const void* scales;
    const float* x;
    int64_t row_bytes, index, columns;
};

// What the values of a group are multiplied by, after what is subtracted.
struct Grid {
    __m512 scale, zero;
};

// Sums over columns of value times x, for each of OUTPUTS rows of codes and ROWS rows of x. Several
// of either share what is loaded, and keep additions that wait for one another apart. Without ZEROS
// no group has a zero point.
template <class Reader, int OUTPUTS, int ROWS, bool ZEROS> struct Products {
    const Reader read;
    const Codes& c;
    const Operands& from;
    __m512 sums[OUTPUTS][ROWS];

    AVX512_INLINE Products(const Codes& c_, const Operands& from_)
        : read(c_), c(c_), from(from_) {
        for (int n = 0; n < OUTPUTS; n++)
            for (int m = 0; m < ROWS; m++) sums[n][m] = _mm512_setzero_ps();
    }
    AVX512_INLINE const uint8_t* row(int n) const { return from.codes + n * from.row_bytes; }
    AVX512_INLINE Grid grid(int n, int64_t group) const {
        const int64_t index = from.index + n * c.groups_per_row + group;
        return {_mm512_set1_ps(scale_at(c, from.scales, index)),
                ZEROS ? _mm512_set1_ps(zero_at(c, from.scales, index)) : _mm512_setzero_ps()};
    }
    AVX512_INLINE Grid byte_grid(int n, int64_t group) const {
        const uint8_t* bytes = static_cast<const uint8_t*>(from.scales);
        const float scale = c.scale_table[bytes[from.index + n * c.groups_per_row + group]];
        return {_mm512_set1_ps(scale), _mm512_setzero_ps()};
    }
    AVX512_INLINE static __m512 distance(__m512 value, const Grid& grid) {
        return ZEROS ? _mm512_sub_ps(value, grid.zero) : value;
    }
    // Thirty-two columns of one group. The sum for one row of x is scaled; for several, the values.
    AVX512_INLINE void add_two(int64_t at, int n, const Grid& grid) {
        if (ROWS == 1) _mm_prefetch(row(n) + at * c.width / 8 + AHEAD, _MM_HINT_T0);
        Pair values = read.pair(row(n), at);
        values = {distance(values.first, grid), distance(values.second, grid)};
        if (ROWS > 1) {
            const __m512 first = _mm512_mul_ps(values.first, grid.scale);
            const __m512 second = _mm512_mul_ps(values.second, grid.scale);
            for (int m = 0; m < ROWS; m++) {
                const float* x = from.x + m * from.columns + at;
                sums[n][m] = _mm512_fmadd_ps(first, _mm512_loadu_ps(x), sums[n][m]);
                sums[n][m] = _mm512_fmadd_ps(second, _mm512_loadu_ps(x + VECTOR), sums[n][m]);
            }
            return;
        }
        for (int m = 0; m < ROWS; m++) {
            const float* x = from.x + m * from.columns + at;
            const __m512 part = _mm512_mul_ps(values.first, _mm512_loadu_ps(x));
            const __m512 both = _mm512_fmadd_ps(values.second, _mm512_loadu_ps(x + VECTOR), part);
            sums[n][m] = _mm512_fmadd_ps(both, grid.scale, sums[n][m]);
        }
    }
    AVX512_INLINE void add_one(int64_t at, int n, const Grid& grid) {
        const __m512 value = _mm512_mul_ps(distance(read.all(row(n), at), grid), grid.scale);
        for (int m = 0; m < ROWS; m++) {
            const __m512 x = _mm512_loadu_ps(from.x + m * from.columns + at);
            sums[n][m] = _mm512_fmadd_ps(value, x, sums[n][m]);
        }
    }
    // `count` columns, fewer than sixteen.
    AVX512_INLINE void add_last(int64_t at, int64_t count, int n, const Grid& grid) {
        const __mmask16 kept = first_lanes(count);
        const __m512 read_values = distance(read.some(row(n), at, kept), grid);
        const __m512 value = _mm512_mul_ps(read_values, grid.scale);
        for (int m = 0; m < ROWS; m++) {
            const __m512 x = _mm512_maskz_loadu_ps(kept, from.x + m * from.columns + at);
            sums[n][m] = _mm512_fmadd_ps(value, x, sums[n][m]);
        }
    }
};

// y[n * ROWS + m], not yet times the factor.
template <class Reader, int OUTPUTS, int ROWS, bool ZEROS>
AVX512 void products16(const Codes& c, const Operands& from, float* y) {
    Products<Reader, OUTPUTS, ROWS, ZEROS> products(c, from);
    int64_t at = 0, group = 0;
    if (c.group == 2 * VECTOR && c.scale_storage == SCALE_CODES && c.scale_width == 8) {
        for (; at + 2 * VECTOR <= from.columns; at += 2 * VECTOR, group++)
            for (int n = 0; n < OUTPUTS; n++)
                products.add_two(at, n, products.byte_grid(n, group));
    } else if (c.group == VECTOR && c.scale_storage == SCALE_CODES && c.scale_width == 8) {
        for (; at + VECTOR <= from.columns; at += VECTOR, group++)
            for (int n = 0; n < OUTPUTS; n++)
                products.add_one(at, n, products.byte_grid(n, group));
    }
    for (; at < from.columns; group++) {
        const int64_t last = from.columns - at < c.group ? from.columns : at + c.group;
        Grid grids[OUTPUTS];
        for (int n = 0; n < OUTPUTS; n++) grids[n] = products.grid(n, group);
        for (; at + 2 * VECTOR <= last; at += 2 * VECTOR)
            for (int n = 0; n < OUTPUTS; n++) products.add_two(at, n, grids[n]);
        for (; at < last; at += VECTOR)
            for (int n = 0; n < OUTPUTS; n++) {
                if (last - at >= VECTOR)
                    products.add_one(at, n, grids[n]);
                else
                    products.add_last(at, last - at, n, grids[n]);
            }
        at = last;
    }
    for (int n = 0; n < OUTPUTS; n++)
        for (int m = 0; m < ROWS; m++)
            y[n * ROWS + m] = _mm512_reduce_add_ps(products.sums[n][m]);
}

}  // namespace
#endif
