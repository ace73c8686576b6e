// Ring buffers in shared memory of the keys and values of a cache, one for each warp, without other warps or block
// barriers: a warp fills its slots by cp.async and waits for them by groups. A slot holds the keys of a tile and the
// scales of its keys and values, or the values of a tile. They follow each other in the order of use: keys of tile 0,
// nothing, keys of 1, values of 0, keys of 2, values of 1, ... Each is one cp.async group; the n-th is in slot n %
// SLOTS.
//
// For attend.cuh, which defines the shared memory of the architecture; the layout is that of cuda/kernels/attend.h.
#ifndef QN_CUDA_KERNELS_KV_RING_CUH
#define QN_CUDA_KERNELS_KV_RING_CUH

#include "cuda/kernels/codes.cuh"
#include "cuda/kernels/kv_pages.cuh"

// The rows of a head in a cache; rows [0, last_row] may be read. With a page table, the others are offsets in a page.
struct kv_source {
    const uint8_t *keys, *values;
    const float *key_scales, *value_scales;
    uint32_t last_row;
    const uint64_t *table; // or 0; row r is in page r / QN_PAGE
};

// ---- Order of bytes within a slot: rows after each other, with 16-byte segments permuted within 128 or 512 bytes, so
// that the lanes that load at the same time use different banks. Lane 4g + t loads keys of row g, segment t of each
// four; and values of rows 2t, segment g of each eight. ----

template <int bits, bool is_keys> struct slot_layout {
    static constexpr int row_bytes = ROW_WORDS(bits) * 4;
    // rows of 128-byte lines
    static constexpr bool has_lines = row_bytes % 128 == 0 && lane_fragment<bits, 4>::divides_word;
    static constexpr bool permutes =
        has_lines || (!is_keys && lane_fragment<bits, 4>::divides_word && (row_bytes == 64 || row_bytes == 32));

    // To be combined by exclusive or with the address of row `row`. The same for rows 8 and, of values, 1 further on.
    QN_DEVICE uint32_t swizzle(uint32_t row)
    {
        return !permutes ? 0 : is_keys ? (row & 1) << 6 : (row >> 1 & 3) << 5;
    }
};

// A row in a slot, as a source of load_fragment.
template <int bits, bool is_keys> struct slot_row {
    using layout = slot_layout<bits, is_keys>;
    uint32_t slot, lane_row; // shared address of the slot; the row is lane_row + offset
    int offset;

    template <int width> __device__ __forceinline__ void load(uint32_t *to, int first, int lane_word) const
    {
        uint32_t at;
        if (layout::has_lines) // in this order of terms most of the address is an immediate
            at = (slot + lane_row * layout::row_bytes + (lane_word * 4 ^ layout::swizzle(lane_row)) ^ first * 4 % 128) +
                 (offset * layout::row_bytes + first * 4 / 128 * 128);
        else
            at = slot + ((lane_row + offset) * layout::row_bytes + (first + lane_word) * 4 ^ layout::swizzle(lane_row));
        if (width == 4)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                         : "r"(at));
        else if (width == 2)
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(at));
        else
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(at));
    }
};

QN_DEVICE float shared_float(uint32_t at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
}

template <int bytes> QN_DEVICE void copy_segment(uint32_t to, const uint8_t *from, bool reads)
{
    const uint32_t n = reads ? bytes : 0; // the rest becomes zeros
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

template <int bytes> QN_DEVICE void copy_segment(uint32_t to, const uint8_t *from)
{
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Copies of a tile of keys or values. Rows that are no multiples of 16 bytes are copied by words, because heads then
// begin at any.
template <int bits, bool is_keys> struct tile_copy {
    using layout = slot_layout<bits, is_keys>;
    static constexpr int bytes = layout::row_bytes % 16 == 0 ? 16 : 4, // of a lane at a time
        all = QN_ATTENTION_TILE_KV * layout::row_bytes;
    const uint8_t *lane_from; // the lane's first bytes of the first tile of a page, or of a contiguous cache

    // Issues the copies of the tile at row `row` of a page, only the first n_rows rows may be read, other rows are
    // zeros.
    __device__ __forceinline__ void issue(uint32_t slot, uint64_t page, uint32_t row, uint32_t n_rows, int lane) const
    {
        const uint32_t lane_at = lane * bytes;
        const uint8_t *from = lane_from + page + (uint64_t)row * layout::row_bytes;
        const auto copy = [&](const auto &copy_one) {
#pragma unroll
            for (int i = 0; i < all; i += QN_WARP_SIZE * bytes) {
                // i has no bits of the permutation: it is an immediate offset
                const uint32_t to = slot + (lane_at ^ layout::swizzle((i + lane_at) / layout::row_bytes)) + i;
                if (all % (QN_WARP_SIZE * bytes) == 0 || i + lane_at < all)
                    copy_one(to, i);
            }
        };
        if (n_rows >= QN_ATTENTION_TILE_KV)
            copy([&](uint32_t to, int i) { copy_segment<bytes>(to, from + i); });
        else
            copy([&](uint32_t to, int i) {
                const bool reads = i + lane_at < n_rows * layout::row_bytes;
                copy_segment<bytes>(to, reads ? from + i : from - lane_at, reads);
            });
    }
};

// Hides the value of a pointer from the compiler, which would compute it again at each use.
QN_DEVICE const uint8_t *keep_pointer(const void *p)
{
    asm volatile("" : "+l"(p));
    return (const uint8_t *)p;
}

// A warp's ring buffer. All of the functions are called by full warps. reserved: bytes of shared memory after the
// rings.
template <int key_bits, int value_bits, int reserved> struct kv_ring {
    static constexpr uint32_t slot_bytes = qn_attention_gpu_slot_bytes(DIM, key_bits, value_bits);
    static constexpr uint32_t table_bytes = TABLE_BYTES;
    static constexpr qn_attention_gpu_ring_space space =
        qn_attention_gpu_ring_space_of(DIM, table_bytes, reserved, TEAMS, BLOCK_LIMIT);
    static constexpr int slots = qn_attention_gpu_ring_slots(space, slot_bytes, TEAMS * QN_WARPS);
    static constexpr uint32_t begin_below = QN_ATTENTION_RESERVED_BYTES + TEAMS * qn_attention_gpu_static_bytes(DIM);
    static constexpr bool scaled = key_bits != 16;
    static constexpr int key_bytes = QN_ATTENTION_TILE_KV * ROW_WORDS(key_bits) * 4; // of a tile
    static_assert(slots > 0, "a launch needs qn_attention_gpu_shared_bytes");

    // Space for the reduction over warps when all rings are empty: the larger one.
    static constexpr int reduce_bytes = space.above > space.below ? space.above : space.below;

    static __device__ __forceinline__ float *reduce_buffer(uint8_t *dynamic)
    {
        const uint32_t begin = space.above > space.below ? begin_above(qn_shared_address(dynamic))
                                                         : begin_below;
        return (float *)(dynamic + (begin - qn_shared_address(dynamic)));
    }

    // The reserved bytes, at any time.
    static __device__ __forceinline__ float *reserved_buffer(uint8_t *dynamic)
    {
        return (float *)(dynamic + (begin_above(qn_shared_address(dynamic)) + space.above - qn_shared_address(dynamic)));
    }

    static __device__ __forceinline__ uint32_t begin_above(uint32_t dynamic)
    {
        return (table_bytes && LARGE_SMEM ? (uint32_t)QN_ATTENTION_TABLE_BASE : dynamic) + table_bytes;
    }

    // The first slot of a warp of the block.
    static __device__ __forceinline__ uint32_t first_of(uint32_t dynamic, int warp)
    {
        constexpr int below = space.below / (slots * slot_bytes);
        return warp < below ? begin_below + warp * (slots * slot_bytes)
                            : begin_above(dynamic) + (warp - below) * (slots * slot_bytes);
    }

    tile_copy<key_bits, true> keys;
    tile_copy<value_bits, false> values;
    const float *lane_scale; // half of the lanes copy scales of keys, the others of values
    const uint64_t *table;
    // Pages of the next keys and values: if registers allow, their entries of the page table are loaded when the
    // previous ones are issued.
    static constexpr bool looks_ahead = reserved == 0 || (DIM <= 256 && !(QN_WARPS > 8 && DIM > 64 && key_bits > 4));
    uint64_t key_page, value_page;
    uint32_t last_row;
    uint32_t first, at; // shared addresses: the first slot, the next to use
    int lane;

    // dynamic: address of dynamic shared memory.
    __device__ __forceinline__ kv_ring(const kv_source &from, uint32_t dynamic, int warp, int lane_) : lane(lane_)
    {
        static_assert(QN_WARP_SIZE == 2 * QN_ATTENTION_TILE_KV, "a lane copies one scale");
        first = at = first_of(dynamic, warp);
        keys.lane_from = keep_pointer(from.keys + lane * keys.bytes);
        values.lane_from = keep_pointer(from.values + lane * values.bytes);
        if (scaled)
            lane_scale = (const float *)keep_pointer((lane < QN_ATTENTION_TILE_KV ? from.key_scales : from.value_scales) +
                                                     lane % QN_ATTENTION_TILE_KV);
        table = from.table;
        last_row = from.last_row;
    }

    __device__ __forceinline__ uint64_t page_of(uint32_t tile) const
    {
        const uint32_t row = tile * QN_ATTENTION_TILE_KV;
        return row <= last_row ? qn_kv_page(table, row / QN_PAGE) : 0;
    }

    // Issue the copies of a tile; step: to the next one. A tile's rows are contiguous: it is within a page.
    __device__ __forceinline__ void issue_keys(uint32_t slot, uint32_t tile, uint32_t step)
    {
        const uint32_t row = tile * QN_ATTENTION_TILE_KV, n = last_row + 1 - row, in_page = qn_kv_row_in_page(table, row);
        const uint64_t page = looks_ahead ? key_page : page_of(tile);
        keys.issue(slot, page, in_page, n, lane);
        if (scaled) {
            const uint32_t i = lane % QN_ATTENTION_TILE_KV;
            const float *scale = (const float *)((const uint8_t *)lane_scale + page);
            copy_segment<4>(slot + key_bytes + lane * 4, (const uint8_t *)(i < n ? scale + in_page : scale - i), i < n);
        }
        key_page = looks_ahead ? page_of(tile + step) : 0;
    }

    __device__ __forceinline__ void issue_values(uint32_t slot, uint32_t tile, uint32_t step)
    {
        const uint32_t row = tile * QN_ATTENTION_TILE_KV;
        values.issue(slot, looks_ahead ? value_page : page_of(tile), qn_kv_row_in_page(table, row), last_row + 1 - row, lane);
        value_page = looks_ahead ? page_of(tile + step) : 0;
    }

    // Fills the ring with tiles tile, tile + step, ... below last_tile.
    __device__ __forceinline__ void fill(uint32_t tile, uint32_t last_tile, uint32_t step)
    {
        at = first;
        key_page = value_page = looks_ahead ? page_of(tile) : 0;
        __syncwarp();
        uint32_t slot = first, next_tile = tile;
        int i = 0;
#pragma unroll 1
        for (; i < slots && (i == 0 || next_tile - step < last_tile); i += 2, next_tile += step, slot += 2 * slot_bytes) {
            if (next_tile < last_tile)
                issue_keys(slot, next_tile, step);
            qn_cp_async_commit();
            if (i + 1 < slots) {
                if (i > 0)
                    issue_values(slot + slot_bytes, next_tile - step, step);
                qn_cp_async_commit();
            }
        }
        for (; i < slots; i++)
            qn_cp_async_commit();
    }

    // Waits until the next slot has its contents.
    __device__ __forceinline__ void wait() const
    {
        qn_cp_async_wait<slots - 1>();
        __syncwarp();
    }

    // Scales of row `row` of the tile whose keys are in the next slot.
    __device__ __forceinline__ float key_scale(int row) const
    {
        return shared_float(at + key_bytes + row * 4);
    }

    __device__ __forceinline__ float value_scale(int row) const
    {
        return shared_float(at + key_bytes + (QN_ATTENTION_TILE_KV + row) * 4);
    }

    // Releases the slot that held the keys or values of `tile`, and issues the contents that come after those of the
    // other slots. is_first: `tile` is the first, or its values are the empty values before the first tile.
    template <bool is_keys, bool is_first>
    __device__ __forceinline__ void advance(uint32_t tile, uint32_t last_tile, uint32_t step)
    {
        __syncwarp();
        if (slots % 2 == 0) {
            if (tile + slots / 2 * step < last_tile) {
                if (is_keys)
                    issue_keys(at, tile + slots / 2 * step, step);
                else
                    issue_values(at, tile + slots / 2 * step, step);
            }
        } else if (is_keys) {
            const uint32_t ahead = tile + slots / 2 * step - step; // with one slot, the tile before
            if (ahead < last_tile && !(slots == 1 && is_first))
                issue_values(at, ahead, step);
        } else if (tile + (slots / 2 + 2) * step < last_tile) {
            issue_keys(at, tile + (slots / 2 + 2) * step, step);
        }
        qn_cp_async_commit();
        next();
    }

    // Waits for the last values, in the slot after the empty slot of keys after the last tile. tile: the tile after the
    // last.
    __device__ __forceinline__ void wait_for_last_values(uint32_t tile, uint32_t last_tile, uint32_t step)
    {
        if (slots == 1)
            advance<true, false>(tile, last_tile, step);
        else
            next();
        qn_cp_async_wait<0>();
    }

    __device__ __forceinline__ void next()
    {
        at = at + slot_bytes == first + slots * slot_bytes ? first : at + slot_bytes;
    }
};

#endif
