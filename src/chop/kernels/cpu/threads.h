// Parallel tiles that fit the cache; huge pages for new memory.
#pragma once

#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "numeric.h"

namespace {

constexpr int64_t TILE = 1 << 13;        // elements worked on at a time: they stay in the cache
constexpr int64_t PER_THREAD = 1 << 16;  // elements for which starting a thread pays
constexpr uintptr_t HUGE_PAGE = 1 << 21;  // bytes

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

// Worthwhile number of parts; `cost` is about the number of elements read or written.
INLINE int64_t parts_of(int64_t items, int64_t cost, int threads) {
    const int64_t wanted = cost / PER_THREAD;
    return clamp<int64_t>(wanted < threads ? wanted : threads, 1, items > 1 ? items : 1);
}

// Calls work(first, last) for parts of `items` items, in parallel.
template <class Work> void parallel(int64_t items, int64_t cost, int threads, Work work) {
    const int64_t parts = parts_of(items, cost, threads);
    const auto part_of = [=](int64_t part) {
        work(items * part / parts, items * (part + 1) / parts);
    };
    if (parts == 1) return part_of(0);  // entering a parallel region takes a microsecond
#if defined(_OPENMP)
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int64_t part = 0; part < parts; part++) part_of(part);
#else
    std::vector<std::thread> started;
    int64_t part = 1;
    try {
        for (; part < parts; part++) started.emplace_back(part_of, part);
    } catch (const std::system_error&) {
        // The machine gives no more threads: this one does the rest.
    }
    part_of(0);
    for (; part < parts; part++) part_of(part);
    for (auto& thread : started) thread.join();
#endif
}

// Fresh memory in pages of 2 MiB costs a fraction of what it costs in pages of 4 KiB, which is
// most of the time that a large result takes. If the kernel declines, nothing changes.
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

}  // namespace
