// Gated DeltaNet over chunks of 64 tokens, the sequential pass from chunk to chunk: qn_gdn_advance of deltanet.h, and
// with QN_GDN_EFFECTS qn_gdn_span_effects, which computes the effect of spans on a state.
//
// A block has one or two consumer warp groups (QN_GDN_SLICES), one for each slice of 64 values of a head, and a
// producer warp group that loads their inputs. The state is stored transposed, [values][keys], as MMA accumulators.
// Rounded to bf16 pairs, accumulators are the A operand of the next MMA, in the same registers. The sequential
// dependency from chunk to chunk therefore stays in a warp's registers, and every B operand is a tile that was loaded
// to shared memory in advance: k, q, the inverse, the scores. While one warp group waits for its MMAs or rounds their
// results, the tensor cores work for the other. With keys of more than two tiles there are not enough registers for the
// rounded state, which is then in shared memory.
#include "cuda/kernels/deltanet/state.cuh"

#ifdef QN_GDN_EFFECTS // else qn_gdn_advance
#define OUTPUTS 0
#else
#define OUTPUTS 1
#endif

#ifndef QN_GDN_SLICES
#define QN_GDN_SLICES 2
#endif
#define BLOCK_SLICES QN_GDN_SLICES
#ifndef QN_GDN_STAGES
#define QN_GDN_STAGES 3
#endif
#define STAGES QN_GDN_STAGES
#define STATE_TILES QN_GDN_STATE_TILES(HEAD_K)

static_assert(STATE_TILES == 0 || (OUTPUTS && BLOCK_SLICES == 1), "spans and pairs of slices are for short keys");

// ---- Work ----

// What a block computes at a time: a span, for the values of up to two slices.
struct work {
    span p;
    uint32_t item;                // span effects: the number of this work
    uint32_t first_slice, slices; // among the slices of the head
    uint32_t piece, piece_end;    // the piece's end in positions
    uint32_t begin, end;          // chunks, including the warm-up
    start_state from;
    uint32_t slot; // of the stored state
    bool any;      // false: nothing to compute
    bool identity; // span effects: the state begins as the identity, and v is zero
    bool needed;   // span effects: the state at the end is that at the start of the next piece
    bool copies;   // span effects: the initial state is stored
};

// ---- Shared memory, barriers ----

struct stage {
    unsigned char k[KEY_TILES * TILE], q[KEY_TILES * TILE], v[BLOCK_SLICES * TILE], record[QN_GDN_RECORD];
};

struct advance_smem {
    stage stages[STAGES];
    unsigned char o[BLOCK_SLICES][TILE];
#if STATE_TILES
    unsigned char state[STATE_TILES][TILE]; // rounded, [value][key]
#endif
    uint64_t stage_empty[3];  // mbarriers: both consumers have read the stage
    work w[BLOCK_SLICES + 1]; // of each warp group, which go from span to span independently
};

static_assert(sizeof(advance_smem) <= QN_GDN_ADVANCE_BYTES(HEAD_K, BLOCK_SLICES, STAGES), "the launch's shared memory");
static_assert((1 + BLOCK_SLICES) * WARPGROUP == QN_GDN_ADVANCE_THREADS(BLOCK_SLICES), "the launch's threads");

// Named barriers.
enum {
    BARRIER_LOADED = 1,                               // + 3 group + stage: the producer and one consumer
    BARRIER_GROUP = BARRIER_LOADED + 3 * BLOCK_SLICES // + group: the threads of a warp group
};

QN_DEVICE uint32_t next(uint32_t stage)
{
    return stage + 1 == STAGES ? 0 : stage + 1;
}

// Whether final states replace initial states. Then another block of qn_gdn_advance may write the final state of a head
// before the initial state is read, unless one block computes the whole head: qn_gdn_span_effects copies the initial
// states of other heads.
QN_DEVICE bool in_place(const qn_gdn_chunk_args &a)
{
    return a.initial && a.initial == a.final;
}

// The slices of block number `block` among the blocks for this number of slices.
QN_DEVICE void set_slices(work &w, uint32_t block, uint32_t slices)
{
    w.first_slice = block * BLOCK_SLICES;
    const uint32_t left = slices - w.first_slice;
    w.slices = left > BLOCK_SLICES ? BLOCK_SLICES : left;
}

QN_DEVICE void set_span(work &w, const span &p, const start &from)
{
    w.any = true;
    w.p = p;
    w.from = from.from;
    w.begin = p.begin - from.warm_up;
    w.end = p.end;
}

#if OUTPUTS
// The first span from a position of the piece on; the piece's first span may begin within a head. By a full warp.
template <bool first>
QN_DEVICE void find_span_from(const qn_gdn_chunk_args &a, work &w, const pieces &all, sequence s, uint32_t position)
{
    span p;
    while (!span_at(a, s, position, w.piece_end, position, p)) {
        if (s.index + 1 == a.sequences)
            return;
        s = sequence_at(a, s.index + 1);
        position = first_index(a, s) * a.v_heads;
        if (position >= w.piece_end)
            return;
    }
    start from = { START_INITIAL, 0 };
    if (first && p.begin > 0)
        from = start_of(a, all, s, p.head, p.begin);
    uint32_t slot = w.piece;
    if (from.from == START_INITIAL && in_place(a) && (p.begin > 0 || !p.last)) {
        from.from = START_STORED;
        while (first && piece_begin(all, slot) > p.head_position)
            slot--;
        slot += a.pieces;
    }
    if (thread() > 0)
        return;
    set_span(w, p, from);
    w.slot = slot;
}

// The first span of the block's piece, or the head of a sequence that is not divided. By a full warp.
QN_DEVICE void find_span(const qn_gdn_chunk_args &a, work &w, uint32_t item)
{
    pieces all = {};
    sequence s;
    uint32_t begin, end;
    if (a.pieces == 0) {
        const uint32_t sequence = item / a.v_heads;
        s = sequence_at(a, sequence);
        end = count_indices(s.chunks);
        begin = first_index(a, s) * a.v_heads + (item - sequence * a.v_heads) * end;
        end += begin;
    } else {
        all = pieces_of(a);
        if (item >= all.count)
            return;
        begin = piece_begin(all, item);
        end = piece_end(all, item, begin);
        s = sequence_at_position(a, begin);
    }
    if (thread() == 0) {
        w.piece = item;
        w.piece_end = end;
    }
    __syncwarp();
    find_span_from<true>(a, w, all, s, begin);
}

// The block's first work. By a full warp.
QN_DEVICE void find_work(const qn_gdn_chunk_args &a, work &w)
{
    const uint32_t slices = divide_up(a.head_v, SLICE), blocks = divide_up(slices, BLOCK_SLICES);
    const uint32_t item = blockIdx.x / blocks;
    if (thread() == 0) {
        w.any = w.identity = false;
        set_slices(w, blockIdx.x - item * blocks, slices);
    }
    find_span(a, w, item);
}
#else
// The span at the end of a piece, if its head goes on in the next piece and the effect is needed; else false. By a full
// warp.
QN_DEVICE bool find_span(const qn_gdn_chunk_args &a, work &w, const pieces &all, uint32_t piece, bool identity, uint32_t block)
{
    const bool sets_source = threadIdx.x == 0 && !identity && block == 0;
    uint32_t &source = a.sources[piece + 1 < a.pieces ? piece + 1 : 0]; // the first piece begins with a head
    if (sets_source)
        source = SOURCE_UNUSED;
    if (piece >= all.count)
        return false;
    const uint32_t begin = piece_begin(all, piece), end = piece_end(all, piece, begin);
    const sequence s = sequence_at_position(a, end - 1);
    span p;
    if (!span_at(a, s, begin, end, end - 1, p) || p.last)
        return false;
    const bool needed = start_of(a, all, s, p.head, p.end).from == START_STORED;
    const bool copies = !identity && p.begin == 0 && in_place(a);
    start from = { START_STORED, 0 };
    if (needed || copies)
        from = start_of(a, all, s, p.head, p.begin);
    const bool composed = from.from == START_STORED;
    if (sets_source && needed)
        source = composed ? SOURCE_COMPOSED : SOURCE_EFFECT;
    if (identity ? !needed || !composed : !needed && !copies)
        return false;
    if (thread() == 0) {
        w.piece = piece;
        w.identity = identity;
        w.needed = needed;
        w.copies = copies;
        set_slices(w, block, divide_up(identity ? HEAD_K : a.head_v, SLICE));
        set_span(w, p, identity ? start{ START_STORED, 0 } : from);
        if (!needed)
            w.end = w.begin;
    }
    return true;
}

// The first work of this block from a number on: B of all pieces, slices of a piece one after the other, then M, which
// has a row for each element of a key. A block that has B of a piece has M of one half of all pieces further on: where
// few heads need either, blocks rarely have both. By a full warp.
QN_DEVICE void find_work_from(const qn_gdn_chunk_args &a, work &w, uint32_t item)
{
    const uint32_t of_values = divide_up(a.head_v, BLOCK_SLICES * SLICE), of_keys = divide_up(KEY_TILES, BLOCK_SLICES);
    const pieces all = pieces_of(a);
    if (thread() == 0)
        w.any = false;
    for (; item < a.pieces * (of_values + of_keys); item += gridDim.x) {
        const bool identity = item >= a.pieces * of_values;
        const uint32_t i = identity ? item - a.pieces * of_values : item, blocks = identity ? of_keys : of_values;
        uint32_t piece = i / blocks;
        const uint32_t block = i - piece * blocks;
        if (identity)
            piece += piece < a.pieces - a.pieces / 2 ? a.pieces / 2 : a.pieces / 2 - a.pieces;
        if (find_span(a, w, all, piece, identity, block)) {
            if (thread() == 0)
                w.item = item;
            return;
        }
    }
}

QN_DEVICE void find_work(const qn_gdn_chunk_args &a, work &w)
{
    find_work_from(a, w, blockIdx.x);
}
#endif

// Replaces a warp group's work by the block's next; false if there is none. By all threads of the group.
QN_DEVICE bool next_work(const qn_gdn_chunk_args &a, work &w)
{
#if STATE_TILES // a block has one span
    return false;
#else
#if OUTPUTS
    const sequence s = w.p.s;
    const uint32_t next = w.p.head_position + count_indices(s.chunks);
    if (next >= w.piece_end)
        return false;
#else
    const uint32_t next = w.item + gridDim.x;
#endif
    wait(BARRIER_GROUP + group(), WARPGROUP); // all threads have read the previous work
    if (thread() < QN_WARP_SIZE) {
#if OUTPUTS
        if (thread() == 0)
            w.any = false;
        __syncwarp();
        find_span_from<false>(a, w, {}, s, next);
#else
        find_work_from(a, w, next);
#endif
    }
    wait(BARRIER_GROUP + group(), WARPGROUP);
    return w.any;
#endif
}

// ---- The producer warp group ----

// Zeros the blocks above the diagonal, which records do not contain. By the producer, whose fence makes them visible to
// wgmma.
QN_DEVICE void clear_upper(advance_smem &m)
{
    for (uint32_t i = 0; i < STAGES; i++)
#pragma unroll
        for (uint32_t block = 0; block < 3; block++)
            if (thread() % 8 >= 2 * (block + 1)) {
                unsigned char *at = m.stages[i].record + swizzled_offset(block * 16 + thread() / 8, thread() % 8);
                *(uint4 *)(at + QN_GDN_RECORD_INVERSE) = make_uint4(0, 0, 0, 0);
                *(uint4 *)(at + QN_GDN_RECORD_SCORES) = make_uint4(0, 0, 0, 0);
            }
}

// Data that only a chunk's outputs need is loaded if outputs are wanted: not in a warm-up, where outputs are computed
// from whatever is in shared memory, and not stored.
QN_DEVICE void load_record(stage &to, const unsigned char *record, bool outputs, uint32_t thread)
{
    const uint32_t at = swizzled_offset(thread / 8, thread % 8);
    unsigned char *to_block = to.record + at;
    const unsigned char *from = record + at;
    asm volatile("" : "+l"(from)); // else each copy's offset takes separate registers
#pragma unroll
    for (uint32_t block = 0; block < 4; block++)
        if (thread % 8 < 2 * (block + 1))
            qn_cp_async_16(to_block + QN_GDN_RECORD_INVERSE + block * 2048, from + QN_GDN_RECORD_INVERSE + block * 2048);
    if (outputs)
#pragma unroll
        for (uint32_t block = 0; block < 4; block++)
            if (thread % 8 < 2 * (block + 1))
                qn_cp_async_16(to_block + QN_GDN_RECORD_SCORES + block * 2048, from + QN_GDN_RECORD_SCORES + block * 2048);
    if (thread < (QN_GDN_RECORD - QN_GDN_RECORD_K_READ) / 16)
        qn_cp_async_16(to.record + QN_GDN_RECORD_K_READ + thread * 16, record + QN_GDN_RECORD_K_READ + thread * 16);
}

// Where the inputs of a chunk are.
struct chunk_inputs {
    const uint16_t *k, *q, *v;
    const unsigned char *record;
    uint32_t n; // tokens
    uint32_t n_values, columns;
    bool outputs, all_slices;
};

QN_DEVICE chunk_inputs inputs_of(const qn_gdn_chunk_args &a, const work &w, uint32_t chunk)
{
    const uint32_t left = w.p.s.n - chunk * TOKENS;
    const size_t token = (size_t)w.p.s.first + chunk * TOKENS;
    // With the identity in place of a state no values are read: any address will do.
    const uint32_t first_value = w.identity ? 0 : w.first_slice * SLICE;
    chunk_inputs in;
    in.n = left < TOKENS ? left : TOKENS;
    in.n_values = w.identity ? 0 : in.n;
    in.columns = a.head_v - first_value;
    in.k = (const uint16_t *)a.k + token * a.k_stride + w.p.k_head * HEAD_K;
    in.q = (const uint16_t *)a.q + token * a.q_stride + w.p.k_head * HEAD_K;
    in.v = (const uint16_t *)a.v + token * a.v_stride + w.p.head * a.head_v + first_value;
    in.record = record_of(a, w.p.s, chunk, w.p.head);
    in.outputs = OUTPUTS && chunk >= w.p.begin;
    in.all_slices = w.slices == BLOCK_SLICES;
    return in;
}

QN_DEVICE void load_keys(const qn_gdn_chunk_args &a, const chunk_inputs &in, stage &to, uint32_t thread)
{
    load_rows<KEY_TILES, WARPGROUP>(to.k, in.k, a.k_stride, in.n, HEAD_K, thread);
}

// Everything but the keys.
QN_DEVICE void load_rest(const qn_gdn_chunk_args &a, const chunk_inputs &in, stage &to, uint32_t thread)
{
    if (in.outputs)
        load_rows<KEY_TILES, WARPGROUP>(to.q, in.q, a.q_stride, in.n, HEAD_K, thread);
    if (in.all_slices)
        load_rows<BLOCK_SLICES, WARPGROUP>(to.v, in.v, a.v_stride, in.n_values, in.columns, thread);
    else
        load_rows<1, WARPGROUP>(to.v, in.v, a.v_stride, in.n_values, in.columns, thread);
    load_record(to, in.record, in.outputs, thread);
}

// Publishes the next stage to the consumers. With three stages the copies of two chunks are in flight: a chunk is
// published after the next one is issued, the first after the keys of the next, because the consumers wait for it.
QN_DEVICE void publish(uint32_t &ready)
{
    qn_cp_async_wait<(STAGES > 2)>();
    fence_async_proxy();
    for (uint32_t group = 0; group < BLOCK_SLICES; group++)
        arrive(BARRIER_LOADED + 3 * group + ready, 2 * WARPGROUP);
    ready = next(ready);
}

QN_DEVICE void produce(const qn_gdn_chunk_args &a, work &w, advance_smem &m)
{
    uint32_t round = 0, in = 0, ready = 0; // round: through the ring buffer
    uint32_t loaded = 0;                   // chunks, at most 2
    do {
        uint32_t in_group = thread();
        asm volatile("" : "+r"(in_group)); // values that depend on it need registers in this span only
        for (uint32_t chunk = w.begin; chunk < w.end; chunk++) {
            if (round > 0)
                wait(m.stage_empty[in], round - 1);
            load_keys(a, inputs_of(a, w, chunk), m.stages[in], in_group);
            if (STAGES > 2 && loaded == 1) {
                qn_cp_async_commit();
                publish(ready);
            }
            load_rest(a, inputs_of(a, w, chunk), m.stages[in], in_group);
            in = next(in);
            round += in == 0;
            qn_cp_async_commit();
            if (STAGES <= 2 || loaded == 2)
                publish(ready);
            loaded = loaded < 2 ? loaded + 1 : 2;
        }
    } while (next_work(a, w));
    if (STAGES > 2 && loaded > 0) {
        qn_cp_async_commit();
        publish(ready);
    }
}

// ---- The consumers: the state ----

struct consumer {
    float s[8 * KEY_TILES][4]; // the state
#if !STATE_TILES
    uint32_t state[4 * KEY_TILES][4]; // its rounding, A operand
#endif
    float x[8][4], o[8][4];
};

QN_DEVICE uint32_t slice_of(const work &w)
{
    return w.first_slice + group();
}

QN_DEVICE void set_identity(const work &w, float s[8 * KEY_TILES][4])
{
#pragma unroll
    for (int n = 0; n < 8 * KEY_TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = first_value(slice_of(w)) + e / 2 * 8 == first_key() + n * 8 + e % 2 ? 1.0f : 0.0f;
}

QN_DEVICE qn_gdn_head_state stored_state(const qn_gdn_chunk_args &a, uint32_t slot)
{
    return { a.states + (size_t)slot * a.head_v * PADDED_K, QN_GDN_STATE_F32, PADDED_K, 1, 0 };
}

// read_state and write_state have long code: one call of each.
QN_DEVICE void begin_state(const qn_gdn_chunk_args &a, const work &w, float s[8 * KEY_TILES][4])
{
    qn_gdn_head_state from = { nullptr, QN_GDN_STATE_F32, PADDED_K, 1, 0 }; // zeros
    if (w.identity) {
        set_identity(w, s);
        return;
    }
    if (w.from == START_INITIAL)
        from = qn_gdn_initial_state(a, w.p.s.index, w.p.head);
    else if (OUTPUTS && w.from == START_STORED)
        from = stored_state(a, w.slot);
    read_state(slice_of(w), s, from, a.head_v);
}

QN_DEVICE void end_state(const qn_gdn_chunk_args &a, const work &w, const float s[8 * KEY_TILES][4])
{
    qn_gdn_head_state to = { nullptr, QN_GDN_STATE_F32, PADDED_K, 1, 0 };
    if (w.identity)
        to.data = a.transitions + (size_t)w.piece * PADDED_K * PADDED_K;
    else if (!OUTPUTS && w.needed)
        to = stored_state(a, w.piece + 1);
    else if (OUTPUTS && w.p.last)
        to = qn_gdn_final_state(a, w.p.s.index, w.p.head);
    if (to.data)
        write_state(slice_of(w), s, to, w.identity ? PADDED_K : a.head_v);
}

// ---- The consumers: chunks ----

#if STATE_TILES
// The MMAs that have read the tile are complete in all threads of the group.
QN_DEVICE void round_state(advance_smem &m, consumer &c, int tile)
{
    store_rounded(m.state[tile], c.s + 8 * tile);
}

// d = state rows^T, or added to it, for one tile of the keys.
template <bool accumulate>
QN_DEVICE void multiply_state(advance_smem &m, consumer &c, float d[8][4], int tile, const unsigned char *rows)
{
    mma_abt_shared<accumulate>(d, m.state[tile], rows);
}
#else
QN_DEVICE void round_state(advance_smem &m, consumer &c, int tile)
{
#pragma unroll
    for (int i = 4 * tile; i < 4 * tile + 4; i++)
        pack_fragment(c.state[i], c.s[2 * i], c.s[2 * i + 1]);
}

template <bool accumulate>
QN_DEVICE void multiply_state(advance_smem &m, consumer &c, float d[8][4], int tile, const unsigned char *rows)
{
    mma_abt<accumulate>(d, c.state + 4 * tile, rows);
}
#endif

// After round_state and before multiply_state.
QN_DEVICE void publish_state()
{
#if STATE_TILES
    fence_async_proxy();
    wait(BARRIER_GROUP + group(), WARPGROUP);
#endif
}

// Issues the MMAs of the state with the keys or queries of a chunk.
QN_DEVICE void multiply_states(advance_smem &m, consumer &c, float d[8][4], const unsigned char *tiles)
{
    multiply_state<false>(m, c, d, 0, tiles);
#pragma unroll
    for (int tile = 1; tile < KEY_TILES; tile++)
        multiply_state<true>(m, c, d, tile, tiles + tile * TILE);
}

// One chunk; the MMA of keys and state is in flight in c.x. Leaves in flight: the state's update, a group for each tile
// of keys, and the last MMA of the outputs.
QN_DEVICE void process_chunk(advance_smem &m, consumer &c, const work &w, const stage &in)
{
    const uint32_t warp = thread() / QN_WARP_SIZE, lane = thread() % QN_WARP_SIZE, t = lane % 4;
    const float2 *k_read = (const float2 *)(in.record + QN_GDN_RECORD_K_READ);
    const float2 *q_read = (const float2 *)(in.record + QN_GDN_RECORD_Q_READ);
    const float2 *k_update = (const float2 *)(in.record + QN_GDN_RECORD_K_UPDATE);
    const float decay = *(const float *)(in.record + QN_GDN_RECORD_DECAY);
    uint32_t y[4][4], gated_v[4][4], v_new_bf16[4][4];
    float v_new[8][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        qn_ldmatrix_x4_trans(y[i], in.v + group() * TILE +
                                       swizzled_offset(i * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
    mma_wait<0>(c.x);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int n = 2 * i + r / 2, e = r % 2 * 2;
            const float2 f = k_read[n * 4 + t];
            y[i][r] = pack_pair(fmaf(f.x, c.x[n][e], pair_lo(y[i][r])), fmaf(f.y, c.x[n][e + 1], pair_hi(y[i][r])));
        }
    mma_fence();
    mma_abt_lower<false>(v_new, y, in.record + QN_GDN_RECORD_INVERSE);
    mma_commit();
    if (OUTPUTS) {
        mma_fence();
        multiply_states(m, c, c.o, in.q);
        mma_commit();
    }
#pragma unroll
    for (int n = 0; n < 8 * KEY_TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c.s[n][e] *= decay;
    mma_wait<OUTPUTS>(v_new);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int n = 2 * i + r / 2, e = r % 2 * 2;
            const float2 f = k_update[n * 4 + t];
            gated_v[i][r] = pack_pair(f.x * v_new[n][e], f.y * v_new[n][e + 1]);
        }
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++) {
        mma_fence();
        mma_ab(c.s + 8 * tile, gated_v, in.k + tile * TILE);
        mma_commit();
    }
    if (OUTPUTS) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            pack_fragment(v_new_bf16[i], v_new[2 * i], v_new[2 * i + 1]);
        mma_wait<KEY_TILES>(c.o);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 f = q_read[n * 4 + t];
#pragma unroll
            for (int e = 0; e < 4; e++)
                c.o[n][e] *= e % 2 ? f.y : f.x;
        }
        mma_fence();
        mma_abt_lower<true>(c.o, v_new_bf16, in.record + QN_GDN_RECORD_SCORES);
        mma_commit();
    }
}

// The output tile's previous contents have been read: since then each thread has passed a barrier of the group.
QN_DEVICE void write_outputs(const qn_gdn_chunk_args &a, const work &w, advance_smem &m, const float d[8][4], uint32_t chunk)
{
    unsigned char *tile = m.o[group()];
    const uint32_t value = slice_of(w) * SLICE + thread() % 8 * 8;
    uint16_t *o = (uint16_t *)a.o + (size_t)w.p.s.first * a.o_stride + w.p.head * a.head_v + value;
    store_transposed(tile, thread() / QN_WARP_SIZE, d);
    wait(BARRIER_GROUP + group(), WARPGROUP);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = i * 16 + thread() / 8, token = chunk * TOKENS + row;
        if (token < w.p.s.n && value < a.head_v)
            *(uint4 *)(o + (size_t)token * a.o_stride) = *(const uint4 *)(tile + swizzled_offset(row, thread() % 8));
    }
}

QN_DEVICE void wait_for_state(consumer &c)
{
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        mma_wait<0>(c.s + 8 * tile);
}

// Issues the MMA of the rounded state with the keys of a chunk.
QN_DEVICE void read_keys(advance_smem &m, consumer &c, const stage &in)
{
    mma_fence();
    multiply_states(m, c, c.x, in.k);
    mma_commit();
}

// Rounds the state, whose MMAs are in flight, and issues its MMA with the keys of the next chunk. In flight before it:
// a group for each tile of the state, and the last MMA of the outputs.
QN_DEVICE void begin_chunk(advance_smem &m, consumer &c, const stage &in)
{
#if STATE_TILES
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++) {
        mma_wait<OUTPUTS>(c.s + 8 * tile);
        round_state(m, c, tile);
    }
    publish_state();
    read_keys(m, c, in);
#else
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++) {
        mma_wait<KEY_TILES - 1 + OUTPUTS>(c.s + 8 * tile);
        round_state(m, c, tile);
        mma_fence();
        if (tile == 0)
            multiply_state<false>(m, c, c.x, tile, in.k);
        else
            multiply_state<true>(m, c, c.x, tile, in.k + tile * TILE);
        mma_commit();
    }
#endif
}

// Groups of MMAs that begin_chunk issues.
#define BEGIN_GROUPS (STATE_TILES ? 1 : KEY_TILES)

// Processes the chunks of a span, at least one. index: the stage of the first; of the chunk after the last.
QN_DEVICE void consume_chunks(const qn_gdn_chunk_args &a, const work &w, advance_smem &m, consumer &c, uint32_t &index)
{
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        round_state(m, c, tile);
    publish_state();
    wait(BARRIER_LOADED + 3 * group() + index, 2 * WARPGROUP);
    read_keys(m, c, m.stages[index]);
    for (uint32_t chunk = w.begin; chunk + 1 < w.end; chunk++) {
        uint64_t &stage_empty = m.stage_empty[index];
        process_chunk(m, c, w, m.stages[index]);
        if (STAGES == 1) {
            wait_for_state(c);
            mma_wait<0>(c.o);
            arrive(stage_empty);
        }
        index = next(index);
        wait(BARRIER_LOADED + 3 * group() + index, 2 * WARPGROUP);
        begin_chunk(m, c, m.stages[index]);
        if (OUTPUTS)
            mma_wait<BEGIN_GROUPS>(c.o);
        if (STAGES > 1)
            arrive(stage_empty);
        if (OUTPUTS && chunk >= w.p.begin)
            write_outputs(a, w, m, c.o, chunk);
    }
    process_chunk(m, c, w, m.stages[index]);
    wait_for_state(c);
    if (OUTPUTS)
        mma_wait<0>(c.o);
    arrive(m.stage_empty[index]);
    index = next(index);
    if (OUTPUTS) {
        wait(BARRIER_GROUP + group(), WARPGROUP);
        write_outputs(a, w, m, c.o, w.end - 1);
    }
}

// A warp group without a slice only frees the stages.
QN_DEVICE void skip_chunks(const work &w, advance_smem &m, uint32_t &index)
{
    for (uint32_t chunk = w.begin; chunk < w.end; chunk++) {
        wait(BARRIER_LOADED + 3 * group() + index, 2 * WARPGROUP);
        arrive(m.stage_empty[index]);
        index = next(index);
    }
}

QN_DEVICE void consume_span(const qn_gdn_chunk_args &a, const work &w, advance_smem &m, uint32_t &index)
{
    consumer c;
    begin_state(a, w, c.s);
#if !OUTPUTS
    if (w.copies)
        write_state(slice_of(w), c.s, stored_state(a, a.pieces + w.piece), a.head_v);
#endif
    // The vote tells the compiler that no warp diverges. Else it would wait after each wgmma.
    if (__all_sync(QN_FULL_MASK, w.begin < w.end))
        consume_chunks(a, w, m, c, index);
    end_state(a, w, c.s);
}

QN_DEVICE void consume(const qn_gdn_chunk_args &a, work &w, advance_smem &m)
{
    uint32_t index = 0;
    do {
        if (group() < w.slices)
            consume_span(a, w, m, index);
        else
            skip_chunks(w, m, index);
    } while (next_work(a, w));
}

// ---- The kernel ----

// Registers per thread: two consumers need more than an equal share, the producer fewer.
template <int n> QN_DEVICE void warpgroup_reg_alloc()
{
#if QN_WGMMA && QN_GDN_SLICES > 1
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

template <int n> QN_DEVICE void warpgroup_reg_dealloc()
{
#if QN_WGMMA && QN_GDN_SLICES > 1
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

QN_DEVICE void run(const qn_gdn_chunk_args &a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    advance_smem &m = *(advance_smem *)shared;
    work &w = m.w[group()];
    if (threadIdx.x < 3)
        qn_mbarrier_init(qn_shared_address(&m.stage_empty[threadIdx.x]), BLOCK_SLICES * WARPGROUP);
    if (group() == BLOCK_SLICES)
        clear_upper(m);
    qn_pdl_wait();
    qn_pdl_trigger();
    if (thread() < QN_WARP_SIZE)
        find_work(a, w);
    __syncthreads();
    if (!w.any)
        return;
    if (group() == BLOCK_SLICES) {
        warpgroup_reg_dealloc<40>();
        produce(a, m.w[BLOCK_SLICES], m);
    } else {
        warpgroup_reg_alloc<232>();
        consume(a, w, m);
    }
}

// Grid: blocks of slices of a value head, pieces; or blocks of slices, value heads, sequences. Both kernels in one
// dimension.
#if OUTPUTS
extern "C" __global__ void __launch_bounds__(QN_GDN_ADVANCE_THREADS(BLOCK_SLICES), 1)
    qn_gdn_advance(const __grid_constant__ qn_gdn_chunk_args a)
#else
extern "C" __global__ void __launch_bounds__(QN_GDN_ADVANCE_THREADS(BLOCK_SLICES), 1)
    qn_gdn_span_effects(const __grid_constant__ qn_gdn_chunk_args a)
#endif
{
    run(a);
}
