// How the positions that a query row sees are shared out to the blocks that take them: known to the kernel that does it and to
// the one that merges what they leave.
#ifndef QN_KERNELS_ATTENTION_SPLIT_CUH
#define QN_KERNELS_ATTENTION_SPLIT_CUH

#include "kernels/attention/attention_cuda.h"

struct qn_attention_span {
    uint32_t begin, end;    // rows of the cache
    uint32_t tile0, tiles;  // of QN_ATTENTION_KEYS rows, at multiples of it
    uint32_t share, active; // tiles of a part; parts that have any, at least one
};

QN_DEVICE void qn_attention_share(qn_attention_span &s, uint32_t n_parts)
{
    s.tile0 = s.begin / QN_ATTENTION_KEYS;
    s.tiles = (s.end + QN_ATTENTION_KEYS - 1) / QN_ATTENTION_KEYS - s.tile0;
    s.share = max((s.tiles + n_parts - 1) / n_parts, (uint32_t)QN_ATTENTION_LEAST);
    s.active = (s.tiles + s.share - 1) / s.share;
}

QN_DEVICE qn_attention_span qn_attention_span_of(const qn_attention_visible &v, uint32_t position, uint32_t n_splits)
{
    qn_attention_span s;
#if QN_RUNS
    const uint32_t run = position / QN_ATTENTION_RUN;
    s.begin = 0;
    s.end = run ? (run - 1) * QN_ATTENTION_RUN : 0;
    qn_attention_share(s, n_splits - 1);
    s.active++; // the halves
#else
    s.end = v.causal ? min(position + 1, v.n_keys) : v.n_keys;
    s.begin = v.window && position >= v.window ? min(position + 1 - v.window, s.end) : 0;
    qn_attention_share(s, n_splits);
    s.active = max(s.active, 1u);
#endif
    return s;
}

#endif
