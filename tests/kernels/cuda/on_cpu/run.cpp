#include "mxint8.cuh"

template <typename T>
void run(const uint8_t* codes, const uint8_t* scales, void* y, const mxint8::Layout& layout) {
    const auto tiles = static_cast<unsigned>((layout.count + mxint8::TILE - 1) / mxint8::TILE);
    launch(tiles, mxint8::THREADS, mxint8::dequantize<T>, codes, scales, static_cast<T*>(y), layout);
}

extern "C" void dequantize(const uint8_t* codes, const uint8_t* scales, void* y, int type,
                           int64_t count, uint32_t row_size, uint32_t blocks_per_row,
                           uint32_t block_size) {
    const mxint8::Layout layout{count, row_size, blocks_per_row, block_size};
    if (type == 0) run<float>(codes, scales, y, layout);
    if (type == 1) run<__nv_bfloat16>(codes, scales, y, layout);
    if (type == 2) run<__half>(codes, scales, y, layout);
}
