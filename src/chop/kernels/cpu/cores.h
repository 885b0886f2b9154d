// Elements before scaling, as in chop/formats/elements.
#pragma once

#include <cmath>

#include "numeric.h"
#include "plan.h"

namespace {

constexpr uint64_t EXPONENT_BITS = 0x7ff0000000000000;
constexpr int64_t FRACTION_BITS = 0x000fffffffffffff;
constexpr int MANTISSA_WIDTH = 52, BIAS = 1023;

INLINE double binade(double v) { return bit_cast<double>(bit_cast<uint64_t>(v) & EXPONENT_BITS); }

INLINE double exp2i(int64_t exponent) {
    return bit_cast<double>(static_cast<uint64_t>(exponent + BIAS) << MANTISSA_WIDTH);
}

// Adding and subtracting 2^52 ulp leaves the nearest multiple of ulp, ties to even, carry included.
INLINE double round_minifloat(double v, double low, double high, double magic_factor) {
    double magnitude = std::fabs(v);
    magnitude = magnitude > high ? high : magnitude;
    const double own = binade(magnitude), magic = (own < low ? low : own) * magic_factor;
    return std::copysign((magnitude + magic) - magic, v);
}

template <class Real> struct IntegerCore {
    Real steps, step, low, high;
    bool floors;
    explicit IntegerCore(const Plan& p)
        : steps(p.steps), step(p.step), low(p.low), high(p.high), floors(p.floors) {}
    INLINE_MEMBER Real operator()(Real v) const {
        v *= steps;
        v = clamp(floors ? std::floor(v) : std::rint(v), low, high);
        return v * step + Real(0);  // +0 is the only zero
    }
};

struct FixedCore {
    double steps, step, low, high, zero;
    explicit FixedCore(const Plan& p)
        : steps(p.steps), step(p.step), low(p.low), high(p.high), zero(p.zero) {}
    // Adding +0 turns -0 into +0; adding -0 changes nothing.
    INLINE_MEMBER double operator()(double v) const {
        return (clamp(std::rint(v * steps), low, high) + zero) * step;
    }
};

struct MinifloatCore {
    double low, high, magic_factor;
    explicit MinifloatCore(const Plan& p)
        : low(p.low), high(p.high), magic_factor(p.magic_factor) {}
    INLINE_MEMBER double operator()(double v) const {
        return round_minifloat(v, low, high, magic_factor);
    }
};

struct LogCore {
    double low, high, increment_threshold, zero_below;
    explicit LogCore(const Plan& p)
        : low(p.low), high(p.high), increment_threshold(p.increment_threshold),
          zero_below(p.zero_below) {}
    INLINE_MEMBER double operator()(double v) const {
        const double magnitude = std::fabs(v), below = binade(magnitude);
        double power = magnitude >= below * increment_threshold ? below + below : below;
        power = clamp(power, low, high);
        power = v < 0 ? -power : power;
        power = magnitude < zero_below ? 0.0 : power;
        return v == v ? power : v;
    }
};

struct SignCore {
    double low;
    explicit SignCore(const Plan& p) : low(p.low) {}
    INLINE_MEMBER double operator()(double v) const {
        const double y = v >= 0 ? 1.0 : low;
        return v == v ? y : v;
    }
};

}  // namespace
