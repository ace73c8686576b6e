// Attention over AURA codes in the persistent decode kernel: the splits of the pages between page 0 and the open page, and
// the prefetch of their rows. The method is that of attention/decode_codes.cu; rows are prefetched
// into L2 well ahead, and loaded from there to registers: the keys of a group's next tiles while the current ones are
// processed, values during the scores before them. More loads in flight would not fit in registers.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_CODES_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_CODES_CUH

// Pages of a split that are prefetched into L2 before the phase, and the distance of the prefetches during it.
#define CODES_PREFETCH_PAGES 16
#define CODES_PREFETCH_TILES (CODES_PREFETCH_PAGES * ATTENTION_PAGE_TILES)

// Prefetches the first rows that the block's warps load, keys by warp 0 and values by warp 1, a lane a page; and makes the
// page table's entries ready.
QN_DEVICE void codes_prefetch(const qn_persistent_attention &s, const qn_persistent_codes &codes, attention_pages &pages,
                              const attention_range &r, uint32_t position)
{
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    if (warp > 1 || r.first == r.last)
        return;
    const bool is_codes = attention_is_codes(r);
    const uint32_t tile = r.first + lane * ATTENTION_PAGE_TILES, tiles = min(max(r.last, tile) - tile, ATTENTION_PAGE_TILES);
    uint64_t entry = 0;
    if (pages.first[warp] == r.first && pages.last[warp] == r.last) {
        entry = pages.entries[warp][lane];
    } else {
        const uint64_t *table = qn_kv_table(is_codes ? s.cache.tables : codes.tables, 0);
        if (tiles)
            entry = table[is_codes ? 1 + tile / ATTENTION_PAGE_TILES : lane ? position / QN_PAGE : 0];
        pages.entries[warp][lane] = entry;
        __syncwarp();
        if (lane == 0) {
            pages.first[warp] = r.first;
            pages.last[warp] = r.last;
        }
    }
    if (!tiles || lane >= CODES_PREFETCH_PAGES)
        return;
    if (!is_codes) {
        prefetch_bytes((warp ? attention_values(s, codes, r.kv_head) : attention_keys(s, codes, r.kv_head)) + entry,
                       tiles * (ATTENTION_TILE_KV * QN_HEAD_DIM * 2));
        return;
    }
    prefetch_bytes(entry + (warp ? attention_rows(s.cache.values, s.cache.value_head_stride, r.kv_head)
                                 : attention_rows(s.cache.keys, s.cache.key_head_stride, r.kv_head)),
                   QN_PAGE * 4 * (warp ? ROW_WORDS(QN_VALUE_BITS) : ROW_WORDS(QN_KEY_BITS)));
    prefetch_bytes(entry + attention_rows(warp ? s.cache.value_scales : s.cache.key_scales, s.cache.scale_head_stride,
                                          r.kv_head),
                   QN_PAGE * 4);
}

// A warp's keys of its tile.
struct code_keys {
    uint32_t k[2][lane_fragment<QN_KEY_BITS, 4>::words];

    __device__ __forceinline__ void load(const qn_persistent_attention &s, const attention_range &r, uint64_t page,
                                         uint32_t tile, const team_coord &p)
    {
        const uint8_t *rows = attention_rows(s.cache.keys, s.cache.key_head_stride, r.kv_head) + page;
#pragma unroll
        for (int i = 0; i < 2; i++)
            load_lane_fragment<QN_KEY_BITS, 4>(k[i], rows, tile % ATTENTION_PAGE_TILES * TILE_KV + p.g + 8 * i, p.t);
    }
};

// The scales of the rows g and g + 8 of a warp's tile.
struct code_scales {
    float keys[2], values[2];

    __device__ __forceinline__ void load(const qn_persistent_attention &s, const attention_range &r, uint64_t page,
                                         uint32_t tile, const team_coord &p)
    {
        const uint32_t row = tile % ATTENTION_PAGE_TILES * TILE_KV + p.g;
        const uint8_t *of_keys = attention_rows(s.cache.key_scales, s.cache.scale_head_stride, r.kv_head) + page,
                      *of_values = attention_rows(s.cache.value_scales, s.cache.scale_head_stride, r.kv_head) + page;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            keys[i] = ((const float *)of_keys)[row + 8 * i];
            values[i] = ((const float *)of_values)[row + 8 * i];
        }
    }
};

// The values of the tiles of a group in the warp's slice; `tile` is the group's first.
struct code_values {
    uint32_t v[SLICES][4][lane_fragment<QN_VALUE_BITS, 8, SLICE_DIMS>::words];

    __device__ __forceinline__ void load(const qn_persistent_attention &s, const attention_range &r, uint64_t page,
                                         uint32_t tile, const team_coord &p)
    {
        const uint8_t *rows = attention_rows(s.cache.values, s.cache.value_head_stride, r.kv_head) + page;
        const uint32_t row = tile % ATTENTION_PAGE_TILES * TILE_KV + 2 * p.t;
        constexpr int slice_words = SLICES > 1 ? SLICE_DIMS * QN_VALUE_BITS / 32 : 0;
#pragma unroll
        for (int i = 0; i < SLICES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t *words = (const uint32_t *)(rows + (row + i * TILE_KV + j / 2 * 8 + j % 2) *
                                                                      (ROW_WORDS(QN_VALUE_BITS) * 4));
                load_fragment<QN_VALUE_BITS, 8, SLICE_DIMS>(v[i][j], global_row{ words + p.slice * slice_words }, p.g);
            }
    }
};

static_assert(ATTENTION_PAGE_TILES % SLICES == 0, "the tiles of a group are in one page");

// The sums of a group's rows of codes as those of fp16 rows: attention_write_partials continues.
QN_DEVICE void finish_codes(attention_acc &to, const softmax_state &state, const float (*acc)[4], shared &s, float gain,
                            const team_coord &p)
{
    const float factor = state.value_scale_unit / gain;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to.v[j][i] = acc[j][i] * factor;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float l = qn_lanes_sum<4, QN_WARP_SIZE>(state.l[i]);
        if (p.g == 0)
            s.l[p.warp][2 * p.t + i] = l;
        to.m[i] = state.m[i];
    }
    group_barrier(p);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to.l[i] = 0;
        for (int slice = 0; slice < SLICES && p.g == 0; slice++) // one lane: the sum over lanes follows
            to.l[i] += s.l[p.group * SLICES + slice][2 * p.t + i];
    }
}

static_assert(SLICE_DIMS == ATTENTION_SLICE, "accumulators are those of attention_acc");

// Prefetches into L2 the codes and scales of a page that a group processes later, by three of its warps.
QN_DEVICE void codes_prefetch_page(const qn_persistent_attention &s, const attention_range &r, uint64_t page, int part)
{
    if (part == 0)
        prefetch_bytes(page + attention_rows(s.cache.keys, s.cache.key_head_stride, r.kv_head),
                       QN_PAGE * 4 * ROW_WORDS(QN_KEY_BITS));
    if (part == 1 % SLICES)
        prefetch_bytes(page + attention_rows(s.cache.values, s.cache.value_head_stride, r.kv_head),
                       QN_PAGE * 4 * ROW_WORDS(QN_VALUE_BITS));
    if (part == 2 % SLICES) {
        prefetch_bytes(page + attention_rows(s.cache.key_scales, s.cache.scale_head_stride, r.kv_head), QN_PAGE * 4);
        prefetch_bytes(page + attention_rows(s.cache.value_scales, s.cache.scale_head_stride, r.kv_head), QN_PAGE * 4);
    }
}

// A unit of codes, by the whole block.
QN_DEVICE void codes_unit(const qn_persistent_attention &s, const qn_persistent_codes &codes, const attention_range &r,
                          const attention_pages &pages, uint32_t position, uint8_t *scratch)
{
    attention_shared &m = *(attention_shared *)scratch;
    attention_inputs &inputs = m.u.inputs;
    if (r.first == r.last)
        return;
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    const team_coord p = { { warp, lane, lane / 4, lane % 4 }, 0, warp / SLICES, warp % SLICES };
    const uint32_t n = (uint32_t)__fdividef(s.n_heads + 0.5f, s.n_kv_heads), first_head = r.kv_head * n;
    // Loaded during the preparation of the queries, which uses the shared memory that the entries are stored to.
    const auto entry_of = [&](uint32_t page) { return qn_kv_table(s.cache.tables, 0)[1 + page]; };
    const uint32_t first_page = r.first / ATTENTION_PAGE_TILES, n_pages = (r.last - r.first) / ATTENTION_PAGE_TILES;
    const uint64_t entry = threadIdx.x < n_pages ? entry_of(first_page + threadIdx.x) : 0;
    attention_qk_norm_rope_store(m, s, codes, r, pages, position, first_head, n, false);
    inputs.u.codes.pages[threadIdx.x] = entry;
    if (threadIdx.x < TILE_Q)
        inputs.codes.biases[threadIdx.x] =
            inputs.biases[threadIdx.x][0] + (QN_HEAD_DIM > 128 ? inputs.biases[threadIdx.x][1] : 0);
    __syncthreads();
    const auto page_of = [&](uint32_t tile) {
        const uint32_t page = tile / ATTENTION_PAGE_TILES, i = page - first_page;
        return tile >= r.last ? 0 : i < QN_PERSISTENT_THREADS ? inputs.u.codes.pages[i] : entry_of(page);
    };
    softmax_state state;
    float acc[SLICE_DIMS / 16][4];
    begin_slice(state, acc);
    uint32_t first = r.first + p.group * SLICES; // the group's first tile
    uint64_t page = page_of(first);
    code_keys keys;
    if (first < r.last)
        keys.load(s, r, page, first + p.slice, p);
    bool is_first = true;
#pragma unroll 1
    for (; first < r.last; first += QN_WARPS) {
        const uint32_t next = first + QN_WARPS, ahead = first + CODES_PREFETCH_TILES;
        float score[SCORE_ACCUMULATORS][4], factor[2];
        code_scales scales;
        scales.load(s, r, page, first + p.slice, p);
        code_values values;
        values.load(s, r, page, first, p);
        page = page_of(next);
        if (lane == 0 && ahead < r.last && ahead % ATTENTION_PAGE_TILES == 0)
            codes_prefetch_page(s, r, page_of(ahead), p.slice);
        tile_scores scores = { {}, { scales.values[0], scales.values[1] }, 0 };
        query_fragment c;
        compute_scores<QN_KEY_BITS>(score, keys.k, c, inputs.codes, 4 * lane, lane);
        load_query_factors(c, inputs.codes, p);
        reduce_scores(scores.x, score, scales.keys, c);
        if (next < r.last)
            keys.load(s, r, page, next + p.slice, p);
        softmax_group<true>(factor, state, is_first, scores, inputs.codes, inputs.u.codes, p, []() {}, []() {});
        is_first = false;
        scale_slice(acc, factor);
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            uint32_t weights[2];
            *(uint2 *)weights = inputs.u.codes.weights[p.group * SLICES + i][lane];
            accumulate_values<QN_VALUE_BITS, SLICE_DIMS>(acc, values.v[i], weights, 4 * lane);
        }
    }
    attention_acc sums;
    finish_codes(sums, state, acc, inputs.codes, codes.values.gain, p);
    attention_write_partials(m, sums, s, codes, r, first_head, n, min((uint32_t)GROUPS, (r.last - r.first) / SLICES), warp,
                             lane);
}

#endif
