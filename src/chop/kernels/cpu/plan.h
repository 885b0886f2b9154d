// Parameters of a number format.
#pragma once

#include <cstdint>

namespace {

enum Core : int32_t {
    INTEGER_FLOAT32, INTEGER_FLOAT64, FIXED, MINIFLOAT, LOG, SIGN, TERNARY, RESIDUAL
};
enum Scale : int32_t { NONE, SHARED_EXPONENT, SMALL_FLOAT, GIVEN, LARGEST, MEAN };
enum Type : int32_t { FLOAT32, BFLOAT16, FLOAT16 };

constexpr int MAX_LEVELS = 8;

// Same fields as in chop.kernels.plan.
struct Plan {
    int32_t core, scale;
    // The element. Fixed point: steps per unit, its inverse, the range in steps, what is added
    // last. Floats and powers of two: smallest binade, largest magnitude. Ternary: the threshold
    // is `low`. Signs, of residuals too: `low` is the lower value.
    double steps, step, low, high, zero;
    // Minifloats: 2^(52 - mantissa width).
    double magic_factor;
    // Powers of two: what 2^E is multiplied by to find the first value that goes up, and the
    // magnitude below which values become zero.
    double increment_threshold, zero_below;
    int32_t floors;
    // The shared exponent: floor(log2 amax) + offset, one more from the fraction `carry` on
    // (in units of 2^-52), clipped to the range; or NaN for a non_finite block.
    int32_t offset, lowest_exponent, largest_exponent, has_nan;
    int64_t carry;
    // The small float that is a block's scale: a minifloat, and the factors around it. A float32
    // that is one: `small_divisor` alone.
    double small_low, small_high, small_magic_factor, small_divisor, tensor_scale;
    double limit;  // largest finite magnitude of the result's type
    int64_t block;
    double roundoff;  // of the additions in the reference's sums
    // The range that does not saturate, in units of the scale.
    double lowest_unsaturated, highest_unsaturated;
    // The bits of a float that its magnitude is compared by: all of them where negative numbers
    // do not count.
    int32_t magnitude_mask;
    // Residuals: the factors of the levels that are known.
    int32_t levels;
    double factors[MAX_LEVELS];
};

}  // namespace
