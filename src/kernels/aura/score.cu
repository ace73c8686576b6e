// Scores of queries with the keys of a cache of AURA codes: bound by reading codes and writing scores. A warp takes
// QN_ATTENTION_KEYS keys at a time, and some such tiles are on their way while others are multiplied.
#define QN_RUNS 0
#define QN_KEY_BITS QN_BITS
#define QN_VALUE_BITS QN_BITS
#define QN_WARPS QN_AURA_SCORE_WARPS

#include "kernels/aura/queries.cuh"

#define TILE_WORDS (portion<QN_BITS, 4>::words * 2)    // of a lane
#define AHEAD (TILE_WORDS >= 16 ? 1 : 16 / TILE_WORDS) // tiles, for about 32 KiB of an SM's
#define STEP (AHEAD * QN_WARPS)

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_score(const __grid_constant__ qn_aura_score_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    const int warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    const place p = { warp, lane, lane / 4, lane % 4 };
    const column_tile columns_of_block = take_tile(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    const source from = take_source(a.cache, columns_of_block.kv_head);
    const uint32_t n_keys = a.cache.n_keys, tiles = (n_keys + KEYS - 1) / KEYS, share = (tiles + gridDim.y - 1) / gridDim.y;
    const uint32_t last_tile = min((blockIdx.y + 1) * share, tiles);
    uint32_t tile = blockIdx.y * share + warp * AHEAD;
    uint32_t entry = 0;
    if (threadIdx.x < TABLE_ENTRIES)
        entry = table_entry<QN_BITS>(threadIdx.x, a.cache.key_codec);
    qn_wait_for_previous();
    qn_let_next_begin();

    uint32_t k[AHEAD][2][portion<QN_BITS, 4>::words];
    float scales[AHEAD][2];
    const auto load = [&](int u, uint32_t at) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t r = min(at * KEYS + 8 * i + p.g, from.last_row);
            load_portion<QN_BITS, 4>(k[u][i], from.keys, r, p.t);
            scales[u][i] = from.key_scales[r];
        }
    };
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
        load(u, tile + u);
    put_columns(s, a.queries, a.cache.key_codec, columns_of_block, n_keys, a.queries.scale, p);
    if (threadIdx.x < TABLE_ENTRIES)
        put_entry(TABLES(dynamic), threadIdx.x, entry, entry);
    __syncthreads();

    const uint32_t table = TABLES(dynamic) + 4 * lane;
    columns c;
    take_columns(c, s, p);
    float *out[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t column = 2 * p.t + j;
        out[j] = column < columns_of_block.n_columns ? a.scores + (uint64_t)columns_of_block.query(column) * n_keys : 0;
    }
    for (; tile < last_tile; tile += STEP) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (tile + u >= last_tile)
                break;
            float score[SCORE_SUMS][4];
            add_scores<QN_BITS>(score, k[u], c, s, table, lane);
            const float scale[2] = { scales[u][0], scales[u][1] };
            load(u, tile + u + STEP);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = score[0][i];
#pragma unroll
                for (int j = 1; j < SCORE_SUMS; j++)
                    x += score[j][i];
                const uint32_t r = (tile + u) * KEYS + i / 2 * 8 + p.g;
                if (out[i % 2] && r < n_keys)
                    out[i % 2][r] = x * (scale[i / 2] * c.factors[i % 2]);
            }
        }
    }
}
