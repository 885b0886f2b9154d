// AVX-512: sixteen numbers in a vector.
#pragma once

#include "vectors.h"

#if CHOP_HAS_AVX512
#if defined(__clang__) || __GNUC__ < 12
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi2")))
#else
#define AVX512 __attribute__((target("arch=x86-64-v4")))
#endif

namespace {
namespace avx512 {

constexpr int64_t LANES = 16;
constexpr int TILE_ROWS = 6;  // of x: with them the sums of four outputs fill the registers
using Vector = __m512;
using Whole = __m512i;

INLINE bool is_supported() {
#if defined(__clang__) || __GNUC__ < 12
    static const bool found = __builtin_cpu_supports("avx512f") &&
                              __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512dq") &&
                              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2");
#else
    static const bool found = __builtin_cpu_supports("x86-64-v4");
#endif
    return found;
}

AVX512 INLINE Vector zeros() { return _mm512_setzero_ps(); }
AVX512 INLINE Vector all_of(float v) { return _mm512_set1_ps(v); }
AVX512 INLINE Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
AVX512 INLINE Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
AVX512 INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
AVX512 INLINE Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }
AVX512 INLINE Vector smaller(Vector a, Vector b) { return _mm512_min_ps(a, b); }
AVX512 INLINE float sum_of(Vector v) { return _mm512_reduce_add_ps(v); }

AVX512 INLINE __m256 halves(Vector v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
// The sum of each of four vectors.
AVX512 INLINE __m128 sums_of(Vector a, Vector b, Vector c, Vector d) {
    const __m256 two = _mm256_hadd_ps(halves(a), halves(b)), more = _mm256_hadd_ps(halves(c), halves(d));
    const __m256 four = _mm256_hadd_ps(two, more);
    return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

AVX512 INLINE __mmask16 first_lanes(int64_t count) { return (1u << count) - 1; }
AVX512 INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
AVX512 INLINE Vector load_some(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(first_lanes(count), from);
}
AVX512 INLINE void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
AVX512 INLINE void store_some(float* to, Vector v, int64_t count) {
    _mm512_mask_storeu_ps(to, first_lanes(count), v);
}

// Bits of bfloat16, to nearest, ties to even.
AVX512 INLINE __m256i to_half(Vector v) {
    const Whole bits = _mm512_castps_si512(v);
    const Whole odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const Whole raised = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const Whole nan = _mm512_set1_epi32(0x7fc00000);
    const Whole bits_or_nan = _mm512_mask_mov_epi32(raised, is_nan, nan);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits_or_nan, 16));
}
AVX512 INLINE void store(uint16_t* to, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_half(v));
}
AVX512 INLINE void store_some(uint16_t* to, Vector v, int64_t count) {
    _mm256_mask_storeu_epi16(to, first_lanes(count), to_half(v));
}

AVX512 INLINE __m128i load_bytes(const uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
AVX512 INLINE __m128i load_some_bytes(const uint8_t* from, int64_t count) {
    return _mm_maskz_loadu_epi8(first_lanes(count), from);
}
AVX512 INLINE Whole widen_signed(__m128i bytes) { return _mm512_cvtepi8_epi32(bytes); }
AVX512 INLINE Whole widen(__m128i bytes) { return _mm512_cvtepu8_epi32(bytes); }
AVX512 INLINE Vector to_floats(Whole v) { return _mm512_cvtepi32_ps(v); }
AVX512 INLINE Vector look_up(const float* table, Whole v) {
    return _mm512_i32gather_ps(v, table, sizeof(float));
}
AVX512 INLINE Vector with_sign_of(Vector v, Whole signs) {
    return _mm512_xor_ps(v, _mm512_castsi512_ps(_mm512_and_si512(signs, _mm512_set1_epi32(INT32_MIN))));
}
// The bits of `v` to the left, and of those the ones of the mask, as floats.
AVX512 INLINE Vector shifted_bits(Whole v, int by, int32_t mask) {
    const Whole shifted = _mm512_sll_epi32(v, _mm_cvtsi32_si128(by));
    return _mm512_castsi512_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(mask)));
}

#if defined(__clang__) || __GNUC__ < 12
using Halves = void;  // clang asks for a target of its own, and older compilers lack the instructions
#else
// Numbers of bfloat16, two in each place of a vector. The instructions are written out, since GCC makes
// copies of what the intrinsics add to, which leave too few registers.
struct Halves {
    using Number = uint16_t;
    static constexpr int64_t IN_VECTOR = 2 * LANES;
    static bool is_supported() {
        static const bool found = __builtin_cpu_supports("avx512bf16");
        return found;
    }
    AVX512 INLINE_MEMBER static Vector load_numbers(const uint16_t* from) {
        return _mm512_loadu_ps(from);
    }
    AVX512 INLINE_MEMBER static void add_products(Vector& sum, Vector a, Vector b) {
        asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
    AVX512 static void keep(const float* from, int64_t count, uint16_t* to) {
        for (int64_t at = 0; at < count; at += IN_VECTOR) {
            Whole both;
            asm("vcvtne2ps2bf16 %2, %1, %0"
                : "=v"(both)
                : "v"(load(from + at + LANES)), "v"(load(from + at)));
            _mm512_storeu_si512(to + at, both);
        }
    }
};
#endif

// Codes of four bits, all of which a vector's table holds.
struct Nibbles {
    static constexpr int32_t few_rows = INT32_MAX;
    Vector table;
    Whole word, shift;
    AVX512 INLINE_MEMBER explicit Nibbles(const Codes& c)
        : table(_mm512_loadu_ps(c.table)),
          word(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)),
          shift(_mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28)) {}
    AVX512 INLINE_MEMBER Vector values(__m128i packed) const {
        const Whole words = _mm512_permutexvar_epi32(word, _mm512_castsi128_si512(packed));
        // Looks at the lowest four bits alone.
        return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), table);
    }
    AVX512 INLINE_MEMBER Vector all(const uint8_t* row, int64_t at) const {
        return values(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + at / 2)));
    }
    AVX512 INLINE_MEMBER Vector some(const uint8_t* row, int64_t at, int64_t count) const {
        return values(load_some_bytes(row + at / 2, (count + 1) / 2));
    }
    AVX512 INLINE_MEMBER void block(const uint8_t* row, int64_t at, Vector* to) const {
        to[0] = all(row, at);
        to[1] = all(row, at + LANES);
    }
};

// A block's even columns come before its odd ones, which spares moving them.
struct PairedNibbles : Nibbles {
    AVX512 INLINE_MEMBER explicit PairedNibbles(const Codes& c) : Nibbles(c) {}
    AVX512 INLINE_MEMBER void block(const uint8_t* row, int64_t at, Vector* to) const {
        const Whole codes = widen(load_bytes(row + at / 2));
        to[0] = _mm512_permutexvar_ps(codes, table);
        to[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table);
    }
};

Ways ways_of_nibbles(const Packed& w);

#define TARGET AVX512
#include "vector_products.h"
#undef TARGET

template <bool ZEROS> Ways ways_of_paired() {
    Ways found = ways_of_reader<Nibbles, ZEROS, PairedNibbles>();
    found.pairs = true;
    return found;
}

Ways ways_of_nibbles(const Packed& w) {
    if (w.codes.group % BLOCK != 0 && w.codes.group < w.columns) return ways_of_reader<Nibbles>(w);
    return w.codes.scale_storage == SCALES_AND_ZEROS ? ways_of_paired<true>()
                                                     : ways_of_paired<false>();
}

}  // namespace avx512
}  // namespace
#endif
