// Interface between the binding and the kernel.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

enum class Type { FLOAT32, BFLOAT16, FLOAT16 };

// Decodes `count` codes to `y`, of that type. Codes and y are aligned to 16 bytes. A row has
// `row_size` elements and `blocks_per_row` blocks of `block_size`, of which the last may be shorter.
cudaError_t launch_dequantize(const uint8_t* codes, const uint8_t* scales, void* y, Type type,
                              int64_t count, uint32_t row_size, uint32_t blocks_per_row,
                              uint32_t block_size, cudaStream_t stream);
