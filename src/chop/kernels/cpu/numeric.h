// What every loop is written with: instruction sets, bits, clamps.
#pragma once

#include <cstdint>
#include <cstring>

#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER

#ifndef CHOP_LEVEL
#define CHOP_LEVEL 4  // of x86-64: the loops that a CPU does not have are compiled and not called
#endif

// One copy of each loop for the instruction set of this machine, where it is known, see build.py;
// else one for each, of which the loader takes the best that the CPU has.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    __GNUC__ >= 12 && !defined(CHOP_ONE_INSTRUCTION_SET)
#ifdef CHOP_TARGET
#define CLONES __attribute__((target(CHOP_TARGET)))
#else
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#define CHOP_CLONES 1
#else
#define CLONES
#define CHOP_CLONES 0
#endif

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace {

constexpr int32_t INFINITE = 0x7f800000;  // as bits of a float

template <class To, class From> INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// NaN passes, as it does in torch.clamp.
template <class Real> INLINE Real clamp(Real v, Real low, Real high) {
    v = v < low ? low : v;
    return v > high ? high : v;
}

INLINE int32_t magnitude_bits(float v) { return bit_cast<int32_t>(v) & 0x7fffffff; }

}  // namespace
