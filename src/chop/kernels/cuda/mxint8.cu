// Launches the kernel for each result type.

#include "mxint8.h"

#include "mxint8.cuh"

namespace {

template <typename T>
void launch(const uint8_t* codes, const uint8_t* scales, void* y, const mxint8::Layout& layout,
            cudaStream_t stream) {
    const auto tiles = static_cast<unsigned>((layout.count + mxint8::TILE - 1) / mxint8::TILE);
    mxint8::dequantize<T><<<tiles, mxint8::THREADS, 0, stream>>>(codes, scales,
                                                                static_cast<T*>(y), layout);
}

}  // namespace

cudaError_t launch_dequantize(const uint8_t* codes, const uint8_t* scales, void* y, Type type,
                              int64_t count, uint32_t row_size, uint32_t blocks_per_row,
                              uint32_t block_size, cudaStream_t stream) {
    const mxint8::Layout layout{count, row_size, blocks_per_row, block_size};
    switch (type) {
        case Type::FLOAT32: launch<float>(codes, scales, y, layout, stream); break;
        case Type::BFLOAT16: launch<__nv_bfloat16>(codes, scales, y, layout, stream); break;
        case Type::FLOAT16: launch<__half>(codes, scales, y, layout, stream); break;
    }
    return cudaGetLastError();
}
