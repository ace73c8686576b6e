/* Activations and weights on the GPU for the checks of the matmul. */
#include "cuda_matmul_problem.h"

#include "base/memory.h"
#include "problem.h"

#include <math.h>
#include <stdlib.h>

void *qn_check_alloc(size_t count, size_t size)
{
    void *p;
    qn_assert_ok(qn_alloc(&p, count, size, "check"));
    return p;
}

qn_matmul_gpu qn_check_matmul_gpu(void)
{
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    return (qn_matmul_gpu){ info->n_sms, info->max_shared_bytes, info->major >= 9 };
}

void qn_check_launch(const qn_matmul_launch *l)
{
    qn_gpu_launch(&l->launch, &l->args);
}

/* ---- Activations ---- */

struct gpu_acts qn_check_acts_new(int layout, size_t n_cols, size_t n_tokens)
{
    struct gpu_acts a = { .acts = { .layout = layout, .n_cols = n_cols, .capacity = n_tokens } };
    size_t bytes;
    if (layout != QN_ACTS_HILO_N1)
        a.acts.capacity = qn_round_up(n_tokens, QN_GEMM_TILE_N);
    qn_assert_ok(qn_matmul_gpu_acts_bytes(layout, n_cols, a.acts.capacity, &bytes));
    a.data = qn_gpu_new(qn_round_up(bytes + 1024, 256));
    const size_t scale_bytes = qn_matmul_gpu_scale_bytes(layout, n_cols, a.acts.capacity);
    a.scale = qn_gpu_new(scale_bytes ? scale_bytes : 1);
    a.acts.address = qn_round_up(a.data.data, 1024);
    a.acts.scale = a.scale.data;
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    a.workspace = qn_gpu_new(layout == QN_ACTS_HILO ? qn_matmul_gpu_workspace_bytes(&gpu) : 1);
    a.acts.workspace = a.workspace.data;
    return a;
}

void qn_check_acts_free(struct gpu_acts *a)
{
    qn_expect(qn_gpu_guards_intact(&a->data) && qn_gpu_guards_intact(&a->scale) && qn_gpu_guards_intact(&a->workspace),
              "bytes around the activations were written");
    qn_gpu_free(&a->data);
    qn_gpu_free(&a->scale);
    qn_gpu_free(&a->workspace);
}

int qn_check_hilo_code(const uint8_t *acts, size_t capacity, size_t token, size_t k)
{
    const uint8_t *block = acts + (k / QN_ACTS_HILO_COLS * (capacity / 8) + token / 8) * QN_ACTS_HILO_BYTES;
    const size_t column = k % QN_ACTS_HILO_COLS,
                 at = token % 8 * 128 + ((column / 16) ^ (token % 8)) * 16 + column % 16;
    return 256 * (int8_t)block[at] + (int8_t)block[1024 + at];
}

float *qn_check_signs_new(size_t n)
{
    float *signs = qn_check_alloc(n, sizeof *signs);
    for (size_t i = 0; i < n; i++)
        signs[i] = qn_random() & 1 ? 1 : -1;
    return signs;
}

void qn_check_hadamard_f64(double *v, const float *signs, size_t n, size_t block)
{
    for (size_t i = 0; block && i < n; i++)
        v[i] *= (double)signs[i] / sqrt((double)block);
    for (size_t stride = 1; stride < block; stride *= 2)
        for (size_t i = 0; i < n; i++)
            if (!(i & stride)) {
                const double a = v[i], b = v[i + stride];
                v[i] = a + b;
                v[i + stride] = a - b;
            }
}

/* ---- Weights ---- */

/* Packs rows into their tiles; types that the kernels cannot read are converted to F16 first. */
static void pack(const struct gpu_weights *w, size_t matrix_index, size_t first_tile)
{
    const size_t n_rows = w->n_rows[matrix_index];
    qn_matmul_launch l;
    uint8_t *rows = w->stored[matrix_index];
    size_t row_bytes = w->row_bytes;
    if (w->matrix.tiles.as_f16) {
        float *scratch = qn_check_alloc(w->n_cols, sizeof *scratch);
        row_bytes = w->n_cols * 2;
        rows = qn_check_alloc(n_rows, row_bytes);
        for (size_t r = 0; r < n_rows; r++)
            qn_matmul_gpu_f16_row(w->type, w->stored[matrix_index] + r * w->row_bytes, w->n_cols, scratch,
                                  (uint16_t *)(void *)(rows + r * row_bytes));
        qn_free(scratch);
    }
    qn_gpu_guarded stored = qn_gpu_from(rows, n_rows * row_bytes);
    qn_assert_ok(qn_matmul_gpu_pack(&w->matrix, stored.data, row_bytes, n_rows, first_tile, &l));
    qn_check_launch(&l);
    qn_gpu_synchronize();
    qn_gpu_free(&stored);
    if (rows != w->stored[matrix_index])
        qn_free(rows);
}

struct gpu_weights qn_check_weights_new(const qn_type_info *type, size_t n_cols, size_t n_matrices,
                                        const size_t n_rows[3])
{
    struct gpu_weights w = { .type = type, .n_cols = n_cols, .n_matrices = n_matrices };
    size_t bytes, first_tile = 0;
    w.matrix = (qn_tiled_matrix){ .tiles = qn_matmul_gpu_tile_layout(type), .n_cols = n_cols, .n_outs = n_matrices };
    if (!qn_row_bytes(type, n_cols, &w.row_bytes))
        exit(1);
    for (size_t i = 0; i < n_matrices; i++) {
        w.n_rows[i] = n_rows[i];
        w.stored[i] = qn_check_alloc(n_rows[i], w.row_bytes);
        qn_random_blocks(type, w.stored[i], n_rows[i] * w.row_bytes / type->block_bytes, 100); /* within the range of
                                                                                                  fp16 */
        w.matrix.n_tiles += qn_matmul_gpu_tile_count(n_rows[i]);
    }
    qn_assert_ok(qn_matmul_gpu_bytes(&w.matrix.tiles, w.matrix.n_tiles, n_cols, &bytes));
    w.tiles = qn_gpu_new(bytes);
    w.matrix.address = w.tiles.data;
    for (size_t i = 0; i < n_matrices; first_tile += qn_matmul_gpu_tile_count(n_rows[i]), i++)
        pack(&w, i, first_tile);
    qn_expect(qn_gpu_guards_intact(&w.tiles), "bytes around the tiles were written");
    return w;
}

void qn_check_weights_free(struct gpu_weights *w)
{
    for (size_t i = 0; i < w->n_matrices; i++)
        qn_free(w->stored[i]);
    qn_gpu_free(&w->tiles);
}
