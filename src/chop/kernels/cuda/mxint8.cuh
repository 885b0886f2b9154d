// Decodes MXINT8: whole numbers of 8 bits in units of 2^-6, times a power of two for each block.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace mxint8 {

constexpr int THREADS = 256;
constexpr int WIDEST = 16;                // bytes that a thread moves at once
constexpr int TILE = THREADS * WIDEST;    // codes of a thread block: one load for each thread
constexpr int UNIT_EXPONENT = -6;
constexpr int NAN_SCALE = 255;

// Layout of blocks. The last block of a row may be shorter.
struct Layout {
    int64_t count;            // elements
    uint32_t row_size;        // elements
    uint32_t blocks_per_row;
    uint32_t block_size;      // elements
};

// A place in the tensor: its block, counted from some other one, and its column.
struct Place {
    uint32_t block, column;
};

// The place `offset` elements after `column` of a row whose first block has number 0.
__device__ __forceinline__ Place place_of(uint32_t column, uint32_t offset, const Layout& layout) {
    const uint32_t row = (column + offset) / layout.row_size;
    column = column + offset - row * layout.row_size;
    return {row * layout.blocks_per_row + column / layout.block_size, column};
}

// 2^(scale - 127) times the unit of codes. The smallest are subnormal, and still exact.
__device__ __forceinline__ float factor_of(uint8_t scale) {
    const float power = __int_as_float(scale == 0 ? 0x00400000 : scale << 23);
    return scale == NAN_SCALE ? __int_as_float(0x7FC00000) : power * (1.0f / (1 << -UNIT_EXPONENT));
}

// Clamps to the largest number of the dtype; NaN stays.
__device__ __forceinline__ float limited(float x, float limit) {
    return x > limit ? limit : x < -limit ? -limit : x;
}

__device__ __forceinline__ void convert(float x, float& y) { y = limited(x, 3.40282347e38f); }

__device__ __forceinline__ void convert(float x, __nv_bfloat16& y) {
    y = __float2bfloat16_rn(limited(x, 3.38953139e38f));
}

__device__ __forceinline__ void convert(float x, __half& y) {
    y = __float2half_rn(limited(x, 65504.0f));
}

// Decodes a tile of consecutive elements.
//
// Codes are read 16 bytes to a thread and results written 16 bytes to a thread, which are of
// other elements: shared memory hands them over. It also keeps each block's scale, decoded once.
// No number is read from memory twice, with shared memory or without.
template <typename T>
__global__ void dequantize(const uint8_t* codes, const uint8_t* scales, T* y, Layout layout) {
    constexpr int WIDE = WIDEST / sizeof(T);
    alignas(WIDEST) __shared__ int8_t tile[TILE];
    // As many as blocks of one element need, and what is computed beyond the end and not written.
    __shared__ float factors[TILE + WIDE];

    const int64_t begin = static_cast<int64_t>(blockIdx.x) * TILE;
    const int64_t left = layout.count - begin;
    const int size = left < TILE ? static_cast<int>(left) : TILE;
    const int64_t row = begin / layout.row_size;
    const uint32_t column = static_cast<uint32_t>(begin - row * layout.row_size);
    const uint32_t first = column / layout.block_size;
    const uint8_t* tile_scales = scales + row * layout.blocks_per_row + first;

    const int own = threadIdx.x * WIDEST;
    if (own + WIDEST <= size) {
        *reinterpret_cast<uint4*>(tile + own) =
            *reinterpret_cast<const uint4*>(codes + begin + own);
    } else {
        for (int i = own; i < size; i++) tile[i] = static_cast<int8_t>(codes[begin + i]);
    }
    const int blocks = place_of(column, size - 1, layout).block - first + 1;
    for (int i = threadIdx.x; i < blocks; i += THREADS) factors[i] = factor_of(tile_scales[i]);
    __syncthreads();

    for (int at = threadIdx.x * WIDE; at < size; at += THREADS * WIDE) {
        alignas(WIDEST) T values[WIDE];
        Place place = place_of(column, at, layout);
        uint32_t block = place.block - first;
        uint32_t in_block = place.column % layout.block_size;
#pragma unroll  // else `values` would not be in registers
        for (int i = 0; i < WIDE; i++) {
            convert(tile[at + i] * factors[block], values[i]);
            place.column++;
            in_block++;
            const bool ends_row = place.column == layout.row_size;
            if (ends_row) place.column = 0;
            if (ends_row || in_block == layout.block_size) {
                in_block = 0;
                block++;
            }
        }
        if (at + WIDE <= size) {
            *reinterpret_cast<uint4*>(y + begin + at) = *reinterpret_cast<const uint4*>(values);
        } else {
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                if (at + i < size) y[begin + at + i] = values[i];
            }
        }
    }
}

}  // namespace mxint8
