/* Helpers for the checks of the persistent decode kernel. */
#include "cuda_persistent.h"

#include "base/f16.h"
#include "problem.h"

#include <stdlib.h>

qn_persistent_gpu qn_persistent_device(void)
{
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    return (qn_persistent_gpu){ info->n_sms, info->max_shared_bytes, info->major };
}

bool qn_persistent_supported(void)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    return qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 1, .n_scales = 2 }, 1) &&
           qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 2, .n_scales = 2 }, 1) &&
           qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 2, .n_scales = 4 }, 1);
}

qn_gpu_guarded qn_gpu_floats(const float *x, size_t n)
{
    return qn_gpu_from(x, n * sizeof *x);
}

float *qn_gpu_read_floats(const qn_gpu_guarded *g)
{
    float *x = qn_xcalloc(g->bytes, 1);
    qn_gpu_read(g, x);
    return x;
}

void qn_persistent_iteration(void *context, size_t iteration)
{
    const qn_persistent_timed *t = context;
    (void)iteration;
    qn_gpu_launch(&t->launch, &t->args);
}

void qn_gpu_pack_rows(const qn_tiled_matrix *area, const uint8_t *stored, size_t row_bytes, size_t n_rows,
                      size_t first_tile)
{
    qn_gpu_guarded rows = qn_gpu_from(stored, n_rows * row_bytes);
    qn_matmul_launch l;
    qn_assert_ok(qn_matmul_gpu_pack(area, rows.data, row_bytes, n_rows, first_tile, &l));
    qn_gpu_launch(&l.launch, &l.args);
    qn_gpu_synchronize();
    qn_gpu_free(&rows);
}

qn_gpu_guarded qn_persistent_random_tiles(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols, size_t *bytes)
{
    const size_t codes = n_tiles * (n_cols / QN_TILE_COLS) * tiles->bits * QN_FRAGMENT_BYTES;
    qn_assert_ok(qn_matmul_gpu_bytes(tiles, n_tiles, n_cols, bytes));
    uint16_t *data = qn_xcalloc(*bytes / 2, sizeof *data);
    for (size_t i = 0; i < *bytes / 2; i++)
        data[i] = tiles->bits != 16 && i < codes / 2 ? (uint16_t)qn_random()
                                                     : (uint16_t)(qn_f32_to_f16(0.01f) ^ (qn_random() & 0x8000));
    const qn_gpu_guarded g = qn_gpu_from(data, *bytes);
    free(data);
    return g;
}
