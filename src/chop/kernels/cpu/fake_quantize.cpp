// Rounds a tensor to a number format in one pass over memory.
//
// The elements are those of chop/formats/elements, and every float is computed in the precision
// that the readable reference uses: float64, where float32 data and the products below are exact;
// float32 for integers of up to 24 bits. So both agree bit for bit, and the loops still wait for
// memory. Needs -ffp-contract=off, and no -ffast-math.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER

// One copy of each loop per instruction set; the loader takes the best that the CPU has.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    __GNUC__ >= 12 && !defined(CHOP_ONE_INSTRUCTION_SET)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
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

constexpr int64_t TILE = 1 << 13;        // elements worked on at a time: they stay in the cache
constexpr int64_t BATCH = 256;           // blocks whose scales are found together
constexpr int64_t PER_THREAD = 1 << 16;  // elements for which starting a thread pays
constexpr uintptr_t HUGE_PAGE = 1 << 21;  // bytes
constexpr uint32_t INFINITE = 0x7f800000;
constexpr uint64_t EXPONENT_BITS = 0x7ff0000000000000;
constexpr int64_t FRACTION_BITS = 0x000fffffffffffff;
constexpr int MANTISSA_WIDTH = 52, BIAS = 1023;

enum Core : int32_t { INTEGER_FLOAT32, INTEGER_FLOAT64, FIXED, MINIFLOAT, LOG, SIGN, TERNARY };
enum Scale : int32_t { NONE, SHARED_EXPONENT, SMALL_FLOAT, GIVEN };
enum Type : int32_t { FLOAT32, BFLOAT16, FLOAT16 };

// Mirrored field by field by chop.kernels.plan.
struct Plan {
    int32_t core, scale;
    // The element. Fixed point: steps per unit, its inverse, the range in steps, what is added
    // last. Floats and powers of two: smallest binade, largest magnitude. Ternary: the threshold
    // is `low`.
    double steps, step, low, high, zero;
    // Minifloats: 2^(52 - mantissa width). Powers of two: what 2^E is multiplied by to find the
    // first value that goes up, and the magnitude below which values become zero.
    double turn, zero_below;
    int32_t floors;
    // The shared exponent: floor(log2 amax) + offset, one more from the fraction `carry` on
    // (in units of 2^-52), clipped to the range; or NaN for a poisoned block.
    int32_t offset, lowest_exponent, largest_exponent, has_nan;
    int64_t carry;
    // The small float that is a block's scale: a minifloat, and the factors around it.
    double small_low, small_high, small_turn, small_divisor, of_tensor;
    double limit;  // largest finite magnitude of the result's type
    int64_t block;
};

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

INLINE double binade(double v) { return bit_cast<double>(bit_cast<uint64_t>(v) & EXPONENT_BITS); }

INLINE double exp2i(int64_t exponent) {
    return bit_cast<double>(static_cast<uint64_t>(exponent + BIAS) << MANTISSA_WIDTH);
}

// Adding and subtracting 2^52 ulp leaves the nearest multiple of ulp, ties to even, carry included.
INLINE double round_minifloat(double v, double low, double high, double turn) {
    double magnitude = std::fabs(v);
    magnitude = magnitude > high ? high : magnitude;
    const double own = binade(magnitude), magic = (own < low ? low : own) * turn;
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
    double low, high, turn;
    explicit MinifloatCore(const Plan& p) : low(p.low), high(p.high), turn(p.turn) {}
    INLINE_MEMBER double operator()(double v) const { return round_minifloat(v, low, high, turn); }
};

struct LogCore {
    double low, high, turn, zero_below;
    explicit LogCore(const Plan& p)
        : low(p.low), high(p.high), turn(p.turn), zero_below(p.zero_below) {}
    INLINE_MEMBER double operator()(double v) const {
        const double magnitude = std::fabs(v), below = binade(magnitude);
        double power = magnitude >= below * turn ? below + below : below;
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

INLINE uint32_t magnitude_bits(float v) { return bit_cast<uint32_t>(v) & 0x7fffffff; }

// The largest magnitude as bits, which order like the numbers; NaN and infinities come last.
INLINE uint32_t largest_bits(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = magnitude_bits(x[i]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

INLINE uint32_t largest_finite_bits(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = magnitude_bits(x[i]);
        largest = bits < INFINITE && bits > largest ? bits : largest;
    }
    return largest;
}

// How a block's scale follows its largest finite magnitude, and how values are divided by it.
// `poison` is NaN for a block with a NaN or an infinity, else 0.
struct SharedExponent {
    static INLINE_MEMBER void find(const Plan& p, double largest, double poison, double& scale,
                                   double& divisor) {
        const int64_t bits = bit_cast<int64_t>(largest);
        int64_t exponent = (bits >> MANTISSA_WIDTH) - BIAS + p.offset;
        exponent += (bits & FRACTION_BITS) >= p.carry;
        exponent = clamp<int64_t>(exponent, p.lowest_exponent, p.largest_exponent);
        scale = exp2i(exponent) + (p.has_nan ? poison : 0.0);
        divisor = exp2i(-exponent);
    }
    // By a power of two: multiplying by its inverse is exact.
    static INLINE_MEMBER double divide(double v, double divisor) { return v * divisor; }
};

struct SmallFloat {
    static INLINE_MEMBER void find(const Plan& p, double largest, double poison, double& scale,
                                   double& divisor) {
        const double wanted = largest / p.small_divisor / p.of_tensor;
        scale = round_minifloat(wanted, p.small_low, p.small_high, p.small_turn) * p.of_tensor;
        divisor = scale == 0 ? 1.0 : scale;
        scale += poison;
    }
    static INLINE_MEMBER double divide(double v, double divisor) { return v / divisor; }
};

using Loop = void (*)(const Plan&, const float*, float*, int64_t, double);

template <class Real, class CoreOf>
INLINE void each(const Plan& p, const float* x, float* y, int64_t n) {
    const CoreOf core(p);
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = static_cast<float>(core(static_cast<Real>(x[i])));
}

template <class CoreOf> INLINE void each_clamped(const Plan& p, const float* x, float* y, int64_t n) {
    const CoreOf core(p);
    const double limit = p.limit;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = static_cast<float>(clamp(core(x[i]), -limit, limit));
}

template <class CoreOf>
INLINE void each_scaled(const Plan& p, const float* x, float* y, int64_t n, double scale) {
    const CoreOf core(p);
    const double limit = p.limit, divisor = scale == 0 ? 1.0 : scale;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = static_cast<float>(clamp(core(x[i] / divisor) * scale, -limit, limit));
}

INLINE void each_ternary(const Plan& p, const float* x, float* y, int64_t n, double scale) {
    const double limit = p.limit, threshold = p.low;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const double v = x[i], kept = v < 0 ? -scale : scale;
        const double rounded = std::fabs(v) > threshold ? clamp(kept, -limit, limit) + 0.0 : 0.0;
        y[i] = static_cast<float>(v == v ? rounded : v);
    }
}

struct Scales {
    double largest[BATCH], poison[BATCH], scale[BATCH], divisor[BATCH];
};

INLINE void measure_block(const float* x, int64_t n, double& largest, double& poison) {
    uint32_t bits = largest_bits(x, n);
    poison = bits < INFINITE ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    if (bits >= INFINITE) bits = largest_finite_bits(x, n);
    largest = bit_cast<float>(bits);
}

// `count` blocks of `size` elements; the last one has `last_size`. Scales are found for all of
// them at once, which keeps the chain of operations behind a scale out of the elements' way.
template <class CoreOf, class ScaleOf>
INLINE void batch(const Plan& p, const float* x, float* y, int64_t size, int64_t count,
                  int64_t last_size) {
    const CoreOf core(p);
    const double limit = p.limit;
    const int64_t whole = last_size == size ? count : count - 1;
    Scales s;
    for (int64_t b = 0; b < whole; b++)
        measure_block(x + b * size, size, s.largest[b], s.poison[b]);
    if (whole < count)
        measure_block(x + whole * size, last_size, s.largest[whole], s.poison[whole]);
    INDEPENDENT
    for (int64_t b = 0; b < count; b++)
        ScaleOf::find(p, s.largest[b], s.poison[b], s.scale[b], s.divisor[b]);
    const auto round = [&](int64_t b, int64_t n) __attribute__((always_inline)) {
        const float* from = x + b * size;
        float* to = y + b * size;
        const double scale = s.scale[b], divisor = s.divisor[b];
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            const double rounded = core(ScaleOf::divide(from[i], divisor)) * scale;
            to[i] = static_cast<float>(clamp(rounded, -limit, limit));
        }
    };
    for (int64_t b = 0; b < whole; b++) round(b, size);
    if (whole < count) round(whole, last_size);
}

// A block size known to the compiler is worth a factor of two.
template <class CoreOf, class ScaleOf>
INLINE void blocks(const Plan& p, const float* x, float* y, int64_t n) {
    const int64_t size = p.block, total = (n + size - 1) / size;
    for (int64_t first = 0; first < total; first += BATCH) {
        const int64_t count = total - first < BATCH ? total - first : BATCH, at = first * size;
        const int64_t left = n - at - (count - 1) * size, last = left < size ? left : size;
        if (size == 32)
            batch<CoreOf, ScaleOf>(p, x + at, y + at, 32, count, last);
        else if (size == 16)
            batch<CoreOf, ScaleOf>(p, x + at, y + at, 16, count, last);
        else
            batch<CoreOf, ScaleOf>(p, x + at, y + at, size, count, last);
    }
}

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

CLONES uint32_t largest_of_tile(const float* x, int64_t n) {
    const uint32_t bits = largest_bits(x, n);
    return bits < INFINITE ? bits : largest_finite_bits(x, n);
}

struct Sum {
    double sum, count;
};

// Sums in lanes, since additions may not be reordered. Magnitudes are compared and masked as bits:
// branches would be mispredicted half of the time.
CLONES Sum sum_of_tile(const float* x, int64_t n, float above) {
    constexpr int64_t LANES = 32;
    const int32_t above_bits = above < 0 ? -1 : bit_cast<int32_t>(above + 0.0f);
    double sums[LANES] = {};
    int32_t counts[LANES] = {};
    float padded[LANES];
    for (int64_t i = 0; i < n; i += LANES) {
        const float* part = x + i;
        if (n - i < LANES) {
            std::fill(padded, padded + LANES, std::numeric_limits<float>::quiet_NaN());
            std::copy(part, x + n, padded);
            part = padded;
        }
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int32_t bits = magnitude_bits(part[lane]);
            const int32_t mask = -((bits > above_bits) & (bits < int32_t(INFINITE)));
            sums[lane] += bit_cast<float>(bits & mask);
            counts[lane] -= mask;
        }
    }
    Sum total = {0, 0};
    for (int64_t lane = 0; lane < LANES; lane++) {
        total.sum += sums[lane];
        total.count += counts[lane];
    }
    return total;
}

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

void widen(const uint16_t* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
}

// To nearest, ties to even.
void narrow(const float* x, uint16_t* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = bit_cast<uint32_t>(x[i]);
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        y[i] = x[i] == x[i] ? rounded : 0x7fc0;
    }
}

#ifdef __FLT16_MANT_DIG__
void widen(const _Float16* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i];
}

void narrow(const float* x, _Float16* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = static_cast<_Float16>(x[i]);
}
#endif

struct Tile {
    int64_t line, start, elements;
};

// Lines are cut into tiles of whole blocks; no block straddles lines.
struct Tiling {
    int64_t size, per_line, length, count;
    Tiling(int64_t block, int64_t lines, int64_t length_)
        : size(block > TILE ? block : TILE / block * block),
          per_line((length_ + size - 1) / size),
          length(length_),
          count(lines * per_line) {}
    Tile operator[](int64_t index) const {
        const int64_t line = index / per_line, before = (index - line * per_line) * size;
        const int64_t left = length - before;
        return {line, line * length + before, left < size ? left : size};
    }
};

// Calls work(first, last) for parts of the tiles, in parallel.
template <class Work> void parallel(const Tiling& tiling, int64_t elements, int threads, Work work) {
    int64_t parts = elements / PER_THREAD;
    parts = clamp<int64_t>(parts < threads ? parts : threads, 1, tiling.count);
    std::vector<std::thread> started;
    int64_t first = 0;
    for (int64_t part = 1; part < parts; part++) {
        const int64_t last = tiling.count * part / parts;
        try {
            started.emplace_back(work, first, last);
        } catch (const std::system_error&) {
            break;  // the machine gives no more threads: this one does the rest
        }
        first = last;
    }
    work(first, tiling.count);
    for (auto& thread : started) thread.join();
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

// Fresh memory in pages of 2 MiB costs a fraction of what it costs in pages of 4 KiB, which is
// most of the time that a large result takes. Where the kernel refuses, nothing changes.
void prefer_huge_pages(void* memory, int64_t size_bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + HUGE_PAGE - 1) & -HUGE_PAGE;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + size_bytes) & -HUGE_PAGE;
    if (size_bytes >= 8 * int64_t(HUGE_PAGE))
        madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)size_bytes;
#endif
}

template <class T>
int run(const Plan& p, const void* x, void* y, int64_t lines, int64_t length, const double* scales,
        int threads) {
    const Loop loop = loop_of(p);
    if (!loop) return 1;
    prefer_huge_pages(y, lines * length * static_cast<int64_t>(sizeof(T)));
    const Tiling tiling(p.block, lines, length);
    parallel(tiling, lines * length, threads, [=, &p](int64_t first, int64_t last) {
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
    parallel(tiling, lines * length, threads, [&](int64_t first, int64_t last) {
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
    parallel(tiling, lines * length, threads, [&](int64_t first, int64_t last) {
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
