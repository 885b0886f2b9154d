#pragma once

#include <immintrin.h>

#include <cstdint>

struct __half {
    uint16_t bits;
};

inline __half __float2half_rn(float x) { return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)}; }
