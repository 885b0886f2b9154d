// Rounds a tensor to a number format in one pass over memory.
//
// The elements are those of chop/formats/elements, and every float is computed in the precision
// that the readable reference uses: float64, where float32 data and the products below are exact;
// float32 for integers of up to 24 bits. So both agree bit for bit, and the loops still wait for
// memory. Needs -ffp-contract=off, and no -ffast-math.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "drive.h"
#include "select.h"
#include "statistics.h"
#include "threads.h"

namespace {

#define LOOP(name, ...) \
    CLONES void name(const Plan& p, const Part& part) { __VA_ARGS__(p, part); }
#define BLOCK_LOOPS(name, ...) \
    CLONES void name##_blocks(const Plan& p, const Part& part) { blocks<__VA_ARGS__>(p, part); } \
    CLONES void name##_strips(const Plan& p, const Strip& strip) { strips<__VA_ARGS__>(p, strip); }

LOOP(integers, each<float, IntegerCore<float>>)
LOOP(wide_integers, each<double, IntegerCore<double>>)
LOOP(minifloats, each_clamped<MinifloatCore>)
LOOP(logs, each_clamped<LogCore>)
LOOP(signs, each_clamped<SignCore>)
LOOP(fixed, each_clamped<FixedCore>)
LOOP(scaled_fixed, each_scaled_fixed)
LOOP(scaled_integers, each_scaled<IntegerCore<double>>)
LOOP(scaled_minifloats, each_scaled<MinifloatCore>)
LOOP(scaled_logs, each_scaled<LogCore>)
LOOP(scaled_signs, each_scaled<SignCore>)
LOOP(ternaries, each_ternary)
LOOP(residuals, each_residual)
BLOCK_LOOPS(fixed, FixedCore, SharedExponent)
BLOCK_LOOPS(minifloat, MinifloatCore, SharedExponent)
BLOCK_LOOPS(log, LogCore, SharedExponent)
BLOCK_LOOPS(sign, SignCore, SharedExponent)
BLOCK_LOOPS(integer, IntegerCore<double>, SharedExponent)
BLOCK_LOOPS(small_fixed, FixedCore, SmallFloat)
BLOCK_LOOPS(small_minifloat, MinifloatCore, SmallFloat)
BLOCK_LOOPS(largest_fixed, FixedCore, LargestFloat)
BLOCK_LOOPS(largest_minifloat, MinifloatCore, LargestFloat)

Loop loop_of(const Plan& p) {
    if (p.scale == NONE) {
        if (p.core == INTEGER_FLOAT32) return integers;
        if (p.core == INTEGER_FLOAT64) return wide_integers;
        if (p.core == FIXED) return fixed;
        if (p.core == MINIFLOAT) return minifloats;
        if (p.core == LOG) return logs;
        if (p.core == SIGN) return signs;
        if (p.core == RESIDUAL) return residuals;
    } else if (p.scale == SHARED_EXPONENT) {
        if (p.core == FIXED) return fixed_blocks;
        if (p.core == MINIFLOAT) return minifloat_blocks;
        if (p.core == LOG) return log_blocks;
        if (p.core == SIGN) return sign_blocks;
        if (p.core == INTEGER_FLOAT64) return integer_blocks;
    } else if (p.scale == SMALL_FLOAT) {
        if (p.core == FIXED) return small_fixed_blocks;
        if (p.core == MINIFLOAT) return small_minifloat_blocks;
    } else if (p.scale == LARGEST) {
        if (p.core == FIXED) return largest_fixed_blocks;
        if (p.core == MINIFLOAT) return largest_minifloat_blocks;
    } else if (p.scale == GIVEN || p.scale == MEAN) {
        if (p.core == FIXED) return scaled_fixed;
        if (p.core == INTEGER_FLOAT64) return scaled_integers;
        if (p.core == MINIFLOAT) return scaled_minifloats;
        if (p.core == LOG) return scaled_logs;
        if (p.core == SIGN) return scaled_signs;
        if (p.core == TERNARY) return ternaries;
    }
    return nullptr;
}

StripLoop strip_loop_of(const Plan& p) {
    if (p.scale == SHARED_EXPONENT) {
        if (p.core == FIXED) return fixed_strips;
        if (p.core == INTEGER_FLOAT64) return integer_strips;
        if (p.core == MINIFLOAT) return minifloat_strips;
        if (p.core == LOG) return log_strips;
        if (p.core == SIGN) return sign_strips;
    } else if (p.scale == SMALL_FLOAT) {
        if (p.core == FIXED) return small_fixed_strips;
        if (p.core == MINIFLOAT) return small_minifloat_strips;
    } else if (p.scale == LARGEST) {
        if (p.core == FIXED) return largest_fixed_strips;
        if (p.core == MINIFLOAT) return largest_minifloat_strips;
    }
    return nullptr;
}

// `lines` sums of tiles become bounds of means.
template <class SumOf>
void means(double* low, double* high, double roundoff, int64_t lines, int64_t length, int threads,
           SumOf sum_of) {
    const Tiling tiling(1, lines, length);
    std::vector<Sum> of_tile(tiling.count);
    parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++)
            of_tile[i] = sum_of(tiling[i].start, tiling[i].elements);
    });
    for (int64_t line = 0; line < lines; line++) {
        Sum sum = {0, 0};
        for (int64_t i = 0; i < tiling.per_line; i++) sum.add(of_tile[line * tiling.per_line + i]);
        const Bounds mean(sum, length, roundoff);
        low[line] = mean.low;
        high[line] = mean.high;
    }
}

// Calls the instance for a type; returns 1 for an unknown type.
#ifdef __FLT16_MANT_DIG__
#define FOR_FLOAT16(call) if (type == FLOAT16) return call<_Float16>
#else
#define FOR_FLOAT16(call) if (false) return call<float>
#endif
#define FOR_TYPE(type, call, ...) \
    if (type == FLOAT32) return call<float>(__VA_ARGS__); \
    if (type == BFLOAT16) return call<uint16_t>(__VA_ARGS__); \
    FOR_FLOAT16(call)(__VA_ARGS__); \
    return 1

}  // namespace

extern "C" {

// Rounds `count` lines of `length` elements each; y may be x. `mask` takes a byte for each element,
// 1 where it saturates; or it is null. `scales` has one number per line where the plan says that
// they are given, and takes one for each block of means; else it is null. Returns 0, or 1 for an
// unknown plan.
int chop_fake_quantize(const Plan* plan, const void* x, void* y, uint8_t* mask, double* scales,
                       int32_t type, int64_t count, int64_t length, int32_t threads) {
    const Lines lines = {x, y, mask, scales, count, length};
    FOR_TYPE(type, round_lines, *plan, loop_of(*plan), lines, threads);
}

// Rounds matrices with blocks of several rows and plan->block columns.
int chop_fake_quantize_grid(const Plan* plan, const void* x, void* y, uint8_t* mask, int32_t type,
                            int64_t matrices, int64_t rows, int64_t columns, int64_t block_rows,
                            int32_t threads) {
    const Grid grid = {x, y, mask, matrices, rows, columns, block_rows};
    FOR_TYPE(type, round_grid, *plan, strip_loop_of(*plan), grid, threads);
}

// Copies x with zeros where the mask is 1, for clipped gradients.
void chop_clip(const void* x, const uint8_t* mask, void* y, int32_t type, int64_t n,
               int32_t threads) {
    if (type == FLOAT32)
        clip_all<uint32_t>(x, mask, y, n, threads);
    else
        clip_all<uint16_t>(x, mask, y, n, threads);
}

// The largest finite magnitude of each line; `mask` as in the plan.
void chop_largest(const float* x, float* largest, int32_t mask, int64_t lines, int64_t length,
                  int32_t threads) {
    const Tiling tiling(1, lines, length);
    std::vector<int32_t> of_tile(tiling.count);
    parallel(tiling.count, lines * length, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++)
            of_tile[i] = largest_of_tile(x + tiling[i].start, tiling[i].elements, mask);
    });
    for (int64_t line = 0; line < lines; line++)
        largest[line] =
            bit_cast<float>(largest_of(of_tile.data() + line * tiling.per_line, tiling.per_line));
}

// An order statistic of each line: see select.h.
void chop_order_statistics(const float* x, float* found, int32_t mask, int64_t rank, int64_t lines,
                           int64_t length, int32_t threads) {
    const int inside = lines < threads ? threads : 1;
    parallel(lines, lines * length, inside > 1 ? 1 : threads, [&](int64_t first, int64_t last) {
        for (int64_t line = first; line < last; line++)
            found[line] = order_statistic(x + line * length, length, mask, rank, inside);
    });
}

// Bounds of the mean of the finite magnitudes above a number, of each line.
void chop_means(const float* x, float above, double* low, double* high, double roundoff,
                int64_t lines, int64_t length, int32_t threads) {
    means(low, high, roundoff, lines, length, threads,
          [=](int64_t start, int64_t n) { return sum_of_tile(x + start, n, above); });
}

// Bounds of the mean magnitude that the known levels of a residual leave of finite numbers.
void chop_mean_of_rests(const Plan* plan, const float* x, double* low, double* high,
                        double roundoff, int64_t length, int32_t threads) {
    means(low, high, roundoff, 1, length, threads,
          [=](int64_t start, int64_t n) { return sum_of_rests(*plan, x + start, n); });
}

const char* chop_instruction_set() {
#if CHOP_CLONES
    __builtin_cpu_init();
    if (CHOP_LEVEL >= 4 && __builtin_cpu_supports("x86-64-v4")) return "AVX-512";
    if (__builtin_cpu_supports("x86-64-v3")) return "AVX2";
#endif
    return "baseline";
}
}
