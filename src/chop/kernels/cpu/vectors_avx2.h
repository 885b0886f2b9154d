// AVX2: eight numbers in a vector.
#pragma once

#include "vectors.h"

#if CHOP_HAS_AVX2
#if defined(__clang__) || __GNUC__ < 12
#define AVX2 __attribute__((target("avx2,fma,bmi2")))
#else
#define AVX2 __attribute__((target("arch=x86-64-v3")))
#endif

namespace {
namespace avx2 {

constexpr int64_t LANES = 8;
constexpr int TILE_ROWS = 3;  // of x: with them the sums of four outputs fill the registers
using Vector = __m256;
using Whole = __m256i;
using Halves = void;  // there are no instructions for bfloat16

INLINE bool is_supported() {
#if defined(__clang__) || __GNUC__ < 12
    static const bool found = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                              __builtin_cpu_supports("bmi2");
#else
    static const bool found = __builtin_cpu_supports("x86-64-v3");
#endif
    return found;
}

AVX2 INLINE Vector zeros() { return _mm256_setzero_ps(); }
AVX2 INLINE Vector all_of(float v) { return _mm256_set1_ps(v); }
AVX2 INLINE Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
AVX2 INLINE Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
AVX2 INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
AVX2 INLINE Vector larger(Vector a, Vector b) { return _mm256_max_ps(a, b); }
AVX2 INLINE Vector smaller(Vector a, Vector b) { return _mm256_min_ps(a, b); }
AVX2 INLINE float sum_of(Vector v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// The sum of each of four vectors.
AVX2 INLINE __m128 sums_of(Vector a, Vector b, Vector c, Vector d) {
    const __m256 four = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

AVX2 INLINE Whole first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
AVX2 INLINE Vector load(const float* from) { return _mm256_loadu_ps(from); }
AVX2 INLINE Vector load_some(const float* from, int64_t count) {
    return _mm256_maskload_ps(from, first_lanes(count));
}
AVX2 INLINE void store(float* to, Vector v) { _mm256_storeu_ps(to, v); }
AVX2 INLINE void store_some(float* to, Vector v, int64_t count) {
    _mm256_maskstore_ps(to, first_lanes(count), v);
}

// Bits of bfloat16, to nearest, ties to even.
AVX2 INLINE __m128i to_half(Vector v) {
    const Whole bits = _mm256_castps_si256(v);
    const Whole odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const Whole raised = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const Whole is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const Whole nan = _mm256_set1_epi32(0x7fc00000);
    const Whole high = _mm256_srli_epi32(_mm256_blendv_epi8(raised, nan, is_nan), 16);
    const Whole packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    return _mm256_castsi256_si128(packed);
}
AVX2 INLINE void store(uint16_t* to, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), to_half(v));
}
AVX2 INLINE void store_some(uint16_t* to, Vector v, int64_t count) {
    uint16_t all[LANES];
    store(all, v);
    std::memcpy(to, all, count * sizeof *to);
}

AVX2 INLINE __m128i load_bytes(const uint8_t* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}
AVX2 INLINE __m128i load_some_bytes(const uint8_t* from, int64_t count) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, from, count);
    return _mm_cvtsi64_si128(bytes);
}
AVX2 INLINE Whole widen_signed(__m128i bytes) { return _mm256_cvtepi8_epi32(bytes); }
AVX2 INLINE Whole widen(__m128i bytes) { return _mm256_cvtepu8_epi32(bytes); }
AVX2 INLINE Vector to_floats(Whole v) { return _mm256_cvtepi32_ps(v); }
AVX2 INLINE Vector look_up(const float* table, Whole v) {
    return _mm256_i32gather_ps(table, v, sizeof(float));
}
AVX2 INLINE Vector with_sign_of(Vector v, Whole signs) {
    return _mm256_xor_ps(v, _mm256_castsi256_ps(_mm256_and_si256(signs, _mm256_set1_epi32(INT32_MIN))));
}
// The bits of `v` to the left, and of those the ones of the mask, as floats.
AVX2 INLINE Vector shifted_bits(Whole v, int by, int32_t mask) {
    const Whole shifted = _mm256_sll_epi32(v, _mm_cvtsi32_si128(by));
    return _mm256_castsi256_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(mask)));
}

// Codes of four bits, eight to a word, which is shifted by as many bits for each of them.
AVX2 INLINE Whole every_nibble_first(Whole words) {
    return _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
}

struct WholeNibbles {
    static constexpr int32_t few_rows = INT32_MAX;
    AVX2 INLINE_MEMBER explicit WholeNibbles(const Codes&) {}
    AVX2 INLINE_MEMBER Vector values(Whole words) const {
        words = _mm256_sllv_epi32(words, _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0));
        return to_floats(_mm256_srai_epi32(words, 28));
    }
};

struct NaturalNibbles {
    static constexpr int32_t few_rows = INT32_MAX;
    AVX2 INLINE_MEMBER explicit NaturalNibbles(const Codes&) {}
    AVX2 INLINE_MEMBER Vector values(Whole words) const {
        return to_floats(_mm256_and_si256(every_nibble_first(words), _mm256_set1_epi32(15)));
    }
};

// Permutations look at the lowest three bits alone.
struct MirroredNibbles {
    static constexpr int32_t few_rows = INT32_MAX;
    Vector table;
    AVX2 INLINE_MEMBER explicit MirroredNibbles(const Codes& c) : table(load(c.table)) {}
    AVX2 INLINE_MEMBER Vector values(Whole words) const {
        const Whole codes = every_nibble_first(words);
        return with_sign_of(_mm256_permutevar8x32_ps(table, codes), _mm256_slli_epi32(codes, 28));
    }
};

struct TableNibbles {
    static constexpr int32_t few_rows = INT32_MAX;
    Vector first, last;
    AVX2 INLINE_MEMBER explicit TableNibbles(const Codes& c)
        : first(load(c.table)), last(load(c.table + LANES)) {}
    AVX2 INLINE_MEMBER Vector values(Whole words) const {
        const Whole codes = every_nibble_first(words);
        const Vector fourth = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, codes),
                                _mm256_permutevar8x32_ps(last, codes), fourth);
    }
};

template <class Values> struct Nibbles : Values {
    AVX2 INLINE_MEMBER explicit Nibbles(const Codes& c) : Values(c) {}
    AVX2 INLINE_MEMBER Vector all(const uint8_t* row, int64_t at) const {
        return some(row, at, LANES);
    }
    AVX2 INLINE_MEMBER Vector some(const uint8_t* row, int64_t at, int64_t count) const {
        uint32_t word = 0;
        std::memcpy(&word, row + at / 2, (count + 1) / 2);
        return this->values(_mm256_set1_epi32(word));
    }
    AVX2 INLINE_MEMBER void block(const uint8_t* row, int64_t at, Vector* to) const {
        for (int part = 0; part < BLOCK / LANES; part++) to[part] = all(row, at + part * LANES);
    }
};

Ways ways_of_nibbles(const Packed& w);

#define TARGET AVX2
#include "vector_products.h"
#undef TARGET

Ways ways_of_nibbles(const Packed& w) {
    if (w.codes.reading == WHOLE) return ways_of_reader<Nibbles<WholeNibbles>>(w);
    if (w.codes.reading == NATURAL) return ways_of_reader<Nibbles<NaturalNibbles>>(w);
    if (w.codes.reading == MIRRORED) return ways_of_reader<Nibbles<MirroredNibbles>>(w);
    return ways_of_reader<Nibbles<TableNibbles>>(w);
}

}  // namespace avx2
}  // namespace
#endif
