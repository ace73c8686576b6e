// Scores of queries with the keys of a cache of AURA codes: bound by reading codes and writing scores. A warp processes
// tiles of QN_ATTENTION_TILE_KV keys; TILES_IN_FLIGHT tiles are in flight.
#define QN_PAGES 0
#define QN_KEY_BITS QN_BITS
#define QN_VALUE_BITS QN_BITS
#define QN_WARPS QN_AURA_SCORE_WARPS

#include "cuda/kernels/aura/query_tile.cuh"

#define TILE_WORDS (lane_fragment<QN_BITS, 4>::words * 2)        // words of a lane
#define TILES_IN_FLIGHT (TILE_WORDS >= 16 ? 1 : 16 / TILE_WORDS) // about 32 KiB in flight on an SM
#define STEP (TILES_IN_FLIGHT * QN_WARPS)

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_aura_score(const __grid_constant__ qn_aura_score_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared s;
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const thread_coord p = { warp, lane, lane / 4, lane % 4 };
    const query_tile queries_of_block = query_tile_at(blockIdx.x, a.queries.n_tokens, a.queries.n_heads, a.cache.n_kv_heads);
    const kv_source from = source_at(a.cache, queries_of_block.kv_head);
    const uint32_t n_keys = a.cache.n_keys, tiles = (n_keys + TILE_KV - 1) / TILE_KV,
                   tiles_per_split = (tiles + gridDim.y - 1) / gridDim.y;
    const uint32_t last_tile = min((blockIdx.y + 1) * tiles_per_split, tiles);
    uint32_t tile = blockIdx.y * tiles_per_split + warp * TILES_IN_FLIGHT;
    const query_place place = find_query(a.queries, a.cache.key_codec, queries_of_block, p);
    uint32_t entry = 0;
    if (threadIdx.x < TABLE_ENTRIES)
        entry = make_table_entry<QN_BITS>(threadIdx.x, a.cache.key_codec);
    qn_pdl_wait();
    qn_pdl_trigger();

    warp_query query = load_query(a.queries, queries_of_block, place, n_keys, p);
    uint32_t k[TILES_IN_FLIGHT][2][lane_fragment<QN_BITS, 4>::words];
    float scales[TILES_IN_FLIGHT][2];
    const auto load = [&](int u, uint32_t at) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t r = min(at * TILE_KV + 8 * i + p.g, from.last_row);
            load_row<QN_BITS, 4>(k[u][i], scales[u][i], from.table, from.keys, from.key_scales, r, p.t);
        }
    };
#pragma unroll
    for (int u = 0; u < TILES_IN_FLIGHT; u++)
        load(u, tile + u);
    store_query(s, query, place, a.cache.key_codec, queries_of_block, a.queries.scale, p);
    if (threadIdx.x < TABLE_ENTRIES)
        store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, entry, entry);
    __syncthreads();

    const uint32_t table = LANE_TABLE(dynamic, lane);
    query_fragment c;
    load_query_fragment(c, s, p);
    float *out[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t column = 2 * p.t + j;
        out[j] = column < queries_of_block.n_columns ? a.scores + (uint64_t)queries_of_block.query(column) * n_keys : 0;
    }
    for (; tile < last_tile; tile += STEP) {
#pragma unroll
        for (int u = 0; u < TILES_IN_FLIGHT; u++) {
            if (tile + u >= last_tile)
                break;
            float score[SCORE_ACCUMULATORS][4];
            compute_scores<QN_BITS>(score, k[u], c, s, table, lane);
            const float scale[2] = { scales[u][0], scales[u][1] };
            load(u, tile + u + STEP);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = score[0][i];
#pragma unroll
                for (int j = 1; j < SCORE_ACCUMULATORS; j++)
                    x += score[j][i];
                const uint32_t r = (tile + u) * TILE_KV + i / 2 * 8 + p.g;
                if (out[i % 2] && r < n_keys)
                    out[i % 2][r] = x * (scale[i / 2] * c.factors[i % 2]);
            }
        }
    }
}
