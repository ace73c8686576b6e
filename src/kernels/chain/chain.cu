// A token's operations in one launch: the walk over the stages, the weights on their way, products, and what is stored for
// others. Gated DeltaNet and attention are chain_delta.cuh's and chain_attention.cuh's.
//
// Every warp asks for its weights itself, QN_STAGES steps ahead of what it works on, and goes on into the next products'
// weights while blocks wait for each other. What each warp of a block does of the products ahead is worked out well before,
// into a window of a few products in shared memory.
#include "kernels/butterflies.cuh"
#include "kernels/chain/chain_attention.cuh"
#include "kernels/chain/chain_delta.cuh"
#include "kernels/chain/planes.cuh"

enum {
    WARPS = QN_CHAIN_THREADS / QN_WARP,
    KNOWING_WARP = 1,         /* which works out shares */
    MEETING_WARP = WARPS - 1, /* which has no weights: what it says to other blocks would wait for them */
    WEIGHT_WARPS = WARPS - 1,
    FAR = 16,            /* stages ahead whose words are brought into the second cache */
    WINDOW = 8,          /* products whose shares are known ahead */
    GROUP = 4 / QN_BITS, /* tiles of a step */
    CODE_BYTES = QN_ROW_CODE_BYTES,
    SCALE_BYTES = QN_ROW_SCALE_BYTES,
    STEP_BYTES = GROUP * (CODE_BYTES + SCALE_BYTES),
    STAGE_WORDS = sizeof(qn_chain_stage) / 4,
    GROUP_COLS = 4 * QN_WARP /* columns that a warp makes at once */
};

// Tiles of a chunk, one after another and on into the next chunk, from (chunk, tile) on: `left` of them.
struct tile_range {
    uint32_t chunk, tile, left;
};

// What a block does of a product: chunks times tiles.
struct product_share {
    const uint8_t *codes, *scales; // of its first chunk and tile
    uint32_t area_tiles;           // from one chunk to the next
    uint32_t tiles, chunks, first_tile, slice, part;
    uint32_t next_product; // the stage that it is
    tile_range warps[WARPS];
};

struct chain_control {
    product_share window[WINDOW]; // product k of the chain at k % WINDOW
    qn_chain_stage stages[3];     // stage i at i % 3
    chain_session session;
    float squares[WARPS];
    uint32_t n_known;        // products that are, or were, in the window
    uint32_t n_done;         // of them, those that are done with
    uint32_t to_know;        // the stage that is the next one, or n_stages
    uint32_t words[QN_WARP]; // what its share is worked out from
};

static_assert(sizeof(chain_control) <= QN_CHAIN_CONTROL, "QN_CHAIN_CONTROL is too small");
static_assert(sizeof(qn_chain_stage) / 4 <= QN_CHAIN_THREADS, "a thread a word");
static_assert(sizeof(qn_chain_stage) % 16 == 0, "stages are brought nearer in bulk");

// ---- Weights on their way ----

// A warp's steps, product after product. A step is as many tiles of a chunk as there are, up to GROUP.
struct weight_stream {
    const uint8_t *codes, *scales;
    uint32_t area_tiles, tiles;
    tile_range at;
    uint32_t product;      // of `at`
    uint32_t asked, taken; // stages of the ring that are next to be filled, and to be used
    uint32_t under_way;    // steps between them
    uint32_t shared;
};

QN_DEVICE void enter_product(weight_stream &s, const chain_control &control, uint32_t warp, uint32_t lane)
{
    const product_share &share = control.window[s.product % WINDOW];
    s.at = share.warps[warp];
    s.area_tiles = share.area_tiles;
    s.tiles = share.tiles;
    const uint64_t tile = (uint64_t)s.at.chunk * s.area_tiles + s.at.tile;
    s.codes = share.codes + tile * CODE_BYTES + 16 * lane;
    s.scales = share.scales + tile * SCALE_BYTES + 16 * lane;
}

// Asks for a step, or for none where the products that are known have no more of them. Called by the whole warp.
QN_DEVICE bool ask_for_step(weight_stream &s, const chain_control &control, uint32_t warp, uint32_t lane)
{
    while (s.at.left == 0) {
        if (s.product + 1 >= control.n_known)
            return false;
        s.product++;
        enter_product(s, control, warp, lane);
    }
    uint32_t count = min(s.at.left, s.tiles - s.at.tile);
    count = count < GROUP ? count : GROUP;
    const uint32_t to = s.shared + s.asked * STEP_BYTES + 16 * lane;
#pragma unroll
    for (uint32_t at = 0; at < GROUP * CODE_BYTES; at += 16 * QN_WARP)
        if (at < count * CODE_BYTES)
            copy_16(to + at, s.codes + at);
#pragma unroll
    for (uint32_t at = 0; at < GROUP * SCALE_BYTES; at += 16 * QN_WARP)
        if (at + 16 * lane < count * SCALE_BYTES)
            copy_16(to + GROUP * CODE_BYTES + at, s.scales + at);
    qn_copy_async_commit();
    s.codes += count * CODE_BYTES;
    s.scales += count * SCALE_BYTES;
    s.at.left -= count;
    s.at.tile += count;
    if (s.at.tile == s.tiles) {
        s.at.tile = 0;
        s.codes += (uint64_t)(s.area_tiles - s.tiles) * CODE_BYTES;
        s.scales += (uint64_t)(s.area_tiles - s.tiles) * SCALE_BYTES;
    }
    s.asked = s.asked + 1 == QN_STAGES ? 0 : s.asked + 1;
    s.under_way++;
    return true;
}

QN_DEVICE void ask_for_steps(weight_stream &s, const chain_control &control, uint32_t warp, uint32_t lane)
{
    while (s.under_way < QN_STAGES && ask_for_step(s, control, warp, lane))
        ;
}

// The address of the step that is next.
QN_DEVICE uint32_t wait_for_step(const weight_stream &s)
{
    if (s.under_way == QN_STAGES)
        qn_copy_async_wait<QN_STAGES - 1>();
    else // there was nothing to ask for: the last ones
        qn_copy_async_wait<0>();
    __syncwarp();
    return s.shared + s.taken * STEP_BYTES;
}

QN_DEVICE void take_step(weight_stream &s, const chain_control &control, uint32_t warp, uint32_t lane)
{
    __syncwarp();
    s.taken = s.taken + 1 == QN_STAGES ? 0 : s.taken + 1;
    s.under_way--;
    ask_for_step(s, control, warp, lane);
}

// ---- Shares ----

// What a share is worked out from, a word a lane: of a product's stage the words from `weights` on, and which one is next.
enum { SHARE_WORDS = 7, NEXT_LANE = SHARE_WORDS };

#ifndef __CUDACC_RTC__ // NVRTC has no offsetof
static_assert(__builtin_offsetof(qn_chain_product, slice_blocks) ==
                  __builtin_offsetof(qn_chain_product, weights) + 4 * (SHARE_WORDS - 1),
              "weights, n_tiles, n_chunks, slice_chunks, n_slices, slice_blocks");
#endif

QN_DEVICE uint32_t load_share_word(const qn_chain_args &a, uint32_t index, uint32_t lane)
{
    const uint32_t *words = (const uint32_t *)&a.stages[index].u.product.weights;
    return lane < SHARE_WORDS ? words[lane] : lane == NEXT_LANE ? a.stages[index].next_product : 0;
}

// The block's share of a product, from its words. By one warp.
QN_DEVICE void work_out_share(product_share &share, uint32_t word, uint32_t lane)
{
    uint32_t w[SHARE_WORDS + 1];
#pragma unroll
    for (int i = 0; i <= SHARE_WORDS; i++)
        w[i] = __shfl_sync(QN_ALL_LANES, word, i);
    const uint8_t *weights = (const uint8_t *)((uint64_t)w[1] << 32 | w[0]);
    const uint32_t n_tiles = w[2], n_chunks = w[3], slice_chunks = w[4], n_slices = w[5], slice_blocks = w[6];
    const uint32_t slice = blockIdx.x / slice_blocks, part = blockIdx.x % slice_blocks;
    const bool works = slice < n_slices;
    const uint32_t first_chunk = slice * slice_chunks, left = n_chunks - first_chunk;
    const uint32_t chunks = !works ? 0 : left < slice_chunks ? left : slice_chunks;
    const uint32_t first_tile = n_tiles * part / slice_blocks, tiles = n_tiles * (part + 1) / slice_blocks - first_tile;
    if (lane == 0) {
        const uint64_t first = works ? (uint64_t)first_chunk * n_tiles + first_tile : 0;
        share.codes = weights + first * CODE_BYTES;
        share.scales = weights + (uint64_t)n_chunks * n_tiles * CODE_BYTES + first * SCALE_BYTES;
        share.area_tiles = n_tiles;
        share.tiles = tiles;
        share.chunks = chunks;
        share.first_tile = first_tile;
        share.slice = slice;
        share.part = part;
        share.next_product = w[NEXT_LANE];
    }
    if (lane < WEIGHT_WARPS) {
        const uint32_t all = chunks * tiles, from = all * lane / WEIGHT_WARPS, to = all * (lane + 1) / WEIGHT_WARPS;
        share.warps[lane] = { tiles ? from / tiles : 0, tiles ? from % tiles : 0, to - from };
    }
    if (lane == MEETING_WARP)
        share.warps[lane] = { 0, 0, 0 };
}

// The products among the first stages. By one warp; `words` is for its use, WINDOW rows of a word a lane.
QN_DEVICE void know_first_products(const qn_chain_args &a, chain_control &control, uint32_t *words, uint32_t lane)
{
    uint32_t which = __ballot_sync(QN_ALL_LANES, lane < a.n_stages && a.stages[lane].kind == QN_CHAIN_PRODUCT);
    uint32_t n = __popc(which);
    n = n < WINDOW ? n : WINDOW;
    uint32_t mine[WINDOW];
#pragma unroll
    for (int i = 0; i < WINDOW; i++, which &= which - 1)
        mine[i] = which ? load_share_word(a, __ffs(which) - 1, lane) : 0;
#pragma unroll
    for (int i = 0; i < WINDOW; i++)
        words[i * QN_WARP + lane] = mine[i];
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++)
        work_out_share(control.window[i], words[i * QN_WARP + lane], lane);
    __syncwarp();
    control.n_known = n;
    control.n_done = 0;
    control.to_know = n ? control.window[n - 1].next_product : a.n_stages;
    if (control.to_know < a.n_stages)
        control.words[lane] = load_share_word(a, control.to_know, lane);
}

// One more product, in the place of one that is done with, if there is one. By one warp. Its words were asked for the last
// time.
QN_DEVICE void know_next_product(const qn_chain_args &a, chain_control &control, bool one_done, uint32_t lane)
{
    const uint32_t n_done = control.n_done + one_done;
    __syncwarp();
    if (lane == 0)
        control.n_done = n_done;
    const uint32_t n = control.n_known, word = control.words[lane], after = control.words[NEXT_LANE];
    if (control.to_know >= a.n_stages || n - n_done >= WINDOW)
        return;
    const uint32_t next_word = after < a.n_stages ? load_share_word(a, after, lane) : 0;
    work_out_share(control.window[n % WINDOW], word, lane);
    __syncwarp();
    control.words[lane] = next_word;
    if (lane == 0) {
        control.n_known = n + 1;
        control.to_know = after;
    }
}

// ---- A product's columns ----

// Numbers c to c+3 of parts. By whole warps.
template <int count> QN_DEVICE float4 parts_times_factor(const qn_chain_parts &p, uint32_t c, float squares, bool wanted)
{
    parts_ahead_4<count> ahead;
    ask_for_parts_4(ahead, p, c, 0, wanted);
    const float factor = parts_factor(p, squares);
    return scale_4(sum_parts_4(ahead, p, c, wanted), factor);
}

// Columns c to c+3 of a product whose columns are made one by one. `keep`: this block writes what is kept of them, and the sum
// of squares of these four is added to `square`. All that is read is asked for before any of it is used.
QN_DEVICE float4 plain_columns(const qn_chain_product &s, uint32_t c, bool keep, float &square)
{
    const uint32_t make = s.make;
    const bool there = c < s.n_cols;
    const float squares = parts_squares(s.from);
    if (make == QN_CHAIN_SWIGLU) {
        parts_ahead_4<6> ahead, ahead2;
        ask_for_parts_4(ahead, s.from, s.row + c, 0, there);
        ask_for_parts_4(ahead2, s.from, s.row2 + c, 0, there);
        const float factor = parts_factor(s.from, squares);
        const float4 gate = scale_4(sum_parts_4(ahead, s.from, s.row + c, there), factor);
        const float4 up = scale_4(sum_parts_4(ahead2, s.from, s.row2 + c, there), factor);
        return make_float4(silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z, silu(gate.w) * up.w);
    }
    float4 x = load_fresh_4_if(s.x + c, there);
    if (make == QN_CHAIN_PLAIN)
        return x;
    const float4 weight = load_fresh_4_if(s.weight + c, there);
    const float4 more = s.from.n_parts <= 6 ? parts_times_factor<6>(s.from, c, squares, there)
                                            : parts_times_factor<12>(s.from, c, squares, there);
    x = add_4(x, more);
    if (keep && there)
        *(float4 *)(s.x_out + c) = x;
    square += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
    return make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w);
}

// The part of a transform's blocks of `rotation` columns that a warp can do: distances below 128. Four columns a lane.
QN_DEVICE float4 turn_in_warp(float4 x, uint32_t rotation, uint32_t lane)
{
    float v[4] = { x.x, x.y, x.z, x.w };
    qn_butterflies<1, 4>(v);
    qn_butterflies<2, 4>(v);
    const uint32_t lanes = rotation < GROUP_COLS ? rotation / 4 : QN_WARP;
#pragma unroll 1
    for (uint32_t distance = 1; distance < lanes; distance *= 2) {
        const float sign = lane & distance ? -1.0f : 1.0f; // the upper lane has the difference
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = fmaf(v[i], sign, __shfl_xor_sync(QN_ALL_LANES, v[i], distance));
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The rest: column `at` of a block from those of its `count` groups of 128 columns, each transformed in itself. A step takes
// neighbours, of which it keeps the sum or the difference as the bits of the group's number say.
template <int count> QN_DEVICE float4 turn_over_groups(const float *block, uint32_t group, uint32_t within)
{
    float4 v[count];
#pragma unroll
    for (int j = 0; j < count; j++)
        v[j] = *(const float4 *)(block + j * GROUP_COLS + within);
#pragma unroll
    for (int n = count / 2, bit = 1; n > 0; n /= 2, bit *= 2)
#pragma unroll
        for (int j = 0; j < n; j++)
            v[j] = add_4(v[2 * j], scale_4(v[2 * j + 1], group & bit ? -1.0f : 1.0f));
    return v[0];
}

// Columns of a block of `rotation` that are in shared memory as turn_in_warp has left them.
QN_DEVICE float4 turned_columns(const float *floats, uint32_t at, uint32_t rotation, uint32_t lane)
{
    const float *block = floats + at / rotation * rotation;
    const uint32_t group = at % rotation / GROUP_COLS;
    return rotation == 256   ? turn_over_groups<2>(block, group, 4 * lane)
           : rotation == 512 ? turn_over_groups<4>(block, group, 4 * lane)
                             : turn_over_groups<8>(block, group, 4 * lane);
}

// Where a stage's shared memory is.
struct product_memory {
    uint8_t *acts;       // planes of the slice
    float *floats;       // its columns as they are, with HALF_SUMS more, or none
    float *sums, *turns; // [chunks][tiles][16]; and before that, where rotated columns change hands
};

QN_DEVICE float4 columns_at(const qn_chain_product &s, uint32_t position, uint32_t first, bool keep, float &square,
                            uint32_t lane)
{
    if (s.make == QN_CHAIN_GATED)
        return gated_columns(s, first, lane);
    if (s.make == QN_CHAIN_MERGED)
        return merged_columns(s, position, first, lane);
    return plain_columns(s, first + 4 * lane, keep, square);
}

// Makes the columns of a block's slice, `count` of them rounded up to whole chunks, from column `first` on.
QN_DEVICE void make_columns(chain_control &control, const qn_chain_product &s, const product_memory &m, uint32_t first,
                            uint32_t count, bool keep, uint32_t warp, uint32_t lane)
{
    const uint32_t rotation = s.rotation;
    const float normal = rotation ? rsqrtf((float)rotation) : 1;
    float square = 0;
#pragma unroll 1
    for (uint32_t turn = 0; turn < 2; turn++) { // the second one where columns change hands
#pragma unroll 1
        for (uint32_t at = warp * GROUP_COLS; at < count; at += WARPS * GROUP_COLS) {
            float4 x;
            if (turn == 0) {
                const uint32_t c = first + at + 4 * lane;
                const bool has_signs = rotation && s.signs && c < s.n_cols;
                const float4 sign = load_fresh_4_if(s.signs + c, has_signs);
                x = columns_at(s, control.session.position, first + at, keep, square, lane);
                if (m.floats)
                    *(float4 *)(m.floats + at + 4 * lane) = x;
                if (has_signs)
                    x = make_float4(x.x * sign.x, x.y * sign.y, x.z * sign.z, x.w * sign.w);
                if (rotation)
                    x = turn_in_warp(x, rotation, lane);
                if (rotation > GROUP_COLS) {
                    *(float4 *)(m.turns + at + 4 * lane) = x;
                    continue;
                }
            } else {
                x = turned_columns(m.turns, at, rotation, lane);
            }
            put_planes(m.acts, at, scale_4(x, normal), lane);
        }
        if (rotation <= GROUP_COLS)
            break;
        if (turn == 0)
            __syncthreads();
    }
    if (keep) {
        square = qn_warp_sum(square);
        if (lane == 0)
            control.squares[warp] = square;
    }
}

// ---- What stages ahead need ----

// What a stage needs and no stage of this launch writes is brought into the second cache while the one before it works. (To ask
// for it before blocks meet takes registers, for which what goes through local memory costs more.)
QN_DEVICE void prefetch_stage(const chain_session &session, const qn_chain_stage &stage)
{
    if (stage.kind == QN_CHAIN_DELTA)
        delta_prefetch(session, stage.u.delta);
    if (stage.kind != QN_CHAIN_PRODUCT || threadIdx.x != QN_CHAIN_THREADS - 1)
        return;
    const qn_chain_product &s = stage.u.product;
    const uint32_t slice = blockIdx.x / s.slice_blocks, first = slice * s.slice_chunks * QN_TILE_COLS;
    if (slice >= s.n_slices)
        return;
    const uint32_t bytes = min(s.slice_chunks * QN_TILE_COLS, s.n_cols - first) * sizeof(float);
    if (s.make == QN_CHAIN_NORM)
        prefetch_bytes(s.weight + first, bytes);
    if (s.rotation && s.signs)
        prefetch_bytes(s.signs + first, bytes);
    if (s.half_tiles)
        half_rows_prefetch(s, slice, blockIdx.x % s.slice_blocks);
}

// Its address is worked out where it is needed, and not kept: in stages there is no register for it, and what lies in local
// memory is a way to the second cache after each meeting.
QN_DEVICE const qn_chain_stage &stage_at(const chain_control &control, uint32_t i)
{
    uint32_t place;
    asm volatile("mov.u32 %0, %1;" : "=r"(place) : "r"(i % 3));
    return control.stages[place];
}

// While nothing waits for it: once the stage's columns are made. And the words of a stage far ahead.
QN_DEVICE void prefetch_next(const qn_chain_args &a, const chain_control &control, uint32_t i)
{
    if (threadIdx.x == QN_CHAIN_THREADS - 1 && i + FAR < a.n_stages)
        prefetch_bytes(a.stages + i + FAR, sizeof *a.stages);
    if (i + 1 < a.n_stages)
        prefetch_stage(control.session, stage_at(control, i + 1));
}

// ---- Products ----

// Two tiles at a time, the last one also where it is missing: its sums are not kept.
QN_DEVICE void product_step(float *to, uint32_t step, uint32_t count, const plane_acts &x, uint32_t lane)
{
    const uint32_t codes = step + 16 * lane, scales = step + GROUP * CODE_BYTES + lane / 4 * 4;
    float sums[GROUP][2] = {};
#pragma unroll
    for (int m = 0; m < GROUP; m += 2)
        if (m < count)
            plane_product<2>(sums + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x, lane);
    put_row_sums<GROUP>(to, sums, count, lane);
}

QN_DEVICE float4 load_shared_4_if(uint32_t address, bool wanted)
{
    float4 x = {};
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %5, 0;\n"
                 "@wanted ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
                 : "r"(address), "r"((uint32_t)wanted)
                 : "memory");
    return x;
}

// The sums of a block's chunks, [chunks][n], to where the slice's are: n of them, a multiple of 16.
QN_DEVICE void finish_tiles(float *out, const float *sums, uint32_t chunks, uint32_t n)
{
    enum { AHEAD = 8 };
#pragma unroll 1
    for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * QN_CHAIN_THREADS) {
        uint32_t from = qn_shared_address(sums + i);
        float4 sum = {};
#pragma unroll 1
        for (uint32_t first = 0; first < chunks; first += AHEAD) {
            float4 v[AHEAD];
#pragma unroll
            for (uint32_t c = 0; c < AHEAD; c++, from += 4 * n)
                v[c] = load_shared_4_if(from, first + c < chunks);
#pragma unroll
            for (uint32_t c = 0; c < AHEAD; c++)
                sum = add_4(sum, v[c]);
        }
        __stcg((float4 *)(out + i), sum);
    }
}

// Stage i: the slice's chunks in the shared memory of a block, and their sums, [chunks][tiles][16].
QN_DEVICE void product_stage(const qn_chain_args &a, uint32_t i, chain_control &control, const qn_chain_product &s,
                             uint8_t *scratch, weight_stream &stream, uint32_t number, uint32_t warp, uint32_t lane)
{
    const product_share &share = control.window[number % WINDOW];
    const uint32_t chunks = share.chunks, tiles = share.tiles;
    if (chunks == 0)
        return;
    const bool keep = s.make == QN_CHAIN_NORM && share.part == 0;
    product_memory m = { scratch, (float *)(scratch + s.slice_chunks * CHUNK_BYTES) };
    m.sums = m.turns = m.floats + (s.half_tiles ? s.slice_chunks * QN_TILE_COLS + HALF_SUMS : 0);
    if (!s.half_tiles)
        m.floats = nullptr;
    uint4 halves = {};
    if (m.floats)
        halves = half_rows_ahead(s, share.slice, share.part);
    make_columns(control, s, m, share.slice * s.slice_chunks * QN_TILE_COLS, chunks * QN_TILE_COLS, keep, warp, lane);
    __syncthreads();
    prefetch_next(a, control, i);
    if (keep && warp == WARPS - 1) {
        const float square = qn_warp_sum(lane < WARPS ? control.squares[lane] : 0);
        if (lane == 0)
            s.squares[share.slice] = square;
    }
    if (m.floats)
        half_rows(s, m.floats, share.slice, share.part, halves, m.floats + s.slice_chunks * QN_TILE_COLS);

    tile_range at = share.warps[warp];
    float *to = m.sums + (at.chunk * tiles + at.tile) * QN_TILE_ROWS;
    plane_acts x;
    while (at.left) {
        load_plane_acts(x, qn_shared_address(m.acts) + at.chunk * CHUNK_BYTES, lane);
        uint32_t left = min(at.left, tiles - at.tile);
        at.left -= left;
        at.chunk++;
        at.tile = 0;
        while (left) {
            const uint32_t count = left < GROUP ? left : GROUP;
            product_step(to, wait_for_step(stream), count, x, lane);
            take_step(stream, control, warp, lane);
            to += count * QN_TILE_ROWS;
            left -= count;
        }
    }
    float *out = s.out + ((uint64_t)share.slice * s.n_tiles + share.first_tile) * QN_TILE_ROWS;
    __syncthreads();
    if (m.floats && threadIdx.x >= QN_CHAIN_THREADS - QN_TILE_ROWS)
        half_rows_finish(s, m.floats + s.slice_chunks * QN_TILE_COLS, share.slice, share.part,
                         QN_CHAIN_THREADS - 1 - threadIdx.x);
    finish_tiles(out, m.sums, chunks, tiles * QN_TILE_ROWS);
}

// ---- Floats for others ----

QN_DEVICE void store_stage(const qn_chain_store &s)
{
    const float factor = parts_factor(s.from);
    for (uint32_t k = 0; k < s.n_outs; k++)
        for (uint32_t i = blockIdx.x * QN_CHAIN_THREADS + threadIdx.x; i < s.outs[k].n_rows;
             i += gridDim.x * QN_CHAIN_THREADS) {
            const float y = factor * parts_sum(s.from, s.outs[k].row + i);
            s.outs[k].out[i] = s.outs[k].x ? load_fresh(s.outs[k].x + i) + y : y;
        }
}

// ---- The walk ----

// Arrivals are counted from the launch's beginning to its end. Everything that all blocks have written before is visible after
// it to those that load it fresh.
QN_DEVICE void arrive(uint32_t *meeting)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(meeting) : "memory");
}

QN_DEVICE void wait_for_others(const uint32_t *meeting, uint32_t expected)
{
    uint32_t found;
    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(meeting) : "memory");
    while (found < expected);
}

// The last one to come leaves zeros.
QN_DEVICE void leave(uint32_t *meeting, uint32_t n_stages)
{
    if (atomicAdd(meeting, 1) + 1 == gridDim.x * n_stages)
        *meeting = 0;
}

QN_DEVICE void end_stage(const qn_chain_args &a, uint32_t i)
{
    __syncthreads();
    if (threadIdx.x == MEETING_WARP * QN_WARP && i + 1 < a.n_stages)
        arrive(a.meeting);
}

extern "C" __global__ void __launch_bounds__(QN_CHAIN_THREADS, 1) qn_chain(const __grid_constant__ qn_chain_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    chain_control &control = *(chain_control *)shared;
    uint8_t *scratch = shared + QN_CHAIN_CONTROL;
    const uint32_t warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    if (warp == 0)
        know_first_products(a, control, (uint32_t *)scratch, lane);
    if (threadIdx.x < STAGE_WORDS)
        for (uint32_t i = 0; i < 2 && i < a.n_stages; i++)
            ((uint32_t *)(control.stages + i))[threadIdx.x] = ((const uint32_t *)(a.stages + i))[threadIdx.x];
    __syncthreads();
    weight_stream stream = {};
    stream.shared = qn_shared_address(scratch + QN_CHAIN_SCRATCH) + warp * QN_STAGES * STEP_BYTES;
    if (control.n_known)
        enter_product(stream, control, warp, lane);
    ask_for_steps(stream, control, warp, lane);
    qn_wait_for_previous();
    if (threadIdx.x == 0)
        control.session = { a.memory ? (unsigned char *)a.memory[0] : nullptr, a.positions ? a.positions[0] : 0 };
    __syncthreads();

    for (uint32_t i = 0; i < a.n_stages; i++) {
        const uint32_t kind = stage_at(control, i).kind;
        if (kind != QN_CHAIN_PRODUCT) // a product has a better moment for it
            prefetch_next(a, control, i);
        if (kind == QN_CHAIN_DELTA) {
            delta_held held = {};
            delta_stage(control.session, stage_at(control, i).u.delta, scratch, held);
            end_stage(a, i);
            delta_behind(stage_at(control, i).u.delta, scratch, held);
        } else {
            if (kind == QN_CHAIN_PRODUCT)
                product_stage(a, i, control, stage_at(control, i).u.product, scratch, stream, control.n_done, warp, lane);
            else if (kind == QN_CHAIN_ATTENTION)
                attention_stage(stage_at(control, i).u.attention, control.session.position, scratch);
            else if (kind == QN_CHAIN_STORE)
                store_stage(stage_at(control, i).u.store);
            end_stage(a, i);
        }
        if (i + 1 == a.n_stages)
            break;
        if (stage_at(control, i + 1).kind == QN_CHAIN_ATTENTION)
            attention_ahead(stage_at(control, i + 1).u.attention, control.session.position);
        const uint32_t word = threadIdx.x - 2 * QN_WARP;
        if (word < STAGE_WORDS && i + 2 < a.n_stages) // in the place of the stage before this
            ((uint32_t *)&control.stages[(i + 2) % 3])[word] = ((const uint32_t *)(a.stages + i + 2))[word];
        if (threadIdx.x == MEETING_WARP * QN_WARP)
            wait_for_others(a.meeting, (i + 1) * gridDim.x);
        else if (warp == KNOWING_WARP)
            know_next_product(a, control, stage_at(control, i).kind == QN_CHAIN_PRODUCT, lane);
        __syncthreads();
        ask_for_steps(stream, control, warp, lane);
    }
    if (threadIdx.x == 0)
        leave(a.meeting, a.n_stages);
}
