/* Helpers for the checks of the persistent decode kernel. */
#include "cuda_persistent.h"

#include "base/f16.h"

qn_persistent_gpu qn_persistent_device(void)
{
    const qn_cuda_info *info = qn_gpu_info();
    return (qn_persistent_gpu){ info->n_sms, info->max_shared_bytes, info->major, info->cooperative };
}

bool qn_persistent_supported(uint32_t n_rows)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    return qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 1, .n_scales = 2 }, n_rows) &&
           qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 2, .n_scales = 2 }, n_rows) &&
           qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 2, .n_scales = 4 }, n_rows);
}

uint64_t qn_persistent_random_tiles(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols)
{
    const size_t codes = n_tiles * (n_cols / QN_TILE_COLS) * tiles->bits * QN_FRAGMENT_BYTES;
    const uint64_t array = qn_check_tiles(tiles, n_tiles, n_cols);
    const size_t n = qn_gpu_bytes(array) / 2, mark = qn_mark();
    uint16_t *data = qn_new(n, sizeof *data);
    for (size_t i = 0; i < n; i++)
        data[i] = tiles->bits != 16 && i < codes / 2 ? (uint16_t)qn_random()
                                                     : (uint16_t)(qn_f32_to_f16(0.01f) ^ (qn_random() & 0x8000));
    qn_gpu_write(array, data, n * sizeof *data);
    qn_release_to(mark);
    return array;
}

void qn_persistent_set(qn_persistent_gemv *p, const qn_tile_layout *tiles, uint64_t address, size_t n_tiles,
                       size_t n_cols, uint32_t n_rows)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    p->n_cols = (uint32_t)n_cols;
    p->n_tiles = (uint32_t)n_tiles;
    p->n_k_tiles = (uint32_t)((n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS);
    p->weights = address;
    qn_assert_ok(qn_persistent_gpu_partition(&gpu, tiles, n_rows, p));
}

uint32_t qn_persistent_sumsq(const qn_persistent_gemv *p, bool of_several)
{
    return of_several ? QN_PERSISTENT_ROWS_SUMSQ(p->n_cols) : p->n_slices;
}

qn_persistent_partials qn_persistent_partials_of(const qn_persistent_gemv *p, bool of_several)
{
    return (qn_persistent_partials){ .data = p->out,
                                     .sumsq = p->sumsq,
                                     .n_partials = p->n_slices,
                                     .stride = p->n_tiles * QN_TILE_ROWS,
                                     .n_sumsq = p->sumsq ? qn_persistent_sumsq(p, of_several) : 0,
                                     .n_cols = p->n_cols,
                                     .eps = QN_PERSISTENT_EPS };
}

uint64_t qn_persistent_link(qn_persistent_phase *phases, size_t n)
{
    for (size_t i = n, next = n; i-- > 0; next = phases[i].kind == QN_PHASE_GEMV ? i : next)
        phases[i].next_gemv = (uint32_t)next;
    return qn_gpu_from(phases, n * sizeof *phases);
}

qn_launch qn_persistent_launch(const qn_tile_layout *tiles, uint32_t n_rows)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    qn_launch launch;
    qn_assert_ok(qn_persistent_gpu_launch(&gpu, tiles, n_rows, &launch));
    return launch;
}

uint64_t qn_persistent_barrier(void)
{
    return qn_gpu_from(&(uint32_t){ 0 }, sizeof(uint32_t));
}

void qn_persistent_expect_barrier(uint64_t barrier)
{
    const uint32_t *arrived = qn_gpu_read(barrier);
    qn_expect(*arrived == 0, "the barrier counter is %u after the launch, expected 0", *arrived);
}

double qn_persistent_seconds(const qn_launch *launch, const qn_persistent_args *args, size_t n)
{
    return qn_gpu_seconds_of(&(qn_gpu_timed){ .launch = *launch, .args = args }, 1, n);
}
