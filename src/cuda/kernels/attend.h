/* Constants and arguments shared by all attention kernels over a cache of cuda/kernels/kv.h: tile sizes, codebooks,
 * look-up tables in shared memory. Shared by C and CUDA; attend.cuh is the device code. */
#ifndef QN_CUDA_KERNELS_ATTEND_H
#define QN_CUDA_KERNELS_ATTEND_H

#include "cuda/kernels/kv.h"

enum {
    QN_ATTENTION_TILE_Q = 8,  /* query heads of a block */
    QN_ATTENTION_TILE_KV = 16 /* positions of a tile */
};

/* Dequantisation of codes. `gain` is a power of two that scales the codebook to an amax of 1 to 2, for precision in
 * fp16 (qn_attention_gpu_gain). */
typedef struct qn_attention_gpu_codec {
    QN_GPU_PTR(const float) codebook; /* [2^bits] */
    QN_GPU_PTR(const float) signs;    /* of the queries' rotation; 0 if queries are already in the rotated basis */
    float gain;
} qn_attention_gpu_codec;

/* ---- Shared memory of a block: look-up tables, and a ring buffer of cache rows for each warp. Kernels compute the
 * layout at compile time, launches compute it from the device's limit: both use these functions. ---- */

#ifdef __CUDACC__
#define QN_ATTENTION_LAYOUT static __device__ constexpr
#else
#define QN_ATTENTION_LAYOUT static inline
#endif

enum {
    QN_ATTENTION_TABLE_BASE = 0x10000,  /* address of the tables if a block may have twice this number of bytes */
    QN_ATTENTION_RESERVED_BYTES = 1024, /* reserved by the system at the beginning of shared memory */
    QN_ATTENTION_MAX_SLOTS = 16
};

/* qn_attention_gpu_has_large_smem - Returns whether a block may have twice QN_ATTENTION_TABLE_BASE bytes of shared
 * memory. LARGE_SMEM of attend.cuh is the same, by architecture. */
QN_ATTENTION_LAYOUT bool qn_attention_gpu_has_large_smem(uint32_t max_shared_bytes)
{
    return max_shared_bytes >= 2 * QN_ATTENTION_TABLE_BASE;
}

/* qn_attention_gpu_table_bytes - Returns the bytes of the table for codes of `bits` bits; 0 for fp16. The table is
 * indexed by two codes of up to 4 bits, else by one. An entry has a copy for each lane, 256 bytes in all, or a copy for
 * every two lanes, 128 bytes. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_table_bytes(unsigned bits, bool large_smem)
{
    return bits == 16 ? 0 : (large_smem ? 256u : 128u) << (bits <= 4 ? 2 * bits : bits);
}

/* qn_attention_gpu_static_bytes - Returns an upper bound of static shared memory: queries as fp16, and less than 1 KiB
 * of other data. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_static_bytes(uint32_t head_dim)
{
    return QN_ATTENTION_TILE_Q * head_dim * 2 + 1024;
}

/* qn_attention_gpu_slot_bytes - Returns the bytes of a slot of a ring buffer. A slot holds the keys of a tile with the
 * scales of its keys and values, or the values of a tile. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_slot_bytes(uint32_t head_dim, unsigned key_bits, unsigned value_bits)
{
    const uint32_t scales = key_bits == 16 ? 0 : 2 * QN_ATTENTION_TILE_KV * 4;
    const uint32_t keys = QN_ATTENTION_TILE_KV * ((head_dim * key_bits + 31) / 32 * 4) + scales;
    const uint32_t values = QN_ATTENTION_TILE_KV * ((head_dim * value_bits + 31) / 32 * 4);
    return ((keys > values ? keys : values) + 127) / 128 * 128;
}

/* Decode attention over codes: each team of warps works as an independent block would; the teams of a block share the
 * tables. QN_ATTENTION_WARP_BYTES is the shared memory of a warp in addition to its ring: its tile's softmax weights,
 * an accumulator of sixteen dimensions, a scale. */
enum { QN_ATTENTION_MAX_TEAMS = 2, QN_ATTENTION_WARP_BYTES = 256 + 512 + 16 };

/* qn_attention_gpu_block_limit - Returns the most shared memory of a block if an SM runs `blocks` blocks at a time. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_block_limit(uint32_t shared_bytes, uint32_t blocks)
{
    return (shared_bytes + QN_ATTENTION_RESERVED_BYTES) / blocks / 1024 * 1024 - QN_ATTENTION_RESERVED_BYTES;
}

/* qn_attention_gpu_reserved_bytes - Returns the shared memory of decode attention that is not part of a ring. Over
 * codes: QN_ATTENTION_WARP_BYTES for each warp. Over fp16: an accumulator of four or eight dimensions for each lane,
 * for the reduction over warps while rings are being filled. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_reserved_bytes(uint32_t head_dim, unsigned key_bits, uint32_t warps,
                                                             uint32_t teams, uint32_t shared_bytes)
{
    return key_bits != 16 ? teams * warps * (uint32_t)QN_ATTENTION_WARP_BYTES
                          : (head_dim <= 256 && shared_bytes >= 64u << 10 ? 2 : 1) * warps * 1024;
}

/* The two spaces of the ring buffers, in bytes: below the tables at QN_ATTENTION_TABLE_BASE, and above them. If the
 * tables are at the beginning of shared memory, `below` is 0. The reserved bytes are after the space above. */
typedef struct qn_attention_gpu_ring_space {
    uint32_t below, above;
} qn_attention_gpu_ring_space;

/* qn_attention_gpu_ring_space_of - Returns the spaces of the ring buffers of a block.
 *
 *   table_bytes    bytes of the tables of codes
 *   reserved       qn_attention_gpu_reserved_bytes
 *   shared_bytes   shared memory of the block */
QN_ATTENTION_LAYOUT qn_attention_gpu_ring_space qn_attention_gpu_ring_space_of(uint32_t head_dim, uint32_t table_bytes,
                                                                               uint32_t reserved, uint32_t teams,
                                                                               uint32_t shared_bytes)
{
    const uint32_t begin = QN_ATTENTION_RESERVED_BYTES + teams * qn_attention_gpu_static_bytes(head_dim);
    qn_attention_gpu_ring_space space = { 0, 0 };
    if (table_bytes && qn_attention_gpu_has_large_smem(shared_bytes)) {
        /* dynamic shared memory begins after the queries at least */
        const uint32_t end = shared_bytes - begin + teams * QN_ATTENTION_TILE_Q * head_dim * 2;
        space.below = QN_ATTENTION_TABLE_BASE - begin;
        space.above = end - QN_ATTENTION_TABLE_BASE - table_bytes - reserved;
    } else if (shared_bytes > begin + table_bytes + reserved) {
        space.above = shared_bytes - begin - table_bytes - reserved;
    }
    return space;
}

/* qn_attention_gpu_ring_slots - Returns the largest number of slots in the ring buffer of each warp, at most
 * QN_ATTENTION_MAX_SLOTS; 0 if the device has too little shared memory. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_ring_slots(qn_attention_gpu_ring_space space, uint32_t slot_bytes,
                                                         uint32_t warps)
{
    uint32_t n = QN_ATTENTION_MAX_SLOTS;
    while (n > 0 && space.below / (n * slot_bytes) + space.above / (n * slot_bytes) < warps)
        n--;
    return n;
}

enum { QN_ATTENTION_SM_WARPS = 8 }; /* warps of decode attention on an SM, over fp16 */

/* qn_attention_gpu_blocks - Returns the number of blocks of decode attention that an SM runs at a time. Over fp16: up
 * to QN_ATTENTION_SM_WARPS warps with rings of at least two slots, so that other blocks compute while one ends a piece
 * of work. Over codes: 1, because a block has teams. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_blocks(uint32_t head_dim, unsigned key_bits, uint32_t warps,
                                                     uint32_t shared_bytes)
{
    uint32_t blocks = key_bits == 16 ? QN_ATTENTION_SM_WARPS / warps : 1;
    for (; blocks > 1; blocks--) {
        const uint32_t limit = qn_attention_gpu_block_limit(shared_bytes, blocks),
                       reserved = qn_attention_gpu_reserved_bytes(head_dim, key_bits, warps, 1, limit);
        if (qn_attention_gpu_ring_slots(qn_attention_gpu_ring_space_of(head_dim, 0, reserved, 1, limit),
                                        qn_attention_gpu_slot_bytes(head_dim, key_bits, key_bits), warps) >= 2)
            break;
    }
    return blocks;
}

/* qn_attention_gpu_teams - Returns the number of teams of a block of decode attention: QN_ATTENTION_MAX_TEAMS if each
 * of their warps has a ring of three slots, else 1. Over fp16: 1, because there are no tables to share. */
QN_ATTENTION_LAYOUT uint32_t qn_attention_gpu_teams(uint32_t head_dim, unsigned key_bits, unsigned value_bits,
                                                    uint32_t warps, uint32_t shared_bytes)
{
    const bool large = qn_attention_gpu_has_large_smem(shared_bytes);
    const uint32_t teams = QN_ATTENTION_MAX_TEAMS, key = qn_attention_gpu_table_bytes(key_bits, large),
                   value = qn_attention_gpu_table_bytes(value_bits, large);
    if (key_bits == 16 || warps > 8)
        return 1;
    const uint32_t reserved = qn_attention_gpu_reserved_bytes(head_dim, key_bits, warps, teams, shared_bytes);
    const qn_attention_gpu_ring_space space =
        qn_attention_gpu_ring_space_of(head_dim, key > value ? key : value, reserved, teams, shared_bytes);
    return qn_attention_gpu_ring_slots(space, qn_attention_gpu_slot_bytes(head_dim, key_bits, value_bits),
                                       teams * warps) >= 3
               ? teams
               : 1;
}

#ifndef __CUDACC__

#include <math.h>
#include <stddef.h>

/* qn_attention_gpu_shared_limit - Returns the shared memory of a block that kernels are compiled for: 227, 163 or
 * 99 KiB. */
static inline uint32_t qn_attention_gpu_shared_limit(uint32_t max_shared_bytes)
{
    return (max_shared_bytes >= 227 << 10 ? 227 : max_shared_bytes >= 163 << 10 ? 163 : 99) << 10;
}

/* qn_attention_gpu_shared_bytes - Returns the dynamic shared memory of a launch of attention with ring buffers; 0 if
 * the device has too little.
 *
 *   teams   of decode attention, `warps` warps each; 0: another kernel, without reserved bytes */
static inline uint32_t qn_attention_gpu_shared_bytes(uint32_t head_dim, unsigned key_bits, unsigned value_bits,
                                                     uint32_t warps, uint32_t teams, uint32_t max_shared_bytes)
{
    const uint32_t of_sm = qn_attention_gpu_shared_limit(max_shared_bytes), n = teams ? teams : 1,
                   blocks = teams ? qn_attention_gpu_blocks(head_dim, key_bits, warps, of_sm) : 1,
                   limit = qn_attention_gpu_block_limit(of_sm, blocks);
    const bool large = qn_attention_gpu_has_large_smem(limit);
    const uint32_t key = qn_attention_gpu_table_bytes(key_bits, large),
                   value = qn_attention_gpu_table_bytes(value_bits, large);
    const uint32_t reserved = teams ? qn_attention_gpu_reserved_bytes(head_dim, key_bits, warps, teams, limit) : 0;
    const qn_attention_gpu_ring_space space =
        qn_attention_gpu_ring_space_of(head_dim, key > value ? key : value, reserved, n, limit);
    const uint32_t slot = qn_attention_gpu_slot_bytes(head_dim, key_bits, value_bits);
    return of_sm > max_shared_bytes || qn_attention_gpu_ring_slots(space, slot, n * warps) == 0
               ? 0
               : limit - n * qn_attention_gpu_static_bytes(head_dim);
}

/* qn_attention_gpu_gain - Returns qn_attention_gpu_codec.gain for a codebook [n]. */
static inline float qn_attention_gpu_gain(const float *codebook, size_t n)
{
    float largest = 0;
    int exponent;
    for (size_t i = 0; i < n; i++)
        largest = fabsf(codebook[i]) > largest ? fabsf(codebook[i]) : largest;
    if (!(largest > 1e-30f && largest < 1e30f))
        return 1;
    frexpf(largest, &exponent); /* largest is 0.5 to 1 times 2^exponent */
    return ldexpf(1, 1 - exponent);
}

#endif
#endif
