/* The stages of the chunked delta rule on one chunk of one value head: public kernels are these over whole tensors.
 *
 * Everything is float32 in rows side by side, n <= QN_GDN_CHUNK of them, and n rows are all that is ever formed: a short chunk
 * has no padding. Values that a half-precision kernel would hold in its type are rounded to it where they come to be (`dtype`;
 * F32 rounds nothing). gc [n] must not rise, so that every exponent is <= 0 before exp. Below the diagonal, products are cut
 * into blocks of QN_GDN_UNIT rows. */
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

/* Room for one chunk: tiles of QN_GDN_CHUNK rows, and two states. */
typedef struct qn_gdn_tiles {
    float *q, *k, *w, *gated_k;         /* [][head_k] */
    float *u, *v, *v_new, *gated_v, *o; /* [][head_v] */
    float *kk, *qk, *a, *inverse;       /* [][QN_GDN_CHUNK] */
    float *k_transposed;                /* [head_k][QN_GDN_CHUNK]: k transposed */
    float *state;                       /* [head_k][head_v]: S transposed, values side by side */
    float *start;                       /* the same at the chunk's start, as the output stage reads it */
    float *beta;                        /* [] */
    double *gc;                         /* [] */
    float *memory;
} qn_gdn_tiles;

/* qn_gdn_tiles_create - one piece of zeroed memory. Free with qn_gdn_tiles_free. */
qn_status qn_gdn_tiles_create(qn_gdn_tiles *tiles, size_t head_k, size_t head_v);
void qn_gdn_tiles_free(qn_gdn_tiles *tiles);

/* qn_gdn_transpose - to[c][r] = from[r][c]. */
void qn_gdn_transpose(float *to, size_t to_row, const float *from, size_t from_row, size_t rows, size_t columns);

/* qn_gdn_tile_dots - dots[i][j] = x_i . k_j, x being k or q, for j up to the end of i's block of QN_GDN_UNIT: kk and qk, which
 * all value heads of a key head share. */
void qn_gdn_tile_dots(const qn_gdn_stages *stages, const qn_gdn_tiles *tiles, float *dots, const float *x, size_t n);

/* Each reads and writes the tiles named, gc always read. */
/* kk, beta -> a, all columns */
void qn_gdn_tile_kkt(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);
/* a -> inverse, all columns */
void qn_gdn_tile_inverse(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);
/* k, v, beta, inverse -> w, u; gated_k and gated_v are used up */
void qn_gdn_tile_w_u(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);
/* k, w, u, state -> v_new, state; gated_v is used up */
void qn_gdn_tile_state(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, size_t n);
/* q, qk, v_new, start -> o, before it is rounded; a is used up */
void qn_gdn_tile_output(const qn_gdn_stages *stages, qn_gdn_tiles *tiles, float scale, size_t n);

#endif
