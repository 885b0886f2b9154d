// Conversion between half precision and float32.
#pragma once

#include "numeric.h"

namespace {

CLONES void widen(const uint16_t* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
}

// To nearest, ties to even.
CLONES void narrow(const float* x, uint16_t* y, int64_t n) {
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

}  // namespace
