/* The stages of the chunked delta rule for one chunk of one value head. The public kernels (api_deltanet.c) apply them
 * to whole tensors.
 *
 * Tiles are f32, row-major and contiguous, with n <= QN_GDN_CHUNK rows. Only n rows are computed; a short chunk is not
 * padded. Values that an fp16 or bf16 kernel would store in its type are rounded to `dtype` when they are computed (no
 * rounding for F32). gc [n] must be non-increasing, so that every exponent is <= 0 before exp. GEMMs with triangular
 * matrices skip the zeros in blocks of QN_GDN_UNIT rows. */
#ifndef QN_KERNELS_DELTANET_STAGES_H
#define QN_KERNELS_DELTANET_STAGES_H

#include "kernels/deltanet/deltanet.h"
#include "kernels/deltanet/row_kernels.h"

#include "base/status.h"

typedef struct qn_gdn_stages {
    const qn_deltanet_kernels *kernels;
    const qn_gdn_row_kernels *rows;
    qn_dtype dtype;
    size_t head_k, head_v;
} qn_gdn_stages;

/* Workspace of one chunk: tiles of QN_GDN_CHUNK rows, and two states. */
typedef struct qn_gdn_tiles {
    float *q, *k, *w, *gated_k;         /* [][head_k] */
    float *u, *v, *v_new, *gated_v, *o; /* [][head_v] */
    float *kk, *qk, *a, *inverse;       /* [][QN_GDN_CHUNK] */
    float *k_transposed;                /* [head_k][QN_GDN_CHUNK]: k transposed */
    float *state;                       /* [head_k][head_v]: S transposed, the values of a key dimension contiguous */
    float *start;  /* [head_k][head_v]: the state at the chunk's start, the output stage's operand */
    float *beta;   /* [QN_GDN_CHUNK] */
    double *gc;    /* [QN_GDN_CHUNK]: cumulative log decays */
    float *memory; /* the allocation that all pointers point into */
} qn_gdn_tiles;

/* qn_gdn_tiles_create - allocates a zeroed workspace. QN_ERR_MEMORY. Free with qn_gdn_tiles_free. */
qn_status qn_gdn_tiles_create(qn_gdn_tiles *tiles, size_t head_k, size_t head_v);
void qn_gdn_tiles_free(qn_gdn_tiles *tiles);

/* qn_gdn_transpose - sets to[c][r] = from[r][c]. */
void qn_gdn_transpose(float *to, size_t to_row, const float *from, size_t from_row, size_t rows, size_t columns);

/* qn_gdn_tile_dots - computes kk (x = k) or qk (x = q): dots[i][j] = x_i . k_j, for j up to the end of i's block of
 * QN_GDN_UNIT rows. Reads k_transposed. All value heads of a key head share kk and qk. */
void qn_gdn_tile_dots(const qn_gdn_stages *stages, const qn_gdn_tiles *tiles, float *dots, const float *x, size_t n);

/* The stages. Each comment names the tiles that the function reads and writes; all except qn_gdn_tile_inverse also read
 * gc. Scratch tiles are overwritten. */

/* qn_gdn_tile_kkt - reads kk, beta; writes a, all columns. */
void qn_gdn_tile_kkt(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);

/* qn_gdn_tile_inverse - reads a; writes inverse, all columns. */
void qn_gdn_tile_inverse(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);

/* qn_gdn_tile_w_u - reads k, v, beta, inverse; writes w, u. Scratch: gated_k, gated_v. */
void qn_gdn_tile_w_u(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);

/* qn_gdn_tile_state - reads k, w, u, state; writes v_new, state. Scratch: gated_v. */
void qn_gdn_tile_state(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);

/* qn_gdn_tile_output - reads q, qk, v_new, start; writes o, not rounded. Scratch: a. */
void qn_gdn_tile_output(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, float scale, size_t n);

#endif
