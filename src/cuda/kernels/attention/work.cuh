// Distribution of the KV splits of all rows over the blocks of the launch, or over their teams. The order of splits is:
// rows, their query tiles, the splits of a row in ascending order. Each split has a weight, an estimate of its time. Of
// the sum of weights W, block b of G processes the splits whose middle is in [b * W / G, (b + 1) * W / G): adjacent
// splits of a query tile in one piece of work, whose rows of the cache stream without a gap. The launch depends on
// neither the number of splits nor the lengths of rows, so that a captured graph serves all. Results do not depend on
// the distribution.
#ifndef QN_CUDA_KERNELS_ATTENTION_WORK_CUH
#define QN_CUDA_KERNELS_ATTENTION_WORK_CUH

#include "cuda/kernels/attention/split.cuh"
#include "cuda/kernels/ranges.cuh"

// Weights, in the time of a tile of codes or of fp16 values.
#define SPLIT_WEIGHT 4                         // of a split in addition to its tiles: the reduction over warps
#define FIRST_WEIGHT (QN_PAGES ? 24 : 8)       // of the fp16 pages; without them, of loading a query tile
#define CACHE_SPLIT (QN_PAGES ? 1 : 0)         // the first split of the cache: after that of the fp16 pages

// The splits of one query tile of a row.
struct tile_work {
    uint32_t n, first, each; // number of splits; weight before the first split of the cache; weight of each

    __device__ __forceinline__ uint32_t weight() const
    {
        return n ? first + (n - CACHE_SPLIT) * each : 0;
    }

    // The number of splits whose middle is below x.
    __device__ __forceinline__ uint32_t splits_below(uint64_t x) const
    {
        const uint32_t limit = (uint32_t)min(x, (uint64_t)weight()), middle = first + each / 2;
        const uint32_t of_cache = limit > middle ? (limit - middle + each - 1) / each : 0;
        return (QN_PAGES && first / 2 < limit ? 1 : 0) + min(of_cache, n - CACHE_SPLIT);
    }
};

// alone: no block has more than one split, and all weigh the same.
QN_DEVICE tile_work tile_work_of(const qn_attention_span &span, bool alone)
{
    const uint32_t n = span.active_splits;
    return alone ? tile_work{ n, 2 * CACHE_SPLIT, 2 } : tile_work{ n, FIRST_WEIGHT, min(span.tiles, span.tiles_per_split) + SPLIT_WEIGHT };
}

// Adjacent splits [first, last) of a query tile of a row: of the fp16 pages, or of the cache.
struct work_piece {
    uint32_t row, query_tile, first, last;
};

// The block's pieces of work, in order. By full warps: each computes the same.
struct block_work {
    uint64_t begin, end;      // weights of the block
    uint64_t at;              // where the current query tile begins
    uint32_t row, query_tile; // the current query tile
    uint32_t done;            // its splits below this one have been returned
    bool alone;

    // The work of block `block` of n_blocks; false if it has none.
    __device__ __forceinline__ bool find(const qn_attention_mask &mask, const qn_attention_splits &splits, uint32_t n_rows,
                                         uint32_t n_query_tiles, uint32_t block, uint32_t n_blocks)
    {
        uint64_t n = 0, weight = 0;
        for (uint32_t i = threadIdx.x % QN_WARP_SIZE; i < n_rows; i += QN_WARP_SIZE) {
            const tile_work w = tile_work_of(qn_attention_span_of(mask, splits, i), false);
            n += w.n;
            weight += w.weight();
        }
        n = qn_warp_sum_u64(n) * n_query_tiles;
        alone = n <= n_blocks;
        if (alone) {
            begin = 2 * block;
            end = begin + 2;
        } else {
            weight = qn_warp_sum_u64(weight) * n_query_tiles;
            const uint64_t part = weight / n_blocks;
            const uint32_t rest = (uint32_t)(weight - part * n_blocks);
            begin = part * block + rest * block / n_blocks;
            end = part * (block + 1) + rest * (block + 1) / n_blocks;
        }
        const qn_range range = qn_find_range(n_rows, begin, [&](uint32_t i) {
            return (uint64_t)n_query_tiles * tile_work_of(qn_attention_span_of(mask, splits, i), alone).weight();
        });
        if (range.index == n_rows)
            return false;
        row = range.index;
        const uint32_t weight_of_tile = tile_work_of(qn_attention_span_of(mask, splits, row), alone).weight();
        const uint64_t in_row = begin - range.begin;
        query_tile = in_row >> 32 ? (uint32_t)(in_row / weight_of_tile) : (uint32_t)in_row / weight_of_tile;
        at = range.begin + (uint64_t)query_tile * weight_of_tile;
        done = 0;
        return true;
    }

    // The next piece, and the span of its row; false after the last.
    __device__ __forceinline__ bool next(work_piece &piece, qn_attention_span &span, const qn_attention_mask &mask,
                                         const qn_attention_splits &splits, uint32_t n_rows, uint32_t n_query_tiles)
    {
        while (row < n_rows && at < end) {
            span = qn_attention_span_of(mask, splits, row);
            const tile_work tile = tile_work_of(span, alone);
            const uint32_t first = max(done, tile.n && begin > at ? tile.splits_below(begin - at) : 0),
                           last = tile.n ? tile.splits_below(end - at) : 0;
            if (first < last) {
                done = CACHE_SPLIT && first == 0 ? 1 : last;
                piece = { row, query_tile, first, done };
                return true;
            }
            done = 0;
            at += tile.weight();
            query_tile = tile.n ? query_tile + 1 : n_query_tiles;
            if (query_tile == n_query_tiles) {
                query_tile = 0;
                row++;
            }
        }
        return false;
    }
};

#endif
