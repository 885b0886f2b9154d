// Products of whole numbers by VNNI, whose instructions add four products of 8 bits to 32.
#pragma once

#include "whole_rows.h"

#if CHOP_HAS_AVX512
#if defined(__clang__) || __GNUC__ < 12
#define VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#else
#define VNNI __attribute__((target("arch=x86-64-v4,avx512vnni")))
#endif

namespace {
namespace vnni {

constexpr int64_t LANES = 64;  // 8 bits each
constexpr int OUTPUTS = 4;     // rows of codes that are multiplied together
constexpr int ROWS = 6;        // rows of x: with them the sums fill the registers
constexpr int32_t MIDDLE = 128;

INLINE bool is_supported() {
    static const bool found = __builtin_cpu_supports("avx512f") &&
                              __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512dq") &&
                              __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512vnni");
    return found;
}

// The instructions take a factor without a sign: codes plus 128.
VNNI INLINE __m512i unsigned_codes(__m512i codes) {
    return _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(MIDDLE)));
}

// Four rows of codes, of which `count` are there and others repeat the last; and what their sums are
// scaled by and moved by.
struct Outputs {
    const int8_t* rows[OUTPUTS];
    int64_t first, columns, ahead, count;
    __m128 scales, bias;
    VNNI INLINE_MEMBER Outputs(const Weights& w, int64_t first_, int64_t left)
        : first(first_), columns(w.columns), ahead(ahead_of(OUTPUTS * w.columns)),
          count(left < OUTPUTS ? left : OUTPUTS), scales(_mm_set1_ps(w.scales[0])),
          bias(_mm_setzero_ps()) {
        for (int64_t n = 0; n < OUTPUTS; n++) rows[n] = w.row(first + std::min(n, count - 1));
        if (w.stride) scales = _mm_maskz_loadu_ps(mask(), w.scales + first);
        if (w.bias) bias = _mm_maskz_loadu_ps(mask(), w.bias + first);
    }
    VNNI INLINE_MEMBER __mmask8 mask() const { return (1u << count) - 1; }
    // `sums` has 128 times the sum of the row of x more than the products.
    VNNI INLINE_MEMBER void write(__m128i sums, int32_t x_sum, float x_scale, float* y) const {
        sums = _mm_sub_epi32(sums, _mm_set1_epi32(static_cast<int32_t>(
                                       static_cast<uint32_t>(x_sum) * MIDDLE)));
        const __m128 scale = _mm_mul_ps(_mm_set1_ps(x_scale), scales);
        const __m128 scaled = _mm_add_ps(_mm_mul_ps(_mm_cvtepi32_ps(sums), scale), bias);
        _mm_mask_storeu_ps(y + first, mask(), scaled);
    }
};

VNNI INLINE __m512i sums_of_pairs(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

// The sum of each of four vectors.
VNNI INLINE __m128i sums_of(__m512i a, __m512i b, __m512i c, __m512i d) {
    const __m512i two = sums_of_pairs(a, b), more = sums_of_pairs(c, d);
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(two, more),
                                         _mm512_unpackhi_epi64(two, more));
    const __m256i half =
        _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// Replaces _mm512_dpbusd_epi32, for which GCC 12 makes copies that leave too few registers.
VNNI INLINE void add_products(__m512i& sum, __m512i codes, __m512i x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
}

// Sums of products of four rows of codes with COUNT rows of x. They stay in registers only where no
// loop counts them.
template <int COUNT> struct Sums {
    __m512i sums[COUNT][OUTPUTS];
    VNNI INLINE_MEMBER Sums() {
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; i++)
#pragma GCC unroll 8
            for (int n = 0; n < OUTPUTS; n++) sums[i][n] = _mm512_setzero_si512();
    }
    VNNI INLINE_MEMBER __m128i of_row(int i) const {
        return sums_of(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    }
    VNNI INLINE_MEMBER void add(const __m512i* codes, const int8_t* x, int64_t stride) {
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; i++) {
            const __m512i v = _mm512_load_si512(x + i * stride);
#pragma GCC unroll 8
            for (int n = 0; n < OUTPUTS; n++)
                add_products(sums[i][n], codes[n], v);
        }
    }
};

// Four outputs of COUNT rows of x from row `m` on. Inlined, GCC 12 keeps the sums in memory.
template <int COUNT>
VNNI __attribute__((noinline)) void multiply_tile(const Outputs& w, const ByteRows& x, int64_t m,
                                                  float* y, int64_t outputs) {
    Sums<COUNT> found;
    __m512i codes[OUTPUTS];
    const int8_t* from = x.row(m);
    int64_t at = 0;
    for (; at + LANES <= w.columns; at += LANES) {
        for (int n = 0; n < OUTPUTS; n++) {
            _mm_prefetch(w.rows[n] + at + w.ahead, COUNT == 1 ? _MM_HINT_T0 : _MM_HINT_T1);
            codes[n] = unsigned_codes(_mm512_loadu_si512(w.rows[n] + at));
        }
        found.add(codes, from + at, x.stride);
    }
    if (at < w.columns) {
        const __mmask64 there = (uint64_t(1) << (w.columns - at)) - 1;
        for (int n = 0; n < OUTPUTS; n++)
            codes[n] = unsigned_codes(_mm512_maskz_loadu_epi8(there, w.rows[n] + at));
        found.add(codes, from + at, x.stride);
    }
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; i++)
        w.write(found.of_row(i), x.sums[m + i], x.scales[m + i], y + (m + i) * outputs);
}

template <int COUNT>
VNNI void multiply_rest(const Outputs& w, const ByteRows& x, int64_t m, float* y, int64_t outputs) {
    if constexpr (COUNT > 0) {
        if (x.count - m == COUNT) return multiply_tile<COUNT>(w, x, m, y, outputs);
        multiply_rest<COUNT - 1>(w, x, m, y, outputs);
    }
}

VNNI void multiply_whole(const Weights& w, const ByteRows& x, int64_t first, int64_t last, float* y,
                         int64_t outputs) {
    for (int64_t n = first; n < last; n += OUTPUTS) {
        const Outputs four(w, n, last - n);
        int64_t m = 0;
        for (; m + ROWS <= x.count; m += ROWS) multiply_tile<ROWS>(four, x, m, y, outputs);
        multiply_rest<ROWS - 1>(four, x, m, y, outputs);
    }
}

}  // namespace vnni
}  // namespace
#endif
