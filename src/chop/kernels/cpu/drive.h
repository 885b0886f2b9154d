// Processes a tensor tile by tile, in parallel.
#pragma once

#include <algorithm>
#include <cfloat>
#include <vector>

#include "blocks.h"
#include "halves.h"
#include "statistics.h"
#include "threads.h"

namespace {

using Loop = void (*)(const Plan&, const Part&);
using StripLoop = void (*)(const Plan&, const Strip&);

// Loops over blocks write the saturation mask themselves.
void round_marked(const Plan& p, Loop loop, const Part& part) {
    if (part.mask) {
        const double scale = part.scales ? *part.scales : 1.0;
        if (p.core == TERNARY)
            mark(part.x, part.mask, part.n, -std::min<double>(scale, FLT_MAX),
                 std::min<double>(scale, FLT_MAX));
        else if (p.scale == GIVEN || p.scale == MEAN)
            mark_scaled(part.x, part.mask, part.n, p.lowest_unsaturated, p.highest_unsaturated, scale);
        else if (p.scale == NONE)
            mark(part.x, part.mask, part.n, p.lowest_unsaturated, p.highest_unsaturated);
    }
    loop(p, part);
}

// Lines that have the mean of their magnitudes as a scale. Those that are not certain get NaN, and
// stay as they are.
void round_by_means(const Plan& p, Loop loop, const Part& part) {
    const float above = p.core == TERNARY ? p.low : -1.0f;
    for (int64_t at = 0, line = 0; at < part.n; at += p.block, line++) {
        Sum sum = {0, 0};
        for (int64_t i = 0; i < p.block; i += TILE)
            sum.add(sum_of_tile(part.x + at + i, std::min(TILE, p.block - i), above));
        const Bounds mean(sum, p.block, p.roundoff);
        const float scale = mean.low;
        double* const kept = part.scales + line;
        *kept = scale == static_cast<float>(mean.high) ? scale : NOT_A_NUMBER;
        if (*kept == *kept)
            round_marked(p, loop, {part.x + at, part.y + at,
                                   part.mask ? part.mask + at : nullptr, p.block, kept});
    }
}

void round_part(const Plan& p, Loop loop, const Part& part) {
    p.scale == MEAN ? round_by_means(p, loop, part) : round_marked(p, loop, part);
}

// As float32; `buffer` is for what is not.
void convert(const Plan& p, Loop loop, const float* x, float* y, const Part& part, float*) {
    round_part(p, loop, {x, y, part.mask, part.n, part.scales});
}

template <class Half>
void convert(const Plan& p, Loop loop, const Half* x, Half* y, const Part& part, float* buffer) {
    widen(x, buffer, part.n);
    round_part(p, loop, {buffer, buffer, part.mask, part.n, part.scales});
    narrow(buffer, y, part.n);
}

// A tensor as lines, with the outputs for its results.
struct Lines {
    const void* x;
    void* y;
    uint8_t* mask;
    double* scales;
    int64_t count, length;
};

template <class T>
int round_lines(const Plan& p, Loop loop, const Lines& lines, int threads) {
    if (!loop) return 1;
    const int64_t elements = lines.count * lines.length;
    prefer_huge_pages(lines.y, elements * static_cast<int64_t>(sizeof(T)));
    const Tiling tiling(p.block, lines.count, lines.length);
    parallel(tiling.count, elements, threads, [&](int64_t first, int64_t last) {
        const bool is_whole = sizeof(T) == sizeof(float);
        std::vector<float> buffer(is_whole ? 0 : std::min(tiling.size, tiling.length));
        for (int64_t i = first; i < last; i++) {
            const Tile tile = tiling[i];
            const int64_t scale = p.scale == MEAN ? tile.start / p.block : tile.line;
            const Part part = {nullptr, nullptr, lines.mask ? lines.mask + tile.start : nullptr,
                               tile.elements, lines.scales ? lines.scales + scale : nullptr};
            convert(p, loop, static_cast<const T*>(lines.x) + tile.start,
                    static_cast<T*>(lines.y) + tile.start, part, buffer.data());
        }
    });
    return 0;
}

// A tensor as matrices whose blocks are p.block columns wide and have several rows.
struct Grid {
    const void* x;
    void* y;
    uint8_t* mask;
    int64_t matrices, rows, columns, block_rows;
};

void convert(const Plan& p, StripLoop loop, const float* x, float* y, Strip strip, float*) {
    strip.x = x;
    strip.y = y;
    loop(p, strip);
}

template <class Half>
void convert(const Plan& p, StripLoop loop, const Half* x, Half* y, const Strip& strip,
             float* buffer) {
    const int64_t n = strip.columns;
    for (int64_t row = 0; row < strip.rows; row++)
        widen(x + row * strip.stride, buffer + row * n, n);
    loop(p, {buffer, buffer, strip.mask, strip.rows, n, n, strip.mask_stride});
    for (int64_t row = 0; row < strip.rows; row++)
        narrow(buffer + row * n, y + row * strip.stride, n);
}

template <class T>
int round_grid(const Plan& p, StripLoop loop, const Grid& grid, int threads) {
    if (!loop || p.block > BATCH) return 1;
    const int64_t rows = grid.rows, columns = grid.columns, elements = grid.matrices * rows * columns;
    prefer_huge_pages(grid.y, elements * static_cast<int64_t>(sizeof(T)));
    const int64_t tall = std::min(grid.block_rows, rows);
    const int64_t wanted = clamp<int64_t>(TILE / tall, 16, BATCH) / p.block * p.block;
    const int64_t wide = std::min(std::max(wanted, p.block), columns);
    const int64_t down = (rows + tall - 1) / tall, across = (columns + wide - 1) / wide;
    parallel(grid.matrices * down * across, elements, threads, [&](int64_t first, int64_t last) {
        std::vector<float> buffer(sizeof(T) == sizeof(float) ? 0 : tall * wide);
        for (int64_t i = first; i < last; i++) {
            const int64_t row = i / across % down * tall, column = i % across * wide;
            const int64_t at = (i / across / down * rows + row) * columns + column;
            const Strip strip = {nullptr, nullptr, grid.mask ? grid.mask + at : nullptr,
                                 std::min(tall, rows - row), std::min(wide, columns - column),
                                 columns, columns};
            convert(p, loop, static_cast<const T*>(grid.x) + at, static_cast<T*>(grid.y) + at,
                    strip, buffer.data());
        }
    });
    return 0;
}

template <class Bits>
void clip_all(const void* x, const uint8_t* mask, void* y, int64_t n, int threads) {
    prefer_huge_pages(y, n * static_cast<int64_t>(sizeof(Bits)));
    const Tiling tiling(1, 1, n);
    parallel(tiling.count, n, threads, [=](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            const Tile tile = tiling[i];
            clip(static_cast<const Bits*>(x) + tile.start, mask + tile.start,
                 static_cast<Bits*>(y) + tile.start, tile.elements);
        }
    });
}

}  // namespace
