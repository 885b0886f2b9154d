// Rounds a tensor to a number format in one pass over memory.
//
// The elements are those of chop/formats/elements, and every float is computed in the precision
// that the readable reference uses: float64, where float32 data and the products below are exact;
// float32 for integers of up to 24 bits. So both agree bit for bit, and the loops still wait for
// memory. Needs -ffp-contract=off, and no -ffast-math.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "halves.h"
#include "loops.h"
#include "plan.h"
#include "statistics.h"
#include "threads.h"

namespace {

using Loop = void (*)(const Plan&, const float*, float*, int64_t, double);

#define LOOP(name, ...) \
    CLONES void name(const Plan& p, const float* x, float* y, int64_t n, double scale) { \
        (void)scale; \
        __VA_ARGS__; \
    }

LOOP(integers, (each<float, IntegerCore<float>>(p, x, y, n)))
LOOP(wide_integers, (each<double, IntegerCore<double>>(p, x, y, n)))
LOOP(minifloats, (each_clamped<MinifloatCore>(p, x, y, n)))
LOOP(logs, (each_clamped<LogCore>(p, x, y, n)))
LOOP(signs, (each_clamped<SignCore>(p, x, y, n)))
LOOP(scaled_fixed, (each_scaled<FixedCore>(p, x, y, n, scale)))
LOOP(scaled_signs, (each_scaled<SignCore>(p, x, y, n, scale)))
LOOP(ternaries, (each_ternary(p, x, y, n, scale)))
LOOP(block_fixed, (blocks<FixedCore, SharedExponent>(p, x, y, n)))
LOOP(block_minifloats, (blocks<MinifloatCore, SharedExponent>(p, x, y, n)))
LOOP(block_logs, (blocks<LogCore, SharedExponent>(p, x, y, n)))
LOOP(small_float_minifloats, (blocks<MinifloatCore, SmallFloat>(p, x, y, n)))

Loop loop_of(const Plan& p) {
    if (p.scale == NONE) {
        if (p.core == INTEGER_FLOAT32) return integers;
        if (p.core == INTEGER_FLOAT64) return wide_integers;
        if (p.core == MINIFLOAT) return minifloats;
        if (p.core == LOG) return logs;
        if (p.core == SIGN) return signs;
    } else if (p.scale == SHARED_EXPONENT) {
        if (p.core == FIXED) return block_fixed;
        if (p.core == MINIFLOAT) return block_minifloats;
        if (p.core == LOG) return block_logs;
    } else if (p.scale == SMALL_FLOAT) {
        if (p.core == MINIFLOAT) return small_float_minifloats;
    } else if (p.scale == GIVEN) {
        if (p.core == FIXED) return scaled_fixed;
        if (p.core == SIGN) return scaled_signs;
        if (p.core == TERNARY) return ternaries;
    }
    return nullptr;
}

template <class Half> struct Converted {
    static void run(const Plan& p, Loop loop, const Tiling& tiling, int64_t first, int64_t last,
                    const Half* x, Half* y, const double* scales) {
        std::vector<float> buffer(tiling.size < tiling.length ? tiling.size : tiling.length);
        for (int64_t i = first; i < last; i++) {
            const Tile tile = tiling[i];
            const double scale = scales ? scales[tile.line] : 1.0;
            widen(x + tile.start, buffer.data(), tile.elements);
            loop(p, buffer.data(), buffer.data(), tile.elements, scale);
            narrow(buffer.data(), y + tile.start, tile.elements);
        }
    }
};

template <> struct Converted<float> {
    static void run(const Plan& p, Loop loop, const Tiling& tiling, int64_t first, int64_t last,
                    const float* x, float* y, const double* scales) {
        for (int64_t i = first; i < last; i++) {
            const Tile tile = tiling[i];
            const double scale = scales ? scales[tile.line] : 1.0;
            loop(p, x + tile.start, y + tile.start, tile.elements, scale);
        }
    }
};

template <class T>
int run(const Plan& p, const void* x, void* y, int64_t lines, int64_t length, const double* scales,
        int threads) {
    const Loop loop = loop_of(p);
    if (!loop) return 1;
    prefer_huge_pages(y, lines * length * static_cast<int64_t>(sizeof(T)));
    const Tiling tiling(p.block, lines, length);
    parallel(tiling.count, lines * length, threads, [=, &p](int64_t first, int64_t last) {
        Converted<T>::run(p, loop, tiling, first, last, static_cast<const T*>(x),
                          static_cast<T*>(y), scales);
    });
    return 0;
}

}  // namespace

extern "C" {

// Rounds `lines` lines of `length` elements each; y may be x. `scales` has one number per line
// where the plan says that they are given, else it is null. Returns 0, or 1 for an unknown plan.
int chop_fake_quantize(const Plan* plan, const void* x, void* y, int32_t type, int64_t lines,
                       int64_t length, const double* scales, int32_t threads) {
    if (type == FLOAT32) return run<float>(*plan, x, y, lines, length, scales, threads);
    if (type == BFLOAT16) return run<uint16_t>(*plan, x, y, lines, length, scales, threads);
#ifdef __FLT16_MANT_DIG__
    if (type == FLOAT16) return run<_Float16>(*plan, x, y, lines, length, scales, threads);
#endif
    return 1;
}

// The largest finite magnitude of each line, as float32.
void chop_largest(const float* x, float* largest, int64_t lines, int64_t length, int32_t threads) {
    const Tiling tiling(1, lines, length);
    std::vector<uint32_t> of_tile(tiling.count);
    parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++)
            of_tile[i] = largest_of_tile(x + tiling[i].start, tiling[i].elements);
    });
    for (int64_t line = 0; line < lines; line++) {
        uint32_t bits = 0;
        for (int64_t i = 0; i < tiling.per_line; i++)
            bits = std::max(bits, of_tile[line * tiling.per_line + i]);
        largest[line] = bit_cast<float>(bits);
    }
}

// Sum and number of the finite magnitudes above a number, of each line.
void chop_sums(const float* x, float above, double* sums, double* counts, int64_t lines,
               int64_t length, int32_t threads) {
    const Tiling tiling(1, lines, length);
    std::vector<Sum> of_tile(tiling.count);
    parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++)
            of_tile[i] = sum_of_tile(x + tiling[i].start, tiling[i].elements, above);
    });
    for (int64_t line = 0; line < lines; line++) {
        sums[line] = counts[line] = 0;
        for (int64_t i = line * tiling.per_line; i < (line + 1) * tiling.per_line; i++) {
            sums[line] += of_tile[i].sum;
            counts[line] += of_tile[i].count;
        }
    }
}

const char* chop_instruction_set() {
#if CHOP_CLONES
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return "AVX-512";
    if (__builtin_cpu_supports("x86-64-v3")) return "AVX2";
#endif
    return "baseline";
}
}
