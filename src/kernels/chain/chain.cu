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
    WINDOW = 8,          /* products whose shares are known ahead */
    FIRST_STAGES = 32,   /* in which the first of them are looked for */
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
    uint32_t tiles, chunks, first_tile;
    uint32_t next_product; // the stage that it is
    tile_range warps[WARPS];
};

struct chain_control {
    product_share window[WINDOW]; // product k of the chain at k % WINDOW
    qn_chain_stage stages[3];     // stage i at i % 3
    float squares[WARPS];
    uint32_t n_known; // products that are, or were, in the window
};

static_assert(sizeof(chain_control) <= QN_CHAIN_CONTROL, "QN_CHAIN_CONTROL is too small");
static_assert(sizeof(qn_chain_stage) / 4 <= QN_CHAIN_THREADS, "a thread a word");

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

QN_DEVICE void enter_product(weight_stream &s, const chain_control &control, uint32_t warp)
{
    const product_share &share = control.window[s.product % WINDOW];
    s.at = share.warps[warp];
    s.area_tiles = share.area_tiles;
    s.tiles = share.tiles;
    const uint64_t tile = (uint64_t)s.at.chunk * s.area_tiles + s.at.tile;
    s.codes = share.codes + tile * CODE_BYTES;
    s.scales = share.scales + tile * SCALE_BYTES;
}

// Asks for a step, or for none where the products that are known have no more of them. Called by the whole warp.
QN_DEVICE bool ask_for_step(weight_stream &s, const chain_control &control, uint32_t warp, uint32_t lane)
{
    while (s.at.left == 0) {
        if (s.product + 1 >= control.n_known)
            return false;
        s.product++;
        enter_product(s, control, warp);
    }
    uint32_t count = min(s.at.left, s.tiles - s.at.tile);
    count = count < GROUP ? count : GROUP;
    const uint32_t to = s.shared + s.asked * STEP_BYTES, first = 16 * lane;
#pragma unroll
    for (uint32_t at = 0; at < GROUP * CODE_BYTES; at += 16 * QN_WARP)
        if (at < count * CODE_BYTES)
            copy_16(to + at + first, s.codes + at + first);
#pragma unroll
    for (uint32_t at = 0; at < GROUP * SCALE_BYTES; at += 16 * QN_WARP)
        if (at + first < count * SCALE_BYTES)
            copy_16(to + GROUP * CODE_BYTES + at + first, s.scales + at + first);
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

// Works out the block's share of the product that is stage `index`, which becomes product n_known. By one warp; n_known is
// counted up by the caller when all may look.
QN_DEVICE void know_product(const qn_chain_args &a, product_share &share, uint32_t index, uint32_t lane)
{
    const qn_chain_stage *stage = a.stages + index;
    const qn_chain_product &s = stage->u.product;
    const uint32_t slice = blockIdx.x / s.slice_blocks, part = blockIdx.x % s.slice_blocks;
    const bool works = slice < s.n_slices;
    const uint32_t first_chunk = slice * s.slice_chunks, left = s.n_chunks - first_chunk;
    const uint32_t chunks = !works ? 0 : left < s.slice_chunks ? left : s.slice_chunks;
    const uint32_t first_tile = (uint32_t)((uint64_t)s.n_tiles * part / s.slice_blocks);
    const uint32_t tiles = (uint32_t)((uint64_t)s.n_tiles * (part + 1) / s.slice_blocks) - first_tile;
    if (lane == 0) {
        const uint64_t first = works ? (uint64_t)first_chunk * s.n_tiles + first_tile : 0;
        share.codes = s.weights + first * CODE_BYTES;
        share.scales = s.weights + (uint64_t)s.n_chunks * s.n_tiles * CODE_BYTES + first * SCALE_BYTES;
        share.area_tiles = s.n_tiles;
        share.tiles = tiles;
        share.chunks = chunks;
        share.first_tile = first_tile;
        share.next_product = stage->next_product;
    }
    if (lane < WARPS) {
        const uint32_t all = chunks * tiles, from = all * lane / WARPS, to = all * (lane + 1) / WARPS;
        share.warps[lane] = { tiles ? from / tiles : 0, tiles ? from % tiles : 0, to - from };
    }
}

// The products among the first stages. By one warp.
QN_DEVICE void know_first_products(const qn_chain_args &a, chain_control &control, uint32_t lane)
{
    uint32_t which = __ballot_sync(QN_ALL_LANES, lane < a.n_stages && a.stages[lane].kind == QN_CHAIN_PRODUCT);
    uint32_t n = 0;
    for (; which && n < WINDOW; which &= which - 1, n++)
        know_product(a, control.window[n], __ffs(which) - 1, lane);
    control.n_known = n;
}

// One more, in the place of one that is done with. By one warp.
QN_DEVICE void know_next_product(const qn_chain_args &a, chain_control &control, uint32_t n_done, uint32_t lane)
{
    const uint32_t n = control.n_known;
    if (n == 0 || n - n_done >= WINDOW)
        return;
    const uint32_t index = control.window[(n - 1) % WINDOW].next_product;
    if (index >= a.n_stages)
        return;
    know_product(a, control.window[n % WINDOW], index, lane);
    __syncwarp();
    if (lane == 0)
        control.n_known = n + 1;
}

// ---- A product's columns ----

QN_DEVICE float silu(float x)
{
    return x / (1.0f + __expf(-x));
}

// Columns c to c+3 of a product whose columns are made one by one. `keep`: this block writes what is kept of them, and the sum
// of squares of these four is added to `square`.
QN_DEVICE float4 plain_columns(const qn_chain_product &s, uint32_t c, float factor, bool keep, float &square)
{
    if (c >= s.n_cols)
        return {};
    if (s.make == QN_CHAIN_SWIGLU) {
        const float4 gate = scale_4(parts_sum_4(s.from, s.row + c), factor),
                     up = scale_4(parts_sum_4(s.from, s.row2 + c), factor);
        return make_float4(silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z, silu(gate.w) * up.w);
    }
    float4 x = load_fresh_4(s.x + c);
    if (s.make == QN_CHAIN_PLAIN)
        return x;
    const float4 weight = *(const float4 *)(s.weight + c);
    if (s.from.n_parts)
        x = add_4(x, scale_4(parts_sum_4(s.from, c), factor));
    if (keep)
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
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP; distance *= 2)
        if (4 * distance < rotation)
            qn_lane_butterflies<4>(v, distance);
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

QN_DEVICE float4 columns_at(const qn_chain_product &s, uint32_t first, float factor, bool keep, float &square, uint32_t lane)
{
    if (s.make == QN_CHAIN_GATED)
        return gated_columns(s, first, lane);
    if (s.make == QN_CHAIN_MERGED)
        return merged_columns(s, first, lane);
    return plain_columns(s, first + 4 * lane, factor, keep, square);
}

// Makes the columns of a block's slice, `count` of them rounded up to whole chunks, from column `first` on.
QN_DEVICE void make_columns(chain_control &control, const qn_chain_product &s, const product_memory &m, uint32_t first,
                            uint32_t count, bool keep, uint32_t warp, uint32_t lane)
{
    float square = 0;
    const float factor = s.make == QN_CHAIN_GATED || s.make == QN_CHAIN_MERGED ? 1 : parts_factor(s.from);
    const float normal = s.rotation ? 1.0f / sqrtf((float)s.rotation) : 1;
    for (uint32_t at = warp * GROUP_COLS; at < count; at += WARPS * GROUP_COLS) {
        float4 x = columns_at(s, first + at, factor, keep, square, lane);
        if (m.floats)
            *(float4 *)(m.floats + at + 4 * lane) = x;
        if (s.rotation) {
            const uint32_t c = first + at + 4 * lane;
            if (s.signs && c < s.n_cols) {
                const float4 sign = *(const float4 *)(s.signs + c);
                x = make_float4(x.x * sign.x, x.y * sign.y, x.z * sign.z, x.w * sign.w);
            }
            x = turn_in_warp(x, s.rotation, lane);
        }
        if (s.rotation > GROUP_COLS)
            *(float4 *)(m.turns + at + 4 * lane) = x;
        else
            put_planes(m.acts, at, scale_4(x, normal), lane);
    }
    if (s.rotation > GROUP_COLS) {
        __syncthreads();
        for (uint32_t at = warp * GROUP_COLS; at < count; at += WARPS * GROUP_COLS)
            put_planes(m.acts, at, scale_4(turned_columns(m.turns, at, s.rotation, lane), normal), lane);
    }
    if (s.make == QN_CHAIN_NORM) {
        square = qn_warp_sum(square);
        if (lane == 0)
            control.squares[warp] = square;
    }
}

// ---- Products ----

QN_DEVICE void product_step(float *to, uint32_t step, uint32_t count, const plane_acts &x, uint32_t lane)
{
    const uint32_t codes = step + 16 * lane, scales = step + GROUP * CODE_BYTES + lane / 4 * 4;
    float sums[GROUP][2] = {};
#pragma unroll
    for (int m = 0; m < GROUP; m += 2) {
        if (m + 1 < count)
            plane_product<2>(sums + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x, lane);
        else if (m < count)
            plane_product<1>(sums + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x, lane);
    }
    put_row_sums<GROUP>(to, sums, count, lane);
}

// The slice's chunks in the shared memory of a block, and their sums, [chunks][tiles][16].
QN_DEVICE void product_stage(chain_control &control, const qn_chain_product &s, uint8_t *scratch, weight_stream &stream,
                             uint32_t number, uint32_t warp, uint32_t lane)
{
    const product_share &share = control.window[number % WINDOW];
    const uint32_t slice = blockIdx.x / s.slice_blocks;
    if (share.chunks == 0)
        return;
    const bool keep = s.make == QN_CHAIN_NORM && blockIdx.x % s.slice_blocks == 0;
    product_memory m = { scratch, (float *)(scratch + s.slice_chunks * CHUNK_BYTES) };
    m.sums = m.turns = m.floats + (s.half_tiles ? s.slice_chunks * QN_TILE_COLS + HALF_SUMS : 0);
    if (!s.half_tiles)
        m.floats = nullptr;
    uint4 halves = {};
    if (m.floats)
        halves = half_rows_ahead(s, slice, blockIdx.x % s.slice_blocks);
    make_columns(control, s, m, slice * s.slice_chunks * QN_TILE_COLS, share.chunks * QN_TILE_COLS, keep, warp, lane);
    __syncthreads();
    if (keep && threadIdx.x == 0) {
        float square = 0;
        for (uint32_t i = 0; i < WARPS; i++)
            square += control.squares[i];
        s.squares[slice] = square;
    }
    if (m.floats)
        half_rows(s, m.floats, slice, blockIdx.x % s.slice_blocks, halves, m.floats + s.slice_chunks * QN_TILE_COLS);

    const uint32_t acts = qn_shared_address(scratch);
    tile_range at = share.warps[warp];
    plane_acts x = {};
    for (; at.left; at.chunk++, at.tile = 0) {
        load_plane_acts(x, acts + at.chunk * CHUNK_BYTES, lane);
        uint32_t left = min(at.left, share.tiles - at.tile);
        float *to = m.sums + (at.chunk * share.tiles + at.tile) * QN_TILE_ROWS;
        at.left -= left;
        while (left) {
            const uint32_t count = left < GROUP ? left : GROUP;
            product_step(to, wait_for_step(stream), count, x, lane);
            take_step(stream, control, warp, lane);
            to += GROUP * QN_TILE_ROWS;
            left -= count;
        }
    }
    __syncthreads();
    float *out = s.out + ((uint64_t)slice * s.n_tiles + share.first_tile) * QN_TILE_ROWS;
    for (uint32_t i = 4 * threadIdx.x; i < share.tiles * QN_TILE_ROWS; i += 4 * QN_CHAIN_THREADS) {
        float4 sum = {};
        for (uint32_t c = 0; c < share.chunks; c++)
            sum = add_4(sum, *(const float4 *)(m.sums + c * share.tiles * QN_TILE_ROWS + i));
        *(float4 *)(out + i) = sum;
    }
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
    if (threadIdx.x == 0 && i + 1 < a.n_stages)
        arrive(a.meeting);
}

// What a stage needs and no stage of this launch writes is brought into the second cache while the one before it works. (To ask
// for it before blocks meet takes registers, for which what goes through local memory costs more.)
QN_DEVICE void prefetch_stage(const qn_chain_args &a, const qn_chain_stage &stage)
{
    if (stage.kind == QN_CHAIN_DELTA)
        delta_prefetch(a, stage.u.delta);
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

extern "C" __global__ void __launch_bounds__(QN_CHAIN_THREADS, 1) qn_chain(const __grid_constant__ qn_chain_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    chain_control &control = *(chain_control *)shared;
    uint8_t *scratch = shared + QN_CHAIN_CONTROL;
    const uint32_t warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    if (warp == 0)
        know_first_products(a, control, lane);
    if (threadIdx.x < STAGE_WORDS)
        for (uint32_t i = 0; i < 2 && i < a.n_stages; i++)
            ((uint32_t *)(control.stages + i))[threadIdx.x] = ((const uint32_t *)(a.stages + i))[threadIdx.x];
    __syncthreads();
    weight_stream stream = {};
    stream.shared = qn_shared_address(scratch + QN_CHAIN_SCRATCH) + warp * QN_STAGES * STEP_BYTES;
    if (control.n_known)
        enter_product(stream, control, warp);
    ask_for_steps(stream, control, warp, lane);
    qn_wait_for_previous();

    uint32_t n_products = 0;
    for (uint32_t i = 0; i < a.n_stages; i++) {
        const qn_chain_stage &stage = control.stages[i % 3], &next = control.stages[(i + 1) % 3];
        if (i + 1 < a.n_stages)
            prefetch_stage(a, next);
        const uint32_t kind = stage.kind;
        if (kind == QN_CHAIN_DELTA) {
            delta_held held = {};
            delta_stage(a, stage.u.delta, scratch, held);
            end_stage(a, i);
            delta_behind(stage.u.delta, held);
        } else {
            if (kind == QN_CHAIN_PRODUCT)
                product_stage(control, stage.u.product, scratch, stream, n_products++, warp, lane);
            else if (kind == QN_CHAIN_ATTENTION)
                attention_stage(a, stage.u.attention, scratch);
            else if (kind == QN_CHAIN_STORE)
                store_stage(stage.u.store);
            end_stage(a, i);
        }
        if (i + 1 == a.n_stages)
            break;
        if (next.kind == QN_CHAIN_ATTENTION)
            attention_ahead(a, next.u.attention);
        const uint32_t word = threadIdx.x - (QN_CHAIN_THREADS - STAGE_WORDS);
        if (word < STAGE_WORDS && i + 2 < a.n_stages) // in the place of the stage before this
            ((uint32_t *)&control.stages[(i + 2) % 3])[word] = ((const uint32_t *)(a.stages + i + 2))[word];
        if (threadIdx.x == 0)
            wait_for_others(a.meeting, (i + 1) * gridDim.x);
        else if (warp == 1)
            know_next_product(a, control, n_products, lane);
        __syncthreads();
        ask_for_steps(stream, control, warp, lane);
    }
    if (threadIdx.x == 0)
        leave(a.meeting, a.n_stages);
}
