// Split-KV attention of query rows of any sequences over caches of AURA codes: the attention of a decode step. work.cuh
// gives a team of QN_WARPS warps its splits; the teams of a block share only the look-up tables. combine.cuh combines
// the splits of a row. decode.cu is the same over fp16.
//
// A group of SLICES warps processes SLICES tiles at a time: each warp computes the scores of its own tile, over all
// dimensions, and then accumulates the values of all tiles of the group, in its own slice of the dimensions. So
// accumulators take SLICE_DIMS / 4 registers, and at the end of a split only the few groups of a team are reduced. The
// rows of a tile are copied by its warp into the warp's ring buffer, and its values are read there by the group.
//
// With QN_TILES > 1 the columns of the MMAs are the query heads of all rows of the launch, of a key-value head each,
// QN_TILES tiles of columns in a piece of work: a tile of codes is dequantised once for them. All rows are of one session
// and at positions of one page, so that they attend to the same codes; in the open page each column has its own end.
//
// With QN_PAGES, split 0 is the first and the open page, in fp16: one tile a warp, from global memory to registers.
//
// Method: Flash-Decoding (Dao et al., 2023).
#define TEAMS (QN_TILES > 1 ? 1 : (int)qn_attention_gpu_teams(DIM, QN_KEY_BITS, QN_VALUE_BITS, QN_WARPS, SHARED_LIMIT))
#if QN_TILES > 1
#define QUERIES_IN_REGISTERS 0
#define SCORE_ACCUMULATORS 2
#define SPLITS_IN_FLIGHT 16
#endif

#include "cuda/kernels/attention/combine.cuh"
#include "cuda/kernels/attention/slices.cuh"

// Of the teams, and of the tiles of columns after a team's first.
#define RESERVED                                                                                                               \
    (qn_attention_gpu_reserved_bytes(DIM, QN_KEY_BITS, QN_WARPS, TEAMS, SHARED_LIMIT) + (QN_TILES - 1) * sizeof(later_tile))

// Reserved shared memory of a team.
struct team_buffers : slice_buffers {
    float4 sums[QN_WARPS][QN_WARP_SIZE]; // accumulators of 16 dimensions
};

static_assert(QN_TILES == 1 || (QN_PAGES && QN_WARPS >= TILE_Q), "a warp stores the end of a column");
static_assert(sizeof(team_buffers) == QN_WARPS * QN_ATTENTION_WARP_BYTES, "launches reserve as much");

// Shared memory of a tile of columns after the first.
struct __align__(16) later_tile : slice_buffers {
    shared queries;
};

// Shared memory of a team by tiles of columns.
struct team_tiles {
    shared &first;
    team_buffers &buffers; // of the first tile; the sums of all
    later_tile *later;

    __device__ __forceinline__ shared &queries(int i) const
    {
        return i ? later[i - 1].queries : first;
    }

    __device__ __forceinline__ slice_buffers &weights(int i) const
    {
        return i ? (slice_buffers &)later[i - 1] : (slice_buffers &)buffers;
    }
};

// The query heads of a piece of work: as many columns from `first` on. With QN_TILES > 1 they are numbered over the rows
// of the launch, the heads of a row after each other.
struct piece_queries : query_tile {
    uint32_t first;

    __device__ __forceinline__ piece_queries(const qn_attention_decode_args &a, uint32_t row, uint32_t index, uint32_t per_head)
        : query_tile(a, row, index, per_head), first(0)
    {
        if (QN_TILES > 1) {
            first = index % per_head * (QN_TILES * TILE_Q);
            n_columns = min(a.n_rows * group(a) - first, (uint32_t)(QN_TILES * TILE_Q));
        }
    }

    static __device__ __forceinline__ uint32_t group(const qn_attention_decode_args &a)
    {
        return a.n_heads / a.n_kv_heads;
    }

    // Pieces of work of a key-value head and a split.
    static __device__ __forceinline__ uint32_t per_head(const qn_attention_decode_args &a)
    {
        const uint32_t columns = QN_TILES > 1 ? a.n_rows * group(a) : group(a);
        return (columns + QN_TILES * TILE_Q - 1) / (QN_TILES * TILE_Q);
    }

    __device__ __forceinline__ uint32_t row_of(const qn_attention_decode_args &a, uint32_t column) const
    {
        return (first + column) / group(a);
    }

    // Among the query heads of a row.
    __device__ __forceinline__ uint32_t head_of(const qn_attention_decode_args &a, uint32_t column) const
    {
        return head * group(a) + (first + column) % group(a);
    }

    // Among the query heads of all rows.
    __device__ __forceinline__ uint32_t query_of(const qn_attention_decode_args &a, uint32_t column) const
    {
        return QN_TILES > 1 ? row_of(a, column) * a.n_heads + head_of(a, column) : first_query + column;
    }

    // Where the query of a column begins.
    __device__ __forceinline__ uint64_t value_of(const qn_attention_decode_args &a, uint32_t column) const
    {
        return QN_TILES > 1 ? (uint64_t)row_of(a, column) * a.query_stride + head_of(a, column) * head_stride
                            : first_value + column * head_stride;
    }

    __device__ __forceinline__ uint32_t position_of(const qn_attention_decode_args &a, uint32_t column) const
    {
        return a.mask.positions[row_of(a, min(column, n_columns - 1))];
    }
};

// Loads the warp's query of each tile of columns.
QN_DEVICE void load_queries(warp_query (&queries)[QN_TILES], const qn_attention_decode_args &a, const piece_queries &tile,
                            const float *means, const team_coord &p)
{
#pragma unroll
    for (int i = 0; i < QN_TILES; i++) {
        const uint32_t column = i * TILE_Q + p.warp;
        const bool has = (QN_TILES == 1 || p.warp < TILE_Q) && column < tile.n_columns;
        queries[i].load(a, has, tile.value_of(a, has ? column : 0), means, p.lane);
#pragma unroll
        for (int j = 0; i > 0 && j < LANE_VALUES; j++)
            queries[i].signs[j] = queries[0].signs[j];
    }
}

// ---- Rows of codes ----

// The ring buffer of a warp with slots for keys and slots for values; with a single slot both use it in turn. The
// groups of cp.async are: keys of a tile, values, keys of the next, ...
struct codes_ring : kv_ring<QN_KEY_BITS, QN_VALUE_BITS, RESERVED> {
    using base = kv_ring<QN_KEY_BITS, QN_VALUE_BITS, RESERVED>;
    static constexpr bool in_turn = base::slots == 1;
    static constexpr int key_slots = in_turn ? 1 : base::slots / 2, value_slots = in_turn ? 1 : base::slots - key_slots;
    // offset of the slots for values
    static constexpr uint32_t first_value = in_turn ? 0 : key_slots * base::slot_bytes;
    uint32_t key_at, value_at; // offsets from the first slot: of the next keys and values

    __device__ __forceinline__ codes_ring(const kv_source &from, uint32_t dynamic, int warp, int lane)
        : base(from, dynamic, warp, lane)
    {
    }

    __device__ __forceinline__ uint32_t previous_value_slot() const
    {
        return value_at == first_value ? first_value + (value_slots - 1) * base::slot_bytes : value_at - base::slot_bytes;
    }

    __device__ __forceinline__ void fill(uint32_t tile, uint32_t last_tile, uint32_t step)
    {
        key_at = 0;
        value_at = first_value;
        base::key_page = base::value_page = base::looks_ahead ? base::page_of(tile) : 0;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < key_slots; i++) {
            const int value = i - key_slots + value_slots - 1;
            if (tile + i * step < last_tile)
                base::issue_keys(base::first + i * base::slot_bytes, tile + i * step, step);
            qn_cp_async_commit();
            if (value >= 0 && tile + value * step < last_tile)
                base::issue_values(base::first + first_value + value * base::slot_bytes, tile + value * step, step);
            qn_cp_async_commit();
        }
    }

    __device__ __forceinline__ void wait_for_keys()
    {
        qn_cp_async_wait<in_turn ? 0 : 2 * key_slots - 1>();
        __syncwarp();
        base::at = base::first + key_at;
    }

    // Of the warp's own tile: a barrier of the group follows.
    __device__ __forceinline__ void wait_for_values()
    {
        qn_cp_async_wait<2 * (value_slots - 1)>();
    }

    // Releases the slot with the keys of `tile`, which the warp has read completely, and issues the slot's next
    // contents.
    __device__ __forceinline__ void advance_keys(uint32_t tile, uint32_t last_tile, uint32_t step)
    {
        __syncwarp();
        if (!in_turn)
            issue_next_keys(tile, last_tile, step);
    }

    __device__ __forceinline__ void issue_next_keys(uint32_t tile, uint32_t last_tile, uint32_t step)
    {
        if (tile + key_slots * step < last_tile)
            base::issue_keys(base::first + key_at, tile + key_slots * step, step);
        qn_cp_async_commit();
        key_at = key_at + base::slot_bytes == key_slots * base::slot_bytes ? 0 : key_at + base::slot_bytes;
    }

    // Issues values into the slot of the tile before `tile`, which the group has read.
    __device__ __forceinline__ void issue_next_values(uint32_t tile, uint32_t last_tile, uint32_t step)
    {
        if (tile + (value_slots - 1) * step < last_tile)
            base::issue_values(base::first + previous_value_slot(), tile + (value_slots - 1) * step, step);
        qn_cp_async_commit();
    }

    __device__ __forceinline__ void next_values()
    {
        const uint32_t next = value_at + base::slot_bytes;
        value_at = next == first_value + value_slots * base::slot_bytes ? first_value : next;
    }
};

// A slice of a row of values in a slot, as a source of load_fragment.
struct slice_row {
    slot_row<QN_VALUE_BITS, false> row;
    int slice_word;

    template <int width> __device__ __forceinline__ void load(uint32_t *to, int first, int lane_word) const
    {
        row.template load<width>(to, first, slice_word + lane_word);
    }
};

// What a warp has of each tile of columns.
struct tile_state {
    softmax_state softmax;
    query_fragment query;
    float acc[SLICE_DIMS / 16][4];
};

// Scores of 16 keys with the queries of all tiles, as compute_scores has them.
QN_DEVICE void score_tiles(float score[QN_TILES][SCORE_ACCUMULATORS][4],
                           const uint32_t (*k)[lane_fragment<QN_KEY_BITS, 4>::words], const tile_state (&states)[QN_TILES],
                           const team_tiles &tiles, uint32_t table, int lane)
{
#pragma unroll
    for (int q = 0; q < QN_TILES; q++)
#pragma unroll
        for (int i = 0; i < SCORE_ACCUMULATORS; i++)
            score[q][i][0] = score[q][i][1] = score[q][i][2] = score[q][i][3] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        const uint32_t m[4] = { dequantize_pair<QN_KEY_BITS, 0>(table, k[0], 2 * i),
                                dequantize_pair<QN_KEY_BITS, 0>(table, k[1], 2 * i),
                                dequantize_pair<QN_KEY_BITS, 0>(table, k[0], 2 * i + 1),
                                dequantize_pair<QN_KEY_BITS, 0>(table, k[1], 2 * i + 1) };
#pragma unroll
        for (int q = 0; q < QN_TILES; q++) {
            uint32_t b[2] = { states[q].query.query[QUERIES_IN_REGISTERS ? i : 0][0],
                              states[q].query.query[QUERIES_IN_REGISTERS ? i : 0][1] };
            if (!QUERIES_IN_REGISTERS)
                *(uint2 *)b = *(const uint2 *)tiles.queries(q).queries[i][lane];
            qn_mma_m16n8k16_f16(score[q][i % SCORE_ACCUMULATORS], m, b);
        }
    }
}

// Adds the values of 16 keys times the weights of each tile of columns, as accumulate_values does.
QN_DEVICE void accumulate_tiles(tile_state (&states)[QN_TILES],
                                const uint32_t (*v)[lane_fragment<QN_VALUE_BITS, 8, SLICE_DIMS>::words],
                                const uint32_t (&weights)[QN_TILES][2], uint32_t table)
{
    using fragments = value_fragments<QN_VALUE_BITS, SLICE_DIMS>;
#pragma unroll
    for (int i = 0; i < SLICE_DIMS / 16; i += fragments::tiles) {
        uint32_t m[fragments::tiles][4];
        fragments::dequantize(m, table, v, i);
#pragma unroll
        for (int j = 0; j < fragments::tiles; j++)
#pragma unroll
            for (int q = 0; q < QN_TILES; q++)
                if (i + j < SLICE_DIMS / 16)
                    qn_mma_m16n8k16_f16(states[q].acc[i + j < SLICE_DIMS / 16 ? i + j : 0], m[j], weights[q]);
    }
}

QN_DEVICE void begin_tiles(tile_state (&states)[QN_TILES])
{
#pragma unroll
    for (int q = 0; q < QN_TILES; q++)
        begin_slice(states[q].softmax, states[q].acc);
}

// softmax_group of all tiles of columns, between two barriers of the group.
template <bool scaled, class before, class after>
QN_DEVICE void softmax_tiles(float (&factor)[QN_TILES][2], tile_state (&states)[QN_TILES], bool first,
                             const tile_scores (&scores)[QN_TILES], const team_tiles &tiles, const team_coord &p,
                             before before_weights, after after_weights)
{
#pragma unroll
    for (int q = 0; q < QN_TILES; q++)
        publish_maxima<scaled>(scores[q], tiles.queries(q), tiles.weights(q), p);
    group_barrier(p);
    before_weights();
#pragma unroll
    for (int q = 0; q < QN_TILES; q++)
        compute_group_weights<scaled>(factor[q], states[q].softmax, first, scores[q], tiles.queries(q), tiles.weights(q), p);
    after_weights();
    group_barrier(p);
}

// Attention over the tiles of codes of one warp and its group, in parts as attend_parts has them.
template <class part_sink>
QN_DEVICE void attend_codes(tile_state (&states)[QN_TILES], codes_ring &ring, const team_tiles &tiles, const kv_range &rows,
                            const team_coord &p, uint32_t dynamic, uint32_t table, part_sink end_part)
{
    constexpr int slice_words = SLICES > 1 ? SLICE_DIMS * QN_VALUE_BITS / 32 : 0;
    uint32_t tile = rows.tile, part = 0, part_end = rows.part_end;
    tile_scores scores[QN_TILES] = {};
    bool first = true;
    const auto score_tile = [&](uint32_t at) {
        if (at >= rows.last_tile) {
            ring.advance_keys(at, rows.last_tile, rows.step);
#pragma unroll
            for (int q = 0; q < QN_TILES; q++) {
                float *x = scores[q].x;
                x[0] = x[1] = x[2] = x[3] = -QN_INFINITY;
                scores[q].value_scales[0] = scores[q].value_scales[1] = 0;
            }
            return;
        }
        uint32_t k[2][lane_fragment<QN_KEY_BITS, 4>::words];
        float score[QN_TILES][SCORE_ACCUMULATORS][4], key_scales[2];
        ring.wait_for_keys();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_fragment<QN_KEY_BITS, 4>(k[i], slot_row<QN_KEY_BITS, true>{ ring.at, (uint32_t)p.g, 8 * i }, p.t);
            key_scales[i] = ring.key_scale(8 * i + p.g);
            scores[0].value_scales[i] = ring.value_scale(8 * i + p.g);
#pragma unroll
            for (int q = 1; q < QN_TILES; q++)
                scores[q].value_scales[i] = scores[0].value_scales[i];
        }
        ring.advance_keys(at, rows.last_tile, rows.step);
        score_tiles(score, k, states, tiles, table, p.lane);
#pragma unroll
        for (int q = 0; q < QN_TILES; q++) {
            reduce_scores(scores[q].x, score[q], key_scales, states[q].query);
            if (at * TILE_KV < rows.begin || at * TILE_KV + TILE_KV > rows.end)
                mask_scores<false>(scores[q], tiles.queries(q), rows, p, at);
        }
    };
    const auto accumulate_group = [&](uint32_t slot) {
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            uint32_t v[4][lane_fragment<QN_VALUE_BITS, 8, SLICE_DIMS>::words], weights[QN_TILES][2];
            const uint32_t at = codes_ring::first_of(dynamic, p.team * QN_WARPS + p.group * SLICES + i) + slot;
#pragma unroll
            for (int q = 0; q < QN_TILES; q++)
                *(uint2 *)weights[q] = tiles.weights(q).weights[p.group * SLICES + i][p.lane];
#pragma unroll
            for (int j = 0; j < 4; j++)
                load_fragment<QN_VALUE_BITS, 8, SLICE_DIMS>(
                    v[j], slice_row{ { at, 2u * p.t, j / 2 * 8 + j % 2 }, p.slice * slice_words }, p.g);
            accumulate_tiles(states, v, weights, table);
        }
    };

    begin_tiles(states);
    bool more = tile - p.slice < rows.last_tile;
    if (more)
        score_tile(tile);
    while (more) {
        float factor[QN_TILES][2];
        softmax_tiles<true>(
            factor, states, first, scores, tiles, p, [&]() { ring.issue_next_values(tile, rows.last_tile, rows.step); },
            [&]() { ring.wait_for_values(); });
        first = false;
        more = tile - p.slice + rows.step < rows.last_tile;
        if (!codes_ring::in_turn && more) // independent of the values: software pipeline
            score_tile(tile + rows.step);
#pragma unroll
        for (int q = 0; q < QN_TILES; q++)
            scale_slice(states[q].acc, factor[q]);
        accumulate_group(ring.value_at);
        ring.next_values();
        if (codes_ring::in_turn && more) {
            group_barrier(p);
            ring.issue_next_keys(tile, rows.last_tile, rows.step);
            score_tile(tile + rows.step);
        }
        tile += rows.step;
        if (more && tile >= part_end) {
            end_part(part++);
            part_end += rows.part_tiles;
            begin_tiles(states);
            first = true;
        }
    }
    while (part + 1 < rows.n_parts) {
        end_part(part++);
        begin_tiles(states);
    }
}

// ---- The first and the open page, in fp16 ----

// Tiles 0 to 3 are the first page, the others the open page; `values` of both, relative to tile 0.
struct page_rows {
    const uint8_t *keys, *values[2];
    uint32_t tile, first, end; // the warp's tile; rows

    // Where the rows end for a query at `position`.
    static __device__ __forceinline__ uint32_t end_of(uint32_t position)
    {
        return (position >= QN_PAGE ? QN_PAGE : 0) + position % QN_PAGE + 1;
    }
};

// position: of the last query.
QN_DEVICE page_rows find_page_rows(const qn_attention_decode_args &a, uint32_t position, const query_tile &tile,
                                   const team_coord &p)
{
    static_assert(QN_WARPS * TILE_KV >= 2 * QN_PAGE, "a warp has one tile of the fp16 pages");
    // bytes of the first page's rows
    const uint32_t page = position / QN_PAGE, before = QN_PAGE * DIM * 2;
    const uint64_t *table = qn_kv_table(a.pages.tables, tile.session);
    const auto page_at = [&](const uint8_t *array, uint32_t i) {
        return qn_kv_f16_page(a.pages, table, array, tile.session, tile.head, i, DIM * 2);
    };
    page_rows rows;
    rows.tile = p.warp;
    rows.first = a.mask.first;
    rows.end = page_rows::end_of(position);
    rows.keys = p.warp < QN_PAGE / TILE_KV ? page_at(a.pages.keys, 0) : page_at(a.pages.keys, page) - before;
    rows.values[0] = page_at(a.pages.values, 0);
    rows.values[1] = page_at(a.pages.values, page) - before;
    return rows;
}

// Prefetches the warp's tile of keys and values into L2: registers hold a part of them at a time.
QN_DEVICE void prefetch_tile(const page_rows &rows, const team_coord &p)
{
#if __CUDA_ARCH__ >= 900
    if (p.lane >= 2 || rows.tile * TILE_KV >= rows.end)
        return;
    const uint8_t *from = p.lane == 0 ? rows.keys : rows.values[rows.tile >= QN_PAGE / TILE_KV];
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + rows.tile * (TILE_KV * DIM * 2)),
                 "r"(TILE_KV * DIM * 2)
                 : "memory");
#endif
}

#define PAGE_PARTS (DIM >= 256 ? 2 : 1)
#define PAGE_VALUE_TILES 2

// A part of a warp's tile of keys. Reads past the last row are redirected to it; their scores are masked.
struct page_keys {
    static constexpr int dims = DIM / PAGE_PARTS;
    uint32_t k[2][lane_fragment<16, 4, dims>::words];

    __device__ __forceinline__ void load(const page_rows &rows, int part, const team_coord &p)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            load_fragment<16, 4, dims>(k[i], row_of(rows.keys + part * dims * 2, rows, rows.tile * TILE_KV + 8 * i + p.g), p.t);
    }

    static __device__ __forceinline__ global_row row_of(const uint8_t *from, const page_rows &rows, uint32_t row)
    {
        return { (const uint32_t *)(from + min(row, rows.end - 1) * (DIM * 2)) };
    }

    __device__ __forceinline__ void add_scores(float score[SCORE_ACCUMULATORS][4], const shared &s, int part, int lane) const
    {
#pragma unroll
        for (int i = 0; i < dims / 16; i++) {
            const uint32_t m[4] = { k[0][2 * i], k[1][2 * i], k[0][2 * i + 1], k[1][2 * i + 1] };
            uint32_t query[2];
            *(uint2 *)query = *(const uint2 *)s.queries[part * (dims / 16) + i][lane];
            qn_mma_m16n8k16_f16(score[i % SCORE_ACCUMULATORS], m, query);
        }
    }
};

// The values of some tiles of a group in a warp's slice.
struct page_values {
    uint32_t v[PAGE_VALUE_TILES][4][lane_fragment<16, 8, SLICE_DIMS>::words];

    __device__ __forceinline__ void load(const page_rows &rows, int first, const team_coord &p)
    {
#pragma unroll
        for (int i = 0; i < PAGE_VALUE_TILES; i++) {
            const uint32_t tile = p.group * SLICES + first + i;
            const uint8_t *values = rows.values[tile >= QN_PAGE / TILE_KV] + p.slice * (SLICE_DIMS * 2);
            if (first + i >= SLICES || tile * TILE_KV >= rows.end)
                continue;
#pragma unroll
            for (int j = 0; j < 4; j++)
                load_fragment<16, 8, SLICE_DIMS>(
                    v[i][j], page_keys::row_of(values, rows, tile * TILE_KV + j / 2 * 8 + 2 * p.t + j % 2), p.g);
        }
    }

    __device__ __forceinline__ void accumulate(tile_state (&states)[QN_TILES], const page_rows &rows, const team_tiles &tiles,
                                               int first, const team_coord &p) const
    {
#pragma unroll
        for (int i = 0; i < PAGE_VALUE_TILES; i++) {
            const uint32_t tile = p.group * SLICES + first + i;
            if (first + i >= SLICES || tile * TILE_KV >= rows.end)
                continue;
#pragma unroll
            for (int q = 0; q < QN_TILES; q++) {
                uint32_t weights[2];
                *(uint2 *)weights = tiles.weights(q).weights[tile][p.lane];
                accumulate_values<16, SLICE_DIMS>(states[q].acc, v[i], weights, 0);
            }
        }
    }
};

// Masks the scores of rows that the queries do not attend to: by all columns, or each its own.
QN_DEVICE void mask_page_scores(tile_scores &scores, const page_rows &rows, const shared &s, const team_coord &p)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t end = QN_TILES > 1 ? s.end[2 * p.t + j] : rows.end;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = rows.tile * TILE_KV + 8 * i + p.g;
            if (row < rows.first || row >= end)
                scores.x[2 * i + j] = -QN_INFINITY;
        }
    }
}

// keys: the first part.
QN_DEVICE void attend_pages(tile_state (&states)[QN_TILES], page_keys &keys, const page_rows &rows, const team_tiles &tiles,
                            const team_coord &p)
{
    const float key_scales[2] = { 1, 1 };
    const bool has_keys = rows.tile * TILE_KV < rows.end;
    float factor[QN_TILES][2], score[QN_TILES][SCORE_ACCUMULATORS][4] = {};
    tile_scores scores[QN_TILES];
    page_keys more_keys = {}; // registers that only some warps load would be live in the whole loop over pieces
    page_values values = {}, more_values = {};
    if (PAGE_PARTS > 1 && has_keys)
        more_keys.load(rows, 1, p);
#pragma unroll
    for (int q = 0; q < QN_TILES; q++) {
        scores[q] = { { -QN_INFINITY, -QN_INFINITY, -QN_INFINITY, -QN_INFINITY }, { 1, 1 }, 0 };
        load_query_factors(states[q].query, tiles.queries(q), p);
        if (has_keys)
            keys.add_scores(score[q], tiles.queries(q), 0, p.lane);
    }
    values.load(rows, 0, p);
    if (has_keys) {
#pragma unroll
        for (int q = 0; q < QN_TILES; q++) {
            if (PAGE_PARTS > 1)
                more_keys.add_scores(score[q], tiles.queries(q), 1, p.lane);
            reduce_scores(scores[q].x, score[q], key_scales, states[q].query);
            mask_page_scores(scores[q], rows, tiles.queries(q), p);
        }
    }
    begin_tiles(states);
    softmax_tiles<false>(factor, states, true, scores, tiles, p, []() {}, []() {});
#pragma unroll
    for (int i = 0; i < SLICES; i += 2 * PAGE_VALUE_TILES) {
        more_values.load(rows, i + PAGE_VALUE_TILES, p);
        values.accumulate(states, rows, tiles, i, p);
        values.load(rows, i + 2 * PAGE_VALUE_TILES, p);
        more_values.accumulate(states, rows, tiles, i + PAGE_VALUE_TILES, p);
    }
}

// ---- Results of a split ----

// Adds the accumulators of all groups to group 0's, in ascending order.
QN_DEVICE void reduce_groups(float (*acc)[4], team_buffers &b, const team_coord &p)
{
    constexpr int tiles = SLICE_DIMS / 16, others = (GROUPS - 1) * SLICES, pass = others ? QN_WARPS / others : tiles;
#pragma unroll
    for (int first = 0; others && first < tiles; first += pass) {
        if (first > 0)
            team_barrier(p);
#pragma unroll
        for (int i = first; i < first + pass; i++)
            if (p.group > 0 && i < tiles)
                b.sums[(p.warp - SLICES) * pass + i - first][p.lane] = *(const float4 *)acc[i < tiles ? i : 0];
        team_barrier(p);
#pragma unroll
        for (int i = first; i < first + pass; i++) {
            for (int group = 1; p.group == 0 && i < tiles && group < GROUPS; group++) {
                const float4 x = b.sums[((group - 1) * SLICES + p.slice) * pass + i - first][p.lane];
                float *sum = acc[i < tiles ? i : 0];
                sum[0] += x.x;
                sum[1] += x.y;
                sum[2] += x.z;
                sum[3] += x.w;
            }
        }
    }
}

// Writes a split's maxima and sums of tile `q` of columns: one thread a column.
QN_DEVICE void write_maxima(const qn_attention_decode_args &a, const shared &s, const piece_queries &queries, int q,
                            uint32_t split, const team_coord &p)
{
    const uint32_t column = p.lane;
    if (p.warp > 0 || column >= (QN_TILES > 1 ? TILE_Q : queries.n_columns) || q * TILE_Q + column >= queries.n_columns)
        return;
    float m = LOWEST, l = 0;
    for (int w = 0; w < QN_WARPS; w++)
        m = fmaxf(m, s.m[w][column]);
    for (int w = 0; w < QN_WARPS; w++)
        l += s.l[w][column] * qn_exp2(s.m[w][column] - m);
    *(float2 *)&a.maxima[((uint64_t)queries.query_of(a, q * TILE_Q + column) * a.splits.n + split) * 2] = make_float2(m, l);
}

// Reduces over the groups of a team and writes a split's results of tile `q` of columns. bits: of the format whose
// fragments are accumulated.
template <int bits>
QN_DEVICE void write_tile(const qn_attention_decode_args &a, shared &s, team_buffers &b, const piece_queries &queries, int q,
                          float value_gain, softmax_state &state, float (*acc)[4], uint32_t split, const team_coord &p)
{
    using dims = lane_fragment<bits, 8, SLICE_DIMS>;
    constexpr int n = dims::run % 4 == 0 && SLICE_DIMS / 8 % 4 == 0 ? 4 : 2; // adjacent results of a lane
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        state.l[i] = qn_lanes_sum<4, QN_WARP_SIZE>(state.l[i]);
        if (p.g == 0) {
            s.m[p.warp][2 * p.t + i] = state.m[i];
            s.l[p.warp][2 * p.t + i] = state.l[i];
        }
    }
    team_barrier(p);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = state.m[i];
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
            m = fmaxf(m, s.m[group * SLICES][2 * p.t + i]);
        factor[i] = qn_exp2(state.m[i] - m) * state.value_scale_unit * value_gain;
    }
    write_maxima(a, s, queries, q, split, p);
    scale_slice(acc, factor);
    reduce_groups(acc, b, p);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t column = q * TILE_Q + 2 * p.t + j;
        if (p.group > 0 || column >= queries.n_columns)
            continue;
        float *to = a.partials + ((uint64_t)queries.query_of(a, column) * a.splits.n + split) * DIM + p.slice * SLICE_DIMS;
#pragma unroll
        for (int i = 0; i < SLICE_DIMS / 8; i += n) {
            __align__(16) float x[n];
#pragma unroll
            for (int k = 0; k < n; k++)
                x[k] = acc[(i + k) / 2][(i + k) % 2 * 2 + j];
            store_floats<n>(to + dims::dim_of(i, p.g), x);
        }
    }
    team_barrier(p); // the next split overwrites the data that the team has read
}

// write_tile of each tile of columns.
template <int bits>
QN_DEVICE void write_split(const qn_attention_decode_args &a, const team_tiles &tiles, const piece_queries &queries,
                           float value_gain, tile_state (&states)[QN_TILES], uint32_t split, const team_coord &p)
{
#pragma unroll
    for (int q = 0; q < QN_TILES; q++)
        write_tile<bits>(a, tiles.queries(q), tiles.buffers, queries, q, value_gain, states[q].softmax, states[q].acc, split,
                         p);
}

// ---- Pieces of work ----

QN_DEVICE void attend_page_piece(const qn_attention_decode_args &a, const team_tiles &tiles, const piece_queries &queries,
                                 uint32_t first_position, uint32_t last_position, bool early, const team_coord &p)
{
    const page_rows rows = find_page_rows(a, last_position, queries, p);
    const bool has_keys = rows.tile * TILE_KV < rows.end,
               // not the tiles of the queries' own positions
               before = early && (rows.tile + 1) * TILE_KV < page_rows::end_of(first_position);
    warp_query query[QN_TILES];
    page_keys keys = {};
    prefetch_tile(rows, p);
    query[0].load_signs(a.key_codec, p.lane);
    if (before)
        keys.load(rows, 0, p);
    qn_pdl_wait();
    load_queries(query, a, queries, 0, p);
    if (has_keys && !before)
        keys.load(rows, 0, p);
#pragma unroll
    for (int q = 0; q < QN_TILES; q++) {
        query[q].rotate_and_store<16>(tiles.queries(q), a.key_codec, a.scale * QN_LOG2E, 1, p.warp, p.lane);
        if (QN_TILES > 1 && p.lane == 0 && p.warp < TILE_Q)
            tiles.queries(q).end[p.warp] = page_rows::end_of(queries.position_of(a, q * TILE_Q + p.warp));
    }
    team_barrier(p);
    tile_state states[QN_TILES];
    attend_pages(states, keys, rows, tiles, p);
    write_split<16>(a, tiles, queries, a.value_codec.gain, states, 0, p);
}

QN_DEVICE void attend_codes_piece(const qn_attention_decode_args &a, const team_tiles &tiles, uint8_t *dynamic,
                                  const piece_queries &queries, const work_piece &piece, const qn_attention_span &span,
                                  bool early, const team_coord &p)
{
    kv_source from;
    kv_range rows;
    find_cache_rows(from, rows, a, span, piece.first - CACHE_SPLIT, piece.last - CACHE_SPLIT, queries.session, queries.head,
                    p.warp);
    const float *means =
        QN_PAGES ? qn_kv_means(a.pages, qn_kv_table(a.pages.tables, queries.session), queries.session, queries.head, DIM) : 0;
    // Without pages of fp16, the previous kernel writes the tile of the queries' own position.
    const uint32_t own = (span.end - 1) / TILE_KV;
    const bool reads_own = !QN_PAGES && own < rows.last_tile && own >= rows.tile && (own - rows.tile) % QN_WARPS == 0,
               before = early && !reads_own;
    warp_query query[QN_TILES];
    query[0].load_signs(a.key_codec, p.lane);
    codes_ring ring(from, qn_shared_address(dynamic), p.team * QN_WARPS + p.warp, p.lane);
    if (before)
        ring.fill(rows.tile, rows.last_tile, rows.step);
    qn_pdl_wait();
    load_queries(query, a, queries, means, p);
    if (!before)
        ring.fill(rows.tile, rows.last_tile, rows.step);
#pragma unroll
    for (int q = 0; q < QN_TILES; q++)
        query[q].rotate_and_store<QN_KEY_BITS>(tiles.queries(q), a.key_codec, a.scale * QN_LOG2E, a.key_codec.gain, p.warp,
                                               p.lane);
    team_barrier(p);
    tile_state states[QN_TILES];
#pragma unroll
    for (int q = 0; q < QN_TILES; q++)
        load_query_fragment(states[q].query, tiles.queries(q), p);
    attend_codes(states, ring, tiles, rows, p, qn_shared_address(dynamic), LANE_TABLE(dynamic, p.lane), [&](uint32_t part) {
        write_split<QN_VALUE_BITS>(a, tiles, queries, 1, states, piece.first + part, p);
    });
    write_split<QN_VALUE_BITS>(a, tiles, queries, 1, states, piece.last - 1, p);
}

// A piece of work of a team, in shared memory against register pressure: while it is processed, the other of the two
// holds the next one.
struct team_work {
    block_work rest; // of the team, from this piece on
    work_piece piece;
    uint32_t n_splits; // of the row
    bool arrived;
};

// Combines the splits of the queries of a piece if this team has written the last of them.
QN_DEVICE void combine_piece(const qn_attention_decode_args &a, team_work &w, uint32_t per_head, const team_coord &p)
{
    if (p.warp == 0 && p.lane == 0)
        w.arrived = arrive(a, w.piece, w.n_splits, a.n_kv_heads * per_head);
    team_barrier(p);
    if (!w.arrived)
        return;
    const piece_queries queries(a, w.piece.row, w.piece.query_tile, per_head);
    for (uint32_t column = p.warp; column < queries.n_columns; column += QN_WARPS) {
        if (QN_TILES > 1)
            combine_splits(a, queries.row_of(a, column), queries.head_of(a, column), w.n_splits, p.lane);
        else
            combine_splits(a, w.piece.row, queries.first_query - w.piece.row * a.n_heads + column, w.n_splits, p.lane);
    }
}

extern "C" __global__ void __launch_bounds__(TEAMS *THREADS, 1)
    qn_attention_decode(const __grid_constant__ qn_attention_decode_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ shared of_team[TEAMS];
    __shared__ team_work works[TEAMS][2];
    static_assert(sizeof of_team + sizeof works <= TEAMS * qn_attention_gpu_static_bytes(DIM),
                  "launches assume less static memory");
    static_assert(TEAMS * THREADS >= TABLE_ENTRIES, "a thread stores a table entry");

    const int lane = threadIdx.x % QN_WARP_SIZE, team = threadIdx.x / THREADS, warp = threadIdx.x % THREADS / QN_WARP_SIZE;
    const team_coord p = { { warp, lane, lane / 4, lane % 4 }, team, warp / SLICES, warp % SLICES };
    const uint32_t per_head = piece_queries::per_head(a), n_query_tiles = a.n_kv_heads * per_head;
    team_buffers *buffers = (team_buffers *)codes_ring::reserved_buffer(dynamic);
    const team_tiles tiles = { of_team[team], buffers[team], (later_tile *)(buffers + TEAMS) };
    const uint32_t n_rows = QN_TILES > 1 ? 1 : a.n_rows; // of work: with QN_TILES the first row's splits are those of all

    // Work that does not depend on the previous kernel: look-up tables, the team's splits, rows of the cache.
    qn_pdl_trigger();
    if (threadIdx.x < TABLE_ENTRIES)
        store_table_entry(TABLE_ADDRESS(dynamic), threadIdx.x, make_table_entry<QN_KEY_BITS>(threadIdx.x, a.key_codec),
                          make_table_entry<QN_VALUE_BITS>(threadIdx.x, a.value_codec));
    block_work work;
    const bool has_work =
        work.find(a.mask, a.splits, n_rows, n_query_tiles, team * gridDim.x + blockIdx.x, TEAMS * gridDim.x);
    __syncthreads();
#pragma unroll 1
    for (uint32_t n = 0; has_work; n++) {
        work_piece piece;
        qn_attention_span span;
        if (n > 0)
            work = works[team][n % 2].rest;
        if (!work.next(piece, span, a.mask, a.splits, n_rows, n_query_tiles))
            break;
        if (p.warp == 0 && p.lane == 0) {
            works[team][(n + 1) % 2].rest = work;
            works[team][n % 2].piece = piece;
            works[team][n % 2].n_splits = span.active_splits;
        }
        const piece_queries queries(a, piece.row, piece.query_tile, per_head);
        const bool early = n > 0 || a.pdl_prefetch; // later, the previous kernel has ended
        if (CACHE_SPLIT > 0 && piece.first == 0)
            attend_page_piece(a, tiles, queries, a.mask.positions[piece.row],
                              a.mask.positions[QN_TILES > 1 ? a.n_rows - 1 : piece.row], early, p);
        else
            attend_codes_piece(a, tiles, dynamic, queries, piece, span, early, p);
        combine_piece(a, works[team][n % 2], per_head, p);
    }
    qn_pdl_wait();
    write_rows_without_session(a);
}
