// Look-up tables of AURA codes in the persistent decode kernel: how attend.cuh and slices.cuh are compiled for it. The
// tables of keys and values follow each other, an entry has a copy for each lane; with equal bits there is one table, since
// the codebook depends on dimension and bits alone. They are filled once a launch.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_TABLES_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_TABLES_CUH

#define QN_WARPS 16
#define QN_PAGES 1
#define QUERIES_IN_REGISTERS 0
#define SCORE_ACCUMULATORS 2
#define ENTRY_SHIFT 7
#define TABLES_ALIGNED_64K 0
#define KEY_ENTRIES (1 << index_bits(QN_KEY_BITS))
#define VALUE_ENTRIES (QN_VALUE_BITS == QN_KEY_BITS ? 0 : 1 << index_bits(QN_VALUE_BITS))
#define CODE_TABLE_BYTES ((KEY_ENTRIES + VALUE_ENTRIES) << ENTRY_SHIFT) // qn_persistent_gpu_table_bytes
// Shared address of the tables, after the control data and the scratch of a phase: loads have it in their instruction.
#define TABLE_OFFSET (QN_ATTENTION_RESERVED_BYTES + QN_PERSISTENT_CONTROL_BYTES + QN_PERSISTENT_SCRATCH_BYTES)
#define VALUE_ENTRY (QN_VALUE_BITS == QN_KEY_BITS ? 0 : KEY_ENTRIES << ENTRY_SHIFT)

#include "cuda/kernels/attention/slices.cuh"

// Fills the tables, by all threads, half an entry a thread.
QN_DEVICE void fill_tables(uint8_t *tables, const qn_attention_gpu_codec &keys, const qn_attention_gpu_codec &values)
{
    if (qn_shared_address(tables) != TABLE_OFFSET)
        __trap();
    for (uint32_t i = threadIdx.x; i < (KEY_ENTRIES + VALUE_ENTRIES) * 2; i += QN_WARPS * QN_WARP_SIZE) {
        const uint32_t entry = i / 2;
        const uint32_t x = entry < KEY_ENTRIES ? make_table_entry<QN_KEY_BITS>(entry, keys)
                                               : make_table_entry<QN_VALUE_BITS>(entry - KEY_ENTRIES, values);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(uint4 *)(tables + 64 * i + 16 * j) = make_uint4(x, x, x, x);
    }
}

#endif
