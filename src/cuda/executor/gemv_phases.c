/* GEMV phases, and the layout of the persistent decode kernel's workspace. */
#include "cuda/executor/gemv_phases.h"

#include "base/memory.h"

enum { ALIGN = 256, MAX_F16_TILES = 32 };

/* ---- GEMVs ---- */

static bool partition_gemv(const qn_cuda_weights *weights, const qn_tile_layout *tiles, uint32_t n_rows,
                           qn_cuda_gemv_phase *gemv)
{
    const qn_cuda_gemm *main = gemv->main, *f16_rows = gemv->f16_rows;
    const qn_plan_rotation *rotation = &weights->common->plan->acts[main->group.acts].rotation;
    if (main->tiled_matrix.n_cols > UINT32_MAX - QN_TILE_COLS ||
        main->tiled_matrix.n_tiles > UINT32_MAX / QN_TILE_ROWS || rotation->block > UINT32_MAX ||
        main->tiled_matrix.n_cols % 32)
        return false;
    gemv->phase = (qn_persistent_gemv){
        .n_cols = (uint32_t)main->tiled_matrix.n_cols,
        .signs = rotation->block ? weights->signs[main->group.acts] : 0,
        .rotation = (uint32_t)rotation->block,
        .weights = main->tiled_matrix.address,
        .n_tiles = (uint32_t)main->tiled_matrix.n_tiles,
        .n_k_tiles = (uint32_t)((main->tiled_matrix.n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS),
        .f16_rows = f16_rows ? f16_rows->tiled_matrix.address : 0,
        .n_f16_tiles = f16_rows ? (uint32_t)f16_rows->tiled_matrix.n_tiles : 0,
    };
    return qn_persistent_gpu_partition(&weights->common->persistent_gpu, tiles, n_rows, &gemv->phase) == QN_OK;
}

bool qn_cuda_find_gemv(const qn_cuda_weights *weights, const qn_tile_layout *tiles, uint32_t n_rows, size_t at,
                       qn_cuda_gemv_phase *out)
{
    const qn_op *op = &weights->common->plan->ops[at];
    const qn_cuda_op *cuda_op = &weights->ops[at];
    *out = (qn_cuda_gemv_phase){ 0 };
    if (op->kind != QN_OP_MATMUL)
        return false;
    for (size_t i = 0; i < cuda_op->n_gemms; i++) {
        const qn_cuda_gemm *gemv = &cuda_op->gemms[i];
        if (qn_cuda_same_tiles(&gemv->tiled_matrix.tiles, tiles) && !out->main)
            out->main = gemv;
        else if (gemv->tiled_matrix.tiles.bits == 16 && !weights->common->plan->acts[gemv->group.acts].rotation.block &&
                 gemv->tiled_matrix.n_tiles <= MAX_F16_TILES && !out->f16_rows)
            out->f16_rows = gemv;
        else
            return false;
    }
    return out->main && partition_gemv(weights, tiles, n_rows, out);
}

/* ---- Workspace ---- */

/* The number of weights that GEMV phases with these tiles would cover, in (row tile, K tile) pairs. */
static uint64_t persistent_k_tiles(const qn_cuda_weights *weights, const qn_tile_layout *tiles)
{
    qn_cuda_gemv_phase gemv;
    uint64_t k_tiles = 0;
    if (!qn_persistent_gpu_supports(&weights->common->persistent_gpu, tiles, 1))
        return 0;
    for (size_t i = 0; i < qn_plan_trunk_ops(weights->common->plan); i++)
        if (qn_cuda_find_gemv(weights, tiles, 1, i, &gemv))
            k_tiles += (uint64_t)gemv.phase.n_tiles * gemv.phase.n_k_tiles;
    return k_tiles;
}

/* Chooses the tile layout of the GEMV phases. All use one: the one that covers most of the model. Without bits: there
 * are no phases, because none are possible or launches are faster. */
static qn_tile_layout choose_tiles(const qn_cuda_weights *weights)
{
    const qn_cuda_common *common = weights->common;
    qn_tile_layout best = { 0 };
    uint64_t largest = 0;
    for (size_t i = 0; i < qn_plan_trunk_ops(weights->common->plan); i++)
        for (size_t p = 0; weights->common->plan->ops[i].kind == QN_OP_MATMUL && p < weights->ops[i].n_gemms; p++) {
            const qn_tile_layout *tiles = &weights->ops[i].gemms[p].tiled_matrix.tiles;
            const uint64_t k_tiles = qn_cuda_same_tiles(tiles, &best) ? 0 : persistent_k_tiles(weights, tiles);
            if (k_tiles > largest) {
                largest = k_tiles;
                best = *tiles;
            }
        }
    if (!common->in_phases &&
        !qn_persistent_gpu_is_faster(&common->persistent_gpu, largest * best.bits * QN_FRAGMENT_BYTES))
        best = (qn_tile_layout){ 0 };
    return best;
}

/* Maxima over all GEMVs of one row and of several, in floats: partials, partials of fp16 rows, widest normalised row,
 * operands. */
struct sizes {
    size_t gemv_partials, f16_rows, x, acts;
};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static struct sizes max_sizes(const qn_cuda_weights *weights, const qn_tile_layout *tiles)
{
    const qn_plan *plan = weights->common->plan;
    const size_t rows = QN_PERSISTENT_MAX_ROWS;
    struct sizes largest = { 0 };
    for (size_t i = 0; i < qn_plan_trunk_ops(plan); i++) {
        qn_cuda_gemv_phase one, several;
        if (plan->ops[i].kind == QN_OP_NORM)
            largest.x = max_size(largest.x, rows * plan->buffers[plan->ops[i].norm.in].width);
        const bool fits[2] = { qn_cuda_find_gemv(weights, tiles, 1, i, &one),
                               qn_cuda_find_gemv(weights, tiles, (uint32_t)rows, i, &several) };
        for (size_t k = 0; k < 2; k++) {
            const qn_persistent_gemv *phase = k ? &several.phase : &one.phase;
            const size_t n = k ? rows : 1;
            if (!fits[k])
                continue;
            largest.gemv_partials =
                max_size(largest.gemv_partials, n * phase->n_slices * (size_t)phase->n_tiles * QN_TILE_ROWS);
            largest.f16_rows =
                max_size(largest.f16_rows, n * phase->n_k_tiles * (size_t)phase->n_f16_tiles * QN_TILE_ROWS);
            largest.acts = max_size(largest.acts, rows * phase->n_k_tiles * (size_t)QN_TILE_COLS);
        }
    }
    return largest;
}

static bool add_floats(uint64_t address, size_t *used, size_t count, uint64_t *at)
{
    size_t bytes;
    *at = address + *used;
    return qn_mul_size(count, sizeof(float), &bytes) && qn_add_size(bytes, ALIGN - 1, &bytes) &&
           qn_add_size(*used, bytes / ALIGN * ALIGN, used);
}

qn_status qn_cuda_persistent_lay_out(const qn_cuda_weights *weights, uint64_t address,
                                     qn_cuda_persistent_workspace *workspace, size_t *bytes)
{
    const qn_attention_shape *h = &weights->common->plan->heads;
    const qn_recurrent_shape *r = &weights->common->plan->recurrent;
    *bytes = 0;
    *workspace = (qn_cuda_persistent_workspace){ .tiles = choose_tiles(weights) };
    if (!workspace->tiles.bits)
        return QN_OK;
    const struct sizes largest = max_sizes(weights, &workspace->tiles);
    const size_t rows = QN_PERSISTENT_MAX_ROWS, splits = rows * h->n_heads * QN_PERSISTENT_MAX_SPLITS;
    bool fits = add_floats(address, bytes, 1, &workspace->barrier) &&
                add_floats(address, bytes, largest.x, &workspace->x) &&
                add_floats(address, bytes, rows * r->n_v_heads * r->head_v, &workspace->heads) &&
                add_floats(address, bytes, splits * h->head_dim, &workspace->partials) &&
                add_floats(address, bytes, splits * 2, &workspace->maxima) &&
                add_floats(address, bytes, largest.acts / 2, &workspace->acts) && /* hi and lo int8 */
                add_floats(address, bytes, largest.acts / QN_ACTS_HILO_COLS, &workspace->acts_scale) &&
                add_floats(address, bytes, largest.f16_rows ? largest.acts : 0, &workspace->acts_f32);
    for (size_t i = 0; i < QN_CUDA_PARTIALS; i++)
        fits = fits && add_floats(address, bytes, largest.gemv_partials, &workspace->gemv_partials[i].data) &&
               add_floats(address, bytes, largest.f16_rows, &workspace->gemv_partials[i].f16_rows) &&
               add_floats(address, bytes, rows * QN_PERSISTENT_MAX_SLICES, &workspace->gemv_partials[i].sumsq);
    return fits ? QN_OK : qn_fail(QN_ERR_MEMORY, "step: %zu partial sums do not fit in memory", largest.gemv_partials);
}
