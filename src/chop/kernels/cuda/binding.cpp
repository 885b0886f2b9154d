// Python binding of the kernel.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include "mxint8.h"

namespace {

Type type_of(at::ScalarType dtype) {
    switch (dtype) {
        case at::kFloat: return Type::FLOAT32;
        case at::kBFloat16: return Type::BFLOAT16;
        case at::kHalf: return Type::FLOAT16;
        default: TORCH_CHECK(false, "expected float32, bfloat16 or float16, got ", dtype);
    }
}

bool is_aligned(const at::Tensor& x) {
    return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
}

// Writes to `y`; the arguments after it are those of `launch_dequantize`.
void dequantize(const at::Tensor& codes, const at::Tensor& scales, at::Tensor& y, int64_t row_size,
                int64_t blocks_per_row, int64_t block_size) {
    TORCH_CHECK(codes.is_cuda() && scales.is_cuda() && y.is_cuda(), "expected tensors on a GPU");
    TORCH_CHECK(is_aligned(codes) && is_aligned(y) && scales.is_contiguous(),
                "expected contiguous tensors, aligned to 16 bytes");
    TORCH_CHECK(codes.numel() == y.numel() &&
                    scales.numel() == y.numel() / row_size * blocks_per_row,
                "expected a code for each number and a scale for each block");
    const c10::cuda::CUDAGuard guard(y.device());
    const cudaError_t error = launch_dequantize(
        codes.data_ptr<uint8_t>(), scales.data_ptr<uint8_t>(), y.data_ptr(),
        type_of(y.scalar_type()), y.numel(), static_cast<uint32_t>(row_size),
        static_cast<uint32_t>(blocks_per_row), static_cast<uint32_t>(block_size),
        c10::cuda::getCurrentCUDAStream());
    TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("dequantize", &dequantize, "Decodes MXINT8 into a tensor");
}
