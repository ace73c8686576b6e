/* The persistent decode kernel: all layers of one decode step in a single launch, as far as their operations are
 * supported. A step has one row, or 2 to QN_PERSISTENT_MAX_ROWS rows of different sequences. This header is the
 * kernel's interface and describes how data flows, first for one row. persistent.cu is the kernel of one row,
 * persistent_rows.cu the kernel of several; cuda/executor/persistent.c plans the phases of a model. More in
 * docs/internals/persistent-decode.md. Shared by C and CUDA.
 *
 * Purpose. Launched one by one, the operations of a decode step spend more time in the gaps between launches than on
 * reading weights. In one launch, weights stream through ring buffers in shared memory that do not drain between
 * operations: while blocks wait for each other, the weights of the next GEMV are in flight.
 *
 * Grid and phases. The grid is one block of QN_PERSISTENT_THREADS threads an SM, launched cooperatively: all blocks are
 * resident and may wait for each other. Every block executes the same array of phases (qn_persistent_phase) in order: a
 * GEMV with a fused prologue, a step of a Gated DeltaNet layer, attention of one row, or a store of results for later
 * launches. A grid barrier separates each phase from the next.
 *
 * Split-K GEMV. out = weights * activations is divided in both dimensions. K is divided into n_slices slices of
 * slice_k_tiles K tiles; a K tile is 256 columns. The rows are divided into tiles of 16. With s = b / slice_blocks and
 * j = b % slice_blocks,
 *
 *   block b computes slice s of K,
 *   of the row tiles [n_tiles * j / slice_blocks, n_tiles * (j + 1) / slice_blocks).
 *
 * A block therefore needs the activations of one slice only. It computes them itself, in the prologue of the phase
 * (norm, SwiGLU, gated norm, split-KV combine; then Hadamard transform and quantisation), into shared memory. The other
 * blocks of the slice compute the same activations again, which saves a grid barrier (1.4 us on an H200,
 * docs/lab/2026-11-gpu.md).
 *
 * Hand-over of partial sums from one phase to the next:
 *
 *   1. A block stores its partial sums to out[slice][row] in global memory, f32 [n_slices][stride]; in practice they
 *      stay in L2. Each element has exactly one writer; there are no float atomics.
 *   2. The block arrives at the grid barrier: __syncthreads(), then one thread adds 1 to a counter with
 *      red.release.gpu.
 *   3. One thread of every block polls the counter with ld.acquire.gpu until all blocks have arrived; __syncthreads()
 *      follows.
 *   4. The prologue of the next phase, or of a later one, reduces the partials: it loads the n_slices values of an
 *      element with ld.global.cg and adds them in ascending order of the slice. A GEMV's block reduces the elements of
 *      its own slice of K only.
 *
 *   element i of partials p = f * (p.data[i] + p.data[p.stride + i] + ... n_partials terms)
 *   f = 1 without p.sumsq, else 1 / sqrt((p.sumsq[0] + p.sumsq[1] + ... n_sumsq terms) / p.n_cols + p.eps)
 *
 * Several rows. Arrays of values have the rows outermost: x, x_out, sumsq, partials and outputs of row r begin at r
 * times their size for one row, and the fields of the phases give that size; page tables, positions and slots are
 * [n_rows]. Before each GEMV is a phase of activations (QN_PHASE_ACTS), which computes the GEMV's prologue once for the
 * whole grid: it stores x + from, the sum of squares of each 128 columns, and the quantised operand in
 * qn_persistent_args.acts. A GEMV's block copies the operand of its slice. The KV cache is in pages. Results of a row
 * do not depend on the number of rows.
 *
 * RMS norm. A block has only its slice of the vector that is normalised, so the GEMV runs on x * weight without the
 * division. The first block of each slice stores the slice's sum of squares (qn_persistent_gemv.sumsq) next to the
 * partials. The reader of the partials sums the squares of all slices (by lanes, then by butterflies in a warp: a fixed
 * order) and multiplies by the factor f above: the GEMV is linear.
 *
 * Why one thread's release publishes the writes of a whole block (PTX ISA, "Memory Consistency Model": Memory
 * Synchronization, Causality Order). __syncthreads() is barrier.sync: it orders the writes of all threads of the block
 * before the red.release that follows it. Release is cumulative: causality order is transitive, so the release
 * publishes every write that is ordered before it, by whichever thread. The additions to the counter are
 * read-modify-writes, so the ld.acquire that reads the last addition synchronises with the releases of all blocks. The
 * __syncthreads() after it extends the order to all threads of the reading block. No thread needs a __threadfence().
 *
 * Why ld.global.cg. The L1 caches of the SMs are not coherent with each other, and buffers are written again and again:
 * L1 may hold a line from an earlier phase or token. Data that a phase writes and a later phase of the launch reads is
 * loaded from L2 (persistent.cuh: load_cg). It is never read through the non-coherent path (ld.global.nc, __ldg, const
 * __restrict__), which the memory consistency model does not cover.
 *
 * Determinism. The order of every sum depends on shapes and on the number of blocks only, never on timing: the same
 * bits from run to run.
 *
 * Configurations. The kernel of one row is compiled for what a device has (variants.def); the launch takes the first
 * variant that fits.
 *
 *   stages, gemv_warps   of the weight ring: what remains of shared memory. 99 KiB (compute capability 8.6, 8.9, 12.0)
 *                        are control, scratch and 2 stages of 14 warps
 *   columns_first        the order of a warp's steps. 0: row tiles first, with the sums of each pair of K tile and row
 *                        tile in shared memory, which takes at least 78 SMs for a large matrix. 1: K tiles first, with
 *                        sums in registers and a segment for each group of row tiles: any number of SMs
 *   bit_planes           1: activations as bit planes, by binary MMA, where tensor cores have it (8.x and 9.0);
 *                        0: as hi/lo int8, by int8 MMA; also with columns first and 4 weight scales a K tile, whose
 *                        planes take 2 KB of scratch a K tile, half of them zeros */
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_H
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_H

#include "cuda/kernels/attend.h"
#include "cuda/kernels/deltanet/deltanet.h"
#include "cuda/kernels/matmul/matmul.h"

#ifndef __CUDACC__
#include <stdalign.h>
#endif

enum {
    QN_PERSISTENT_THREADS = 512,
    QN_PERSISTENT_MAX_SLICES = 64,
    QN_PERSISTENT_MAX_SLICE_COLS = 4096,
    QN_PERSISTENT_MAX_OUTS = 4,
    /* Shared memory: control data (phases, work descriptors), scratch of the current phase, ring buffers of weights. */
    QN_PERSISTENT_CONTROL_BYTES = 4096,
    QN_PERSISTENT_SCRATCH_BYTES = 32 << 10,
    QN_PERSISTENT_PARKED_BYTES = 1024, /* with attention over AURA codes: states of the weight streams */
    QN_PERSISTENT_MAX_ROWS = 8,
    QN_PERSISTENT_ROWS_SCRATCH_BYTES = 120 << 10, /* of launches of several rows */
    QN_PERSISTENT_ROWS_SPLIT_TILES = 16,          /* several rows: least tiles of 16 positions of a split */
    QN_PERSISTENT_MAX_SPLITS = 32,                /* split-KV: splits of a key-value head */
    QN_PERSISTENT_MAX_GROUP = 8                   /* query heads of a key-value head */
};

/* The most weight tiles of a stage of a ring buffer. */
#define QN_PERSISTENT_STEP_TILES(bits) (4 / (bits))

/* Bytes of the activations of a K tile: as bit planes (plane_acts.cuh), for n_scales weight scales a row and K tile; as
 * hi/lo int8 (byte_acts.cuh). */
#define QN_PERSISTENT_K_TILE_BYTES(n_scales) (520 * (n_scales))
#define QN_PERSISTENT_K_TILE_INT8_BYTES(n_scales) (512 + 8 * (n_scales))

/* Several rows: the number of sums of squares of an RMS norm over n_cols columns, one for each 128 columns. At most
 * QN_PERSISTENT_MAX_SLICES. */
#define QN_PERSISTENT_ROWS_SUMSQ(n_cols) (((n_cols) + 127) / 128)

/* Split-K partial sums of a GEMV, read by later phases; the head comment has the formula. */
typedef struct qn_persistent_partials {
    QN_GPU_PTR(const float) data;  /* [n_partials][stride] */
    QN_GPU_PTR(const float) sumsq; /* [n_sumsq] sums of squares, one a slice; 0: no RMS norm, factor 1 */
    uint32_t n_partials, stride, n_sumsq, n_cols;
    float eps; /* of the RMS norm */
} qn_persistent_partials;

/* ---- GEMV ---- */

/* The prologue of a GEMV, which computes the activations of a block's slice. Column c of:
 *
 *   PLAIN              x[c]
 *   RMS_NORM           (x[c] + from[c]) * weight[c], without the division by the norm. The first block of each slice
 *                      stores x[c] + from[c] (the residual stream) to x_out, and the slice's sum of squares to sumsq
 *   SWIGLU             silu(from[row + c]) * from[row2 + c]
 *   GATED_NORM         heads of a Gated DeltaNet layer: x[i] / sqrt(mean of the head's x^2 + eps) * weight[i % head] *
 *                      silu(from[row + i]), heads of `head` values; i = c, or with `grouped` column head k*rep + r is
 *                      value head r*n_k_heads + k, rep = n_heads / n_k_heads
 *   ATTENTION_COMBINE  split-KV combine of attention's partials (x, maxima); with `gated` times the sigmoid of
 *                      from[row + 2*h*head + head + d] for value d of head h
 *
 * With `rotation`, the values are then multiplied by signs[c] (if signs is not 0) and go through a normalised
 * Walsh-Hadamard transform in blocks of `rotation` columns. Then they are quantised to integers with one scale for each
 * 128 columns: amax becomes 32767 (with 2-bit weights 16383). Columns beyond n_cols are zeros. */
typedef enum qn_persistent_prologue {
    QN_PROLOGUE_PLAIN,
    QN_PROLOGUE_RMS_NORM,
    QN_PROLOGUE_SWIGLU,
    QN_PROLOGUE_GATED_NORM,
    QN_PROLOGUE_ATTENTION_COMBINE
} qn_persistent_prologue;

typedef struct qn_persistent_gemv {
    uint32_t prologue; /* qn_persistent_prologue */
    uint32_t n_cols;   /* a multiple of 32; with a rotation, of it */
    QN_GPU_PTR(const float) x;
    QN_GPU_PTR(float) x_out;
    QN_GPU_PTR(float) sumsq; /* [n_slices] */
    QN_GPU_PTR(const float) weight;
    QN_GPU_PTR(const float) signs;
    QN_GPU_PTR(const float) maxima; /* ATTENTION_COMBINE: qn_persistent_attention.maxima */
    qn_persistent_partials from;    /* n_partials 0: reads as zeros */
    uint32_t row, row2;             /* first elements in `from` */
    uint32_t rotation;              /* 0, or a power of two from 32 to 1024; a slice is a multiple of it */
    uint32_t head, n_heads, n_k_heads, grouped, gated, n_splits;
    float eps; /* GATED_NORM */
    /* Weights: tiles of QN_BITS and QN_SCALES (matmul.h). */
    QN_GPU_PTR(const uint8_t) weights;
    uint32_t n_tiles, n_k_tiles;
    uint32_t slice_k_tiles, n_slices, slice_blocks; /* n_slices * slice_blocks is at most the number of blocks */
    QN_GPU_PTR(float) out;                          /* partials, [n_slices][n_tiles * 16] */
    /* A few more rows with fp16 weights (tiles of 16 bits), such as alpha and beta of a Gated DeltaNet layer. They are
     * multiplied by the f32 activations, neither rotated nor quantised. The blocks of a slice distribute its K tiles
     * one by one, so there is one partial for each K tile: readers set qn_persistent_partials.n_partials to n_k_tiles.
     * n_f16_tiles 0: none. */
    QN_GPU_PTR(const uint8_t) f16_rows;
    QN_GPU_PTR(float) f16_out; /* [n_k_tiles][n_f16_tiles * 16] */
    uint32_t n_f16_tiles;
} qn_persistent_gemv;

/* ---- Gated DeltaNet: convolution, norms of keys and queries, gates, delta rule ---- */

/* Convolution, gates and delta rule of one row, over the state and the open chunk, as in qn_gdn_open_step
 * (deltanet.h); heads of 128 by 128. The row is appended to the open chunk, which must have fewer than 64 rows: the
 * phase does not fold. A unit is 64 values of a value head; block u % gridDim.x computes unit u. */
typedef struct qn_persistent_delta {
    qn_persistent_partials qkv, alpha, beta;
    uint32_t qkv_row, alpha_row, beta_row; /* first elements in the partials; alpha and beta of head h are at row + h */
    QN_GPU_PTR(const float) conv;          /* [taps][width] */
    QN_GPU_PTR(const float) bias;          /* [v_heads] */
    QN_GPU_PTR(const float) factor;        /* [v_heads] */
    QN_GPU_PTR(float) out;                 /* [v_heads][128], neither normalised nor gated */
    uint64_t state_offset;                 /* of the layer's part of a state slot, in bytes */
    qn_gdn_open_layout open;               /* of the layer's part of an open slot, from the slot's start */
    uint32_t k_heads, v_heads, taps;
    float scale;
} qn_persistent_delta;

/* ---- Attention of one row ---- */

/* The cache of a layer, as in qn_attention_gpu_cache, of the row's sequence. */
typedef struct qn_persistent_cache {
    QN_GPU_PTR(const uint8_t) keys;
    QN_GPU_PTR(const uint8_t) values;
    QN_GPU_PTR(const uint8_t) key_scales; /* with AURA codes only */
    QN_GPU_PTR(const uint8_t) value_scales;
    uint64_t key_head_stride, value_head_stride, scale_head_stride; /* in bytes, between key-value heads */
    QN_GPU_PTR(const uint64_t) tables;                              /* [1], or one for each row; 0: contiguous */
} qn_persistent_cache;

/* Biases and qk_norm (if given), rope and kv_store of the row, as in qn_rope_qk_norm_store; then scores, softmax and
 * the sum of values over all positions up to the row's, as split-KV partials in the form of qn_attention_decode
 * (attention.h). Positions are assigned to splits in tiles of 16, ceil(tiles / n_splits) tiles to a split, so that a
 * short context is spread over many splits of one tile; with several rows, at least QN_PERSISTENT_ROWS_SPLIT_TILES
 * tiles. Splits without positions write nothing, and the combine does not read them.
 *
 * A unit is one split of one key-value head; block u computes unit u. n_kv_heads * n_splits is at most the number of
 * blocks. The unit that contains the row's position computes and stores the key and the value; every unit computes its
 * own queries. Over AURA codes (variants with QN_KEY_BITS; one row only) split 0 is the fp16 pages of a session, page 0
 * and the open one, which receives the row's rotated key and value; the pages between are assigned to the other splits,
 * ceil(pages / (n_splits - 1)) to each. Their sums are stored in the model's basis, so that the combine is the same.
 *
 * It is never the first phase: page table entries are loaded while a block waits for the previous phase.
 * All attention phases of a launch have the same page table. */
typedef struct qn_persistent_attention {
    qn_persistent_partials qkv;
    uint32_t q_row, k_row, v_row;         /* first elements in qkv; query head h is at q_row + h * query_stride */
    uint32_t query_stride;                /* head_dim, or 2 * head_dim if each query head is followed by its gates */
    uint32_t head_dim;                    /* 64, 128 or 256 */
    uint32_t n_heads, n_kv_heads;         /* at most QN_PERSISTENT_MAX_GROUP query heads a key-value head */
    uint32_t n_rot;                       /* dimensions that rope rotates, a multiple of 8 */
    uint32_t interleaved;                 /* rope of adjacent dimensions; else NeoX pairs */
    uint32_t n_splits;                    /* a power of two, at most QN_PERSISTENT_MAX_SPLITS */
    QN_GPU_PTR(const float) query_bias;   /* [n_heads][head_dim]; 0: none */
    QN_GPU_PTR(const float) key_bias;     /* [n_kv_heads][head_dim]; 0: none */
    QN_GPU_PTR(const float) value_bias;   /* [n_kv_heads][head_dim]; 0: none */
    QN_GPU_PTR(const float) query_weight; /* [head_dim] of qk_norm; 0: no norm */
    QN_GPU_PTR(const float) key_weight;
    QN_GPU_PTR(const float) cosines; /* [n_rot/2] at the row's position */
    QN_GPU_PTR(const float) sines;
    qn_persistent_cache cache;
    QN_GPU_PTR(float) partials; /* [n_heads][n_splits][head_dim] */
    QN_GPU_PTR(float) maxima;   /* [n_heads][n_splits][2]: running maximum (log2 domain), sum of exponentials */
    float eps, scale;
    /* Over AURA codes: heads of QN_HEAD_DIM, a power of two; n_splits is at least 2. `cache` has the codes, and these
     * are offsets within a page of fp16 rows (qn_attention_gpu_pages). */
    QN_GPU_PTR(const uint8_t) f16_keys;
    QN_GPU_PTR(const uint8_t) f16_values;
    QN_GPU_PTR(const uint8_t) means;
} qn_persistent_attention;

/* What the attention phases of a launch over AURA codes share. */
typedef struct qn_persistent_codes {
    qn_attention_gpu_codec keys, values; /* with signs of the rotations */
    QN_GPU_PTR(const uint64_t) tables;   /* [1] of fp16 pages */
    uint64_t f16_head;                   /* stride in bytes between key-value heads of an fp16 page */
} qn_persistent_codes;

/* ---- Store: results for later launches ---- */

/* out[i] = from[row + i], or with x: x[i] + from[row + i], for i below n_rows. */
typedef struct qn_persistent_store {
    qn_persistent_partials from;
    struct {
        QN_GPU_PTR(float) out;
        QN_GPU_PTR(const float) x; /* or 0; may overlap the outputs of this phase only as x == out */
        uint32_t row, n_rows;
    } outs[QN_PERSISTENT_MAX_OUTS];
    uint32_t n_outs;
} qn_persistent_store;

typedef enum qn_persistent_phase_kind {
    QN_PHASE_GEMV,
    QN_PHASE_DELTA,
    QN_PHASE_ATTENTION,
    QN_PHASE_STORE,
    QN_PHASE_ACTS /* several rows: computes the prologue of the next phase, a GEMV; u.gemv is a copy of that phase's */
} qn_persistent_phase_kind;

typedef struct qn_persistent_phase {
    alignas(16) uint32_t kind; /* qn_persistent_phase_kind; cp.async.bulk.prefetch needs alignment to 16 */
    uint32_t next_gemv;        /* index of the first GEMV after this phase; n_phases: none */
    union {
        qn_persistent_gemv gemv;
        qn_persistent_delta delta;
        qn_persistent_attention attention;
        qn_persistent_store store;
    } u;
} qn_persistent_phase;

/* Arguments of the kernel qn_persistent_decode, which executes the phases in order, and of that of several rows. It is
 * launched cooperatively, one block of QN_PERSISTENT_THREADS threads on each SM, and is compiled for given values of
 * QN_BITS and QN_SCALES (of the weight tiles of all GEMVs), QN_STAGES (slots of the cp.async ring of each warp) and the
 * rest of a configuration. */
typedef struct qn_persistent_args {
    QN_GPU_PTR(const qn_persistent_phase) phases; /* [n_phases] */
    QN_GPU_PTR(uint32_t) barrier;                 /* arrival counter: 0 before and after each launch */
    QN_GPU_PTR(const uint32_t) positions;         /* [1] position of the row; address 0: none has one */
    /* Recurrent layers: slots and position of the row's sequence, as in qn_gdn_open_args. states 0: no such layers */
    QN_GPU_PTR(const unsigned char) states;
    QN_GPU_PTR(unsigned char) open;
    QN_GPU_PTR(const uint32_t) state_positions; /* [1] */
    QN_GPU_PTR(const uint32_t) state_from;      /* [1] */
    QN_GPU_PTR(const uint32_t) open_slots;      /* [1] */
    uint64_t state_stride, open_stride;
    uint32_t n_phases;
    /* Several rows */
    uint32_t n_rows; /* rows of the arrays above */
    QN_GPU_PTR(const uint32_t)
    sequences;                /* [n_rows]; QN_ATTENTION_NO_SESSION: padding at the end, not computed.
                                 0: all rows are computed */
    QN_GPU_PTR(uint8_t) acts; /* operands of the current GEMV: QN_ACTS_HILO, capacity QN_PERSISTENT_MAX_ROWS */
    QN_GPU_PTR(float) acts_scale;
    QN_GPU_PTR(float) acts_f32; /* with fp16 rows: [n_rows][n_k_tiles * 256], neither rotated nor quantised */
    qn_persistent_codes codes;  /* of attention over AURA codes */
} qn_persistent_args;

#ifndef __CUDACC__

#include "base/status.h"

/* The properties of the device that launches depend on (fields of qn_cuda_info). */
typedef struct qn_persistent_gpu {
    uint32_t n_sms, max_shared_bytes;
    int major;        /* of the compute capability */
    bool cooperative; /* cooperative launches */
} qn_persistent_gpu;

/* In the functions below, n_rows is the number of rows of a launch, up to QN_PERSISTENT_MAX_ROWS. Their results are the
 * same for all numbers from 2 on. */

/* qn_persistent_gpu_supports - Returns whether the kernel supports weight tiles of this layout on this device. */
bool qn_persistent_gpu_supports(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows);

/* qn_persistent_gpu_is_faster - Returns whether a step of one row in phases is faster than in launches.
 *
 *   weight_bytes   codes of the GEMVs in phases */
bool qn_persistent_gpu_is_faster(const qn_persistent_gpu *gpu, uint64_t weight_bytes);

/* qn_persistent_gpu_code_max - Returns the integer that the largest magnitude of 128 activations becomes. */
uint32_t qn_persistent_gpu_code_max(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows);

/* qn_persistent_gpu_partition - Partitions a GEMV over blocks: sets slice_k_tiles, n_slices and slice_blocks of *gemv.
 *
 *   gemv   n_tiles, n_k_tiles, n_cols, rotation and n_f16_tiles are set
 *
 * QN_ERR_UNSUPPORTED if qn_persistent_gpu_supports is false, or no partition fits: a rotation that is not a power of
 * two from 32 to 1024 or does not divide n_cols, no tiles, n_cols not a multiple of 32, sums that do not fit in shared
 * memory. */
qn_status qn_persistent_gpu_partition(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows,
                                      qn_persistent_gemv *gemv);

/* qn_persistent_gpu_splits - Returns the number of KV splits of an attention phase; 0 if the kernel does not support
 * such heads. */
uint32_t qn_persistent_gpu_splits(const qn_persistent_gpu *gpu, size_t head_dim, size_t n_heads, size_t n_kv_heads,
                                  size_t n_rot);

/* qn_persistent_gpu_launch - Fills *out for the variant of these tiles; the caller adds the arguments.
 * QN_ERR_UNSUPPORTED if qn_persistent_gpu_supports is false. */
qn_status qn_persistent_gpu_launch(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows,
                                   qn_launch *out);

/* qn_persistent_gpu_supports_codes - Returns whether the kernel of one row also supports attention over AURA codes of
 * these heads, with weight tiles of this layout. */
bool qn_persistent_gpu_supports_codes(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, size_t head_dim,
                                      unsigned key_bits, unsigned value_bits);

/* qn_persistent_gpu_launch_codes - qn_persistent_gpu_launch for one row, with attention over these codes.
 * QN_ERR_UNSUPPORTED if qn_persistent_gpu_supports_codes is false. */
qn_status qn_persistent_gpu_launch_codes(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, size_t head_dim,
                                         unsigned key_bits, unsigned value_bits, qn_launch *out);

#endif
#endif
