// What a kernel needs of CUDA, on a CPU: a thread of the system for each of a block's, and blocks
// one after the other, so that what they share may be static.

#pragma once

#include <barrier>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static

struct Index {
    unsigned x;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline thread_local Index threadIdx, blockIdx;
inline std::barrier<>* of_block = nullptr;

inline void __syncthreads() { of_block->arrive_and_wait(); }

inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

template <typename Kernel, typename... Arguments>
void launch(unsigned blocks, unsigned threads, Kernel kernel, Arguments... arguments) {
    for (unsigned block = 0; block < blocks; block++) {
        std::barrier barrier(threads);
        of_block = &barrier;
        std::vector<std::thread> running;
        for (unsigned thread = 0; thread < threads; thread++)
            running.emplace_back([=] {
                blockIdx.x = block;
                threadIdx.x = thread;
                kernel(arguments...);
            });
        for (auto& each : running) each.join();
    }
}
