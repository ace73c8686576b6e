// Partition of the visible positions of a query row into KV splits. decode.cu and decode_codes.cu compute the splits,
// combine.cuh combines their results; all use this header. work.cuh distributes the splits over blocks.
#ifndef QN_CUDA_KERNELS_ATTENTION_SPLIT_CUH
#define QN_CUDA_KERNELS_ATTENTION_SPLIT_CUH

#include "cuda/kernels/attention/attention.h"

struct qn_attention_span {
    uint32_t begin, end;                     // rows of the cache
    uint32_t tile0, tiles;                   // in tiles of QN_ATTENTION_TILE_KV rows, aligned to multiples of it
    uint32_t tiles_per_split, active_splits; // tiles of a split; splits that have work
};

QN_DEVICE void qn_attention_split_tiles(qn_attention_span &s, const qn_attention_splits &splits, uint32_t n_ranges)
{
    s.tile0 = s.begin / QN_ATTENTION_TILE_KV;
    s.tiles = (s.end + QN_ATTENTION_TILE_KV - 1) / QN_ATTENTION_TILE_KV - s.tile0;
    const uint32_t unit = n_ranges * splits.tiles;
    s.tiles_per_split = max((s.tiles + unit - 1) / unit, 1u) * splits.tiles;
    s.active_splits = (s.tiles + s.tiles_per_split - 1) / s.tiles_per_split;
}

// Depends on nothing but the row's position: neither on the other rows of the step nor on the blocks of the launch.
QN_DEVICE qn_attention_span qn_attention_span_of(const qn_attention_mask &v, const qn_attention_splits &splits, uint32_t row)
{
    qn_attention_span s;
    const uint32_t position = v.positions ? v.positions[row] : 0;
    const bool has_session = !v.sessions || v.sessions[row] != QN_ATTENTION_NO_SESSION;
#if QN_PAGES
    const uint32_t page = position / QN_PAGE;
    s.begin = 0;
    s.end = page ? (page - 1) * QN_PAGE : 0;
    qn_attention_split_tiles(s, splits, splits.n - 1);
    s.active_splits++; // split 0: the fp16 pages
#else
    s.end = v.causal ? min((v.ends ? v.ends[row] : position) + 1, v.n_keys) : v.n_keys;
    s.begin = v.window && position >= v.window ? min(position + 1 - v.window, s.end) : min(v.first, s.end);
    qn_attention_split_tiles(s, splits, splits.n);
    s.active_splits = max(s.active_splits, 1u);
#endif
    s.active_splits = has_session ? s.active_splits : 0;
    return s;
}

#endif
