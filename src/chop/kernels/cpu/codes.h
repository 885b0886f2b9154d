// Decoding of bit-packed codes.
#pragma once

#include <cfloat>
#include <cstdint>
#include <cstring>

#include "numeric.h"

namespace {

enum Reading : int32_t {
    TABLE,      // table[code]; every reading but TRITS has this table
    WHOLE,      // two's complement
    NATURAL,    // without a sign
    MAGNITUDE,  // 8 bits: sign, whole number
    MIRRORED,   // 4 bits: sign, table[the rest]
    FLOAT,      // 8 bits: sign, exponent, fraction, up to `largest_code`; table[code] beyond
    TRITS       // base 3, five digits to a byte; table[digit]
};
enum ScaleStorage : int32_t {
    NO_SCALE,
    SCALE_CODES,
    SCALE_FLOATS,
    SCALES_AND_ZEROS,  // two bytes for a scale's code and one for a zero point's
    NESTED_SCALES      // a byte for each scale, a float32 factor for each 256, and a float32 mean
};

// Same fields as in chop.kernels.codes.
struct Codes {
    int32_t reading, width, scale_storage, scale_width, mantissa_width, largest_code;
    float step;    // of floats: 2^(127 - bias)
    float factor;  // of all scales
    const float* table;
    const float* scale_table;
    const float* zero_table;
    int64_t group;           // columns that share a scale
    int64_t groups_per_row;  // 0: the rows have the same scales
    int64_t scale_count;     // of the tensor
};

constexpr int TRITS_PER_BYTE = 5;

// Code `index` of a tensor, of up to 16 bits, the lowest bit first.
INLINE uint32_t code_at(const uint8_t* packed, int64_t index, int width) {
    const int64_t bit = index * width;
    const uint8_t* from = packed + (bit >> 3);
    const int shift = bit & 7;
    uint32_t word = from[0];
    if (shift + width > 8) word |= static_cast<uint32_t>(from[1]) << 8;
    if (shift + width > 16) word |= static_cast<uint32_t>(from[2]) << 16;
    return word >> shift & ((1u << width) - 1);
}

constexpr int SCALE_AND_ZERO_BYTES = 3;
constexpr int64_t NESTED_GROUP = 256;

// `NestedScale.restore`. The floats follow the codes, so they are not aligned.
INLINE float nested_scale_at(const Codes& c, const uint8_t* packed, int64_t index) {
    const int64_t factors = (c.scale_count + NESTED_GROUP - 1) / NESTED_GROUP;
    const uint8_t* floats = packed + c.scale_count;
    float factor, mean;
    std::memcpy(&factor, floats + index / NESTED_GROUP * sizeof(float), sizeof(float));
    std::memcpy(&mean, floats + factors * sizeof(float), sizeof(float));
    const float scale = c.scale_table[packed[index]] * factor + mean;
    return scale > FLT_MAX ? FLT_MAX : scale;
}

INLINE float scale_at(const Codes& c, const void* scales, int64_t index) {
    if (c.scale_storage == NO_SCALE) return 1.0f;
    if (c.scale_storage == SCALE_FLOATS) return static_cast<const float*>(scales)[index];
    const uint8_t* packed = static_cast<const uint8_t*>(scales);
    if (c.scale_storage == NESTED_SCALES) return nested_scale_at(c, packed, index);
    if (c.scale_width == 8) return c.scale_table[packed[index]];
    if (c.scale_storage == SCALE_CODES) return c.scale_table[code_at(packed, index, c.scale_width)];
    return c.scale_table[code_at(packed + SCALE_AND_ZERO_BYTES * index, 0, 16)];
}

INLINE float zero_at(const Codes& c, const void* scales, int64_t index) {
    if (c.scale_storage != SCALES_AND_ZEROS) return 0.0f;
    return c.zero_table[static_cast<const uint8_t*>(scales)[SCALE_AND_ZERO_BYTES * index + 2]];
}

// Eight codes fill `WIDTH` bytes.
template <int WIDTH>
INLINE void read_eights(const Codes& c, const uint8_t* packed, int64_t eights, float* out) {
    for (int64_t i = 0; i < eights; i++) {
        uint64_t word = 0;
        std::memcpy(&word, packed + i * WIDTH, WIDTH);
        for (int place = 0; place < 8; place++)
            out[8 * i + place] = c.table[word >> WIDTH * place & ((1 << WIDTH) - 1)];
    }
}

INLINE void read_trits(const Codes& c, const uint8_t* packed, int64_t first, int64_t count,
                       float* out) {
    const uint8_t* from = packed + first / TRITS_PER_BYTE;
    int place = first % TRITS_PER_BYTE, digits = *from;
    for (int i = 0; i < place; i++) digits /= 3;
    for (int64_t i = 0; i < count; i++) {
        out[i] = c.table[digits % 3];
        digits /= 3;
        if (++place == TRITS_PER_BYTE && i + 1 < count) place = 0, digits = *++from;
    }
}

// `count` values from element `first` on, not yet scaled.
CLONES void read_values(const Codes& c, const uint8_t* packed, int64_t first, int64_t count,
                        float* out) {
    int64_t done = 0;
    if (c.reading == WHOLE && c.width == 8) {
        const int8_t* whole = reinterpret_cast<const int8_t*>(packed) + first;
        for (; done < count; done++) out[done] = whole[done];
    } else if (c.reading == TRITS) {
        read_trits(c, packed, first, count, out);
        done = count;
    } else if (c.width == 8) {
        for (; done < count; done++) out[done] = c.table[packed[first + done]];
    } else if (first * c.width % 8 == 0) {
        const uint8_t* from = packed + first * c.width / 8;
        const int64_t eights = count / 8;
        if (c.width == 1) read_eights<1>(c, from, eights, out);
        if (c.width == 2) read_eights<2>(c, from, eights, out);
        if (c.width == 3) read_eights<3>(c, from, eights, out);
        if (c.width == 4) read_eights<4>(c, from, eights, out);
        if (c.width == 5) read_eights<5>(c, from, eights, out);
        if (c.width == 6) read_eights<6>(c, from, eights, out);
        if (c.width == 7) read_eights<7>(c, from, eights, out);
        done = c.width < 8 ? 8 * eights : 0;
    }
    for (; done < count; done++) out[done] = c.table[code_at(packed, first + done, c.width)];
}

// A product beyond the largest finite number becomes that.
INLINE float bounded(float v) { return clamp(v, -FLT_MAX, FLT_MAX); }

// Adding +0 turns -0 into +0; adding -0 changes nothing.
CLONES void scale_values(float* values, int64_t count, float zero_point, float scale, float factor,
                         float signed_zero) {
    for (int64_t i = 0; i < count; i++)
        values[i] = bounded((values[i] - zero_point) * scale * factor) + signed_zero;
}

// A row of `columns` values, scaled.
void read_row(const Codes& c, const uint8_t* packed, const void* scales, int64_t row,
              int64_t columns, float* out) {
    read_values(c, packed, row * columns, columns, out);
    if (c.scale_storage == NO_SCALE && c.factor == 1) return;
    const float signed_zero = c.reading == TRITS ? 0.0f : -0.0f;
    int64_t index = row * c.groups_per_row;
    for (int64_t first = 0; first < columns; first += c.group) {
        const int64_t left = columns - first;
        const float scale = scale_at(c, scales, index), zero_point = zero_at(c, scales, index++);
        scale_values(out + first, left < c.group ? left : c.group, zero_point, scale, c.factor,
                     signed_zero);
    }
}

}  // namespace
