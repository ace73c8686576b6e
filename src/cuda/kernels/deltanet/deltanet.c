/* Launches of the Gated DeltaNet kernels: checks of arguments, kernel variants, grids. */
#include "cuda/kernels/deltanet/deltanet.h"

#include "quern/kernels.h"

#include "cuda/kernels/deltanet/open_few.h"
#include "cuda/kernels/variants.h"
#include "cuda/kernels/deltanet/variants.def"

enum { MAX_BLOCKS = 65535, MAX_DIM = QN_GDN_MAX_HEAD, DIM_UNIT = 16 };

static qn_status check_dims(size_t head_k, size_t head_v)
{
    if (head_k == 0 || head_k > MAX_DIM || head_k % DIM_UNIT || head_v == 0 || head_v > MAX_DIM || head_v % DIM_UNIT)
        return qn_fail(QN_ERR_INVALID,
                       "delta rule with keys of %zu and values of %zu: expected multiples of %d up to %d", head_k,
                       head_v, DIM_UNIT, MAX_DIM);
    return QN_OK;
}

/* Sets the variant of the kernels around the chunk kernels: convolution, norm, recurrence. */
static qn_status variant_of(size_t head_k, size_t head_v, uint32_t dtype, qn_gpu_variant *variant)
{
    QN_TRY(check_dims(head_k, head_v));
    *variant = QN_GPU_VARIANT(step, (uint32_t)head_k, (uint32_t)head_v, dtype == QN_DTYPE_BF16, dtype == QN_DTYPE_F16);
    return QN_OK;
}

static qn_status check_heads(uint32_t k_heads, uint32_t v_heads)
{
    if (k_heads == 0 || v_heads == 0 || v_heads % k_heads || v_heads > MAX_BLOCKS / 4)
        return qn_fail(QN_ERR_INVALID,
                       "delta rule with %u key heads and %u value heads: expected a multiple, at most %d", k_heads,
                       v_heads, MAX_BLOCKS / 4);
    return QN_OK;
}

static qn_status check_grid(const char *what, size_t n)
{
    if (n == 0 || n > MAX_BLOCKS)
        return qn_fail(QN_ERR_INVALID, "delta rule over %zu %s: expected 1 to %d in one launch", n, what, MAX_BLOCKS);
    return QN_OK;
}

static qn_status check_stride(const char *what, uint32_t stride, size_t row)
{
    if (stride < row)
        return qn_fail(QN_ERR_INVALID, "rows of %s are %u elements apart, and have %zu", what, stride, row);
    return QN_OK;
}

static size_t width_of(uint32_t k_heads, uint32_t v_heads, size_t head_k, size_t head_v)
{
    return 2 * k_heads * head_k + v_heads * head_v;
}

qn_status qn_gdn_gpu_check_shape(const qn_gdn_chunk_args *a)
{
    QN_TRY(check_dims(a->head_k, a->head_v));
    QN_TRY(check_heads(a->k_heads, a->v_heads));
    return check_grid("sequences", a->sequences);
}

static qn_status check_chunk_args(const qn_gdn_chunk_args *a)
{
    qn_status status = qn_gdn_gpu_check_shape(a);
    if (!status)
        status = check_stride("q", a->q_stride, a->k_heads * (size_t)a->head_k);
    if (!status)
        status = check_stride("k", a->k_stride, a->k_heads * (size_t)a->head_k);
    if (!status)
        status = check_stride("v", a->v_stride, (size_t)a->v_heads * a->head_v);
    if (!status)
        status = check_stride("o", a->o_stride, (size_t)a->v_heads * a->head_v);
    if (!status)
        status = check_stride("g", a->g_stride, a->v_heads);
    if (!status)
        status = check_stride("beta", a->beta_stride, a->v_heads);
    if (!status && a->state_type == QN_GDN_STATE_PLANES && a->transposed_states)
        status =
            qn_fail(QN_ERR_INVALID, "delta rule over states in planes that are transposed: expected [head_v, head_k]");
    return status;
}

/* ---- Chunks: the division into pieces ---- */

/* Chunks that the start of a piece in an average head needs: log2 of its decay in a chunk is near -14. */
enum { WARM_UP = 3 };

/* Used only to choose a division: the probability that a call has heads that never forget their state, and the inverse
 * of the fraction of such heads then. Microseconds on an H200: of a chunk in a block of 1 and of 2 slices, in
 * qn_gdn_advance and in qn_gdn_span_effects; of the start of a block, and of another span in a block; of the two
 * additional launches, which end at once where nothing is to be composed; of a piece in qn_gdn_compose. */
static const double memory_probability = 0.125;
static const size_t heads_per_memory = 4;
static const double chunk_times[] = { 1.5, 2.3 }, effect_times[] = { 1.2, 1.65 };
static const double block_time = 5, span_time = 3, launch_time = 6, compose_time = 2.5;

static size_t divide_up(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

/* Returns the number of thread blocks for `rows` rows of a state. */
static size_t blocks_of(size_t rows, uint32_t slices)
{
    return divide_up(rows, slices * QN_GDN_SLICE);
}

static size_t padded_k(const qn_gdn_chunk_args *a)
{
    return QN_GDN_PADDED(a->head_k);
}

static size_t tokens_of(const qn_gdn_chunk_args *a)
{
    return a->cu_seqlens ? a->tokens : (size_t)a->tokens * a->sequences;
}

/* The number of indices of chunks. */
static size_t count_indices(const qn_gdn_chunk_args *a)
{
    if (a->cu_seqlens)
        return a->tokens / QN_GDN_CHUNK + a->sequences;
    return a->sequences * (a->tokens ? divide_up(a->tokens, QN_GDN_CHUNK) : 1);
}

/* Estimates the number of MMAs of a chunk, relative to keys of two tiles: three with each tile of the keys, two with
 * matrices of the chunk. */
static double chunk_work(const qn_gdn_chunk_args *a)
{
    return (3.0 * (double)padded_k(a) / 64 + 2) / 8;
}

static double waves_time(size_t blocks, size_t n_sms, double chunks, double chunk_time)
{
    return (double)divide_up(blocks, n_sms) * (block_time + chunks * chunk_time);
}

/* Estimates the time of the chunk kernels with a division of the work, to compare divisions. chunks: those of a head of
 * the longest sequence. */
static double division_time(const qn_gdn_chunk_args *a, const qn_gdn_division *d, size_t chunks, size_t n_sms)
{
    const size_t heads = (size_t)a->sequences * a->v_heads, blocks = blocks_of(a->head_v, d->slices);
    const double work = chunk_work(a), chunk_time = work * chunk_times[d->slices - 1];
    if (!d->pieces)
        return waves_time(heads * blocks, n_sms, (double)chunks, chunk_time);
    const size_t indices = count_indices(a), all = a->sequences * chunks < indices ? a->sequences * chunks : indices;
    const size_t length = divide_up(all * a->v_heads, d->pieces), effect_length = length < chunks ? length : chunks;
    /* Pieces whose number is a multiple of the heads' contain one span each. */
    const size_t spans = d->pieces % heads ? 2 + (length - 1) / chunks : 1;
    const size_t effect_blocks = divide_up(d->pieces * (blocks + blocks_of(padded_k(a), d->slices)), heads_per_memory);
    const double effects = waves_time(effect_blocks, n_sms, (double)effect_length, work * effect_times[d->slices - 1]);
    return launch_time + block_time + (double)(length + WARM_UP) * chunk_time + (double)(spans - 1) * span_time +
           memory_probability * (effects + (double)divide_up(chunks * d->pieces, all * a->v_heads) * compose_time);
}

static bool has_spans(size_t head_k, const qn_gdn_gpu *gpu)
{
    return QN_GDN_PADDED(head_k) <= QN_GDN_MAX_SPAN_KEY && gpu->max_shared_bytes >= QN_GDN_COMPOSE_BYTES(head_k);
}

static uint32_t max_block_slices(size_t head_k)
{
    return QN_GDN_PADDED(head_k) <= QN_GDN_MAX_SPAN_KEY ? QN_GDN_MAX_BLOCK_SLICES : 1;
}

/* The number of blocks that run at a time. */
static size_t max_pieces(size_t head_v, uint32_t slices, const qn_gdn_gpu *gpu)
{
    return gpu->n_sms / blocks_of(head_v, slices);
}

/* The numbers of pieces are multiples of the value heads of a key head. Then blocks read the same k and q at the same
 * time, through L2: in the order of positions, tiled value heads of a key head are k_heads heads apart. */
qn_gdn_division qn_gdn_gpu_divide(const qn_gdn_chunk_args *a, size_t longest, const qn_gdn_gpu *gpu)
{
    const size_t chunks = longest ? divide_up(longest, QN_GDN_CHUNK) : 1, step = a->v_heads / a->k_heads;
    const bool can_compose = has_spans(a->head_k, gpu);
    qn_gdn_division best = { 0, 1 };
    double best_time = division_time(a, &best, chunks, gpu->n_sms);
    for (uint32_t slices = 1; slices <= max_block_slices(a->head_k); slices++)
        for (size_t pieces = 0; pieces == 0 || (can_compose && pieces <= max_pieces(a->head_v, slices, gpu));
             pieces += step) {
            const qn_gdn_division d = { (uint32_t)pieces, slices };
            const double time = division_time(a, &d, chunks, gpu->n_sms);
            if (time <= best_time) {
                best = d;
                best_time = time;
            }
        }
    return best;
}

/* ---- Chunks: workspace and launches ---- */

/* Of the arrays in the workspace. */
enum { ALIGNMENT = 256 };

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Offsets of the arrays. Those after the records are empty if there are no pieces. */
struct workspace {
    size_t records, states, transitions, sources, end;
};

static struct workspace workspace_of(const qn_gdn_chunk_args *a, size_t pieces)
{
    struct workspace w = { 0 };
    w.states = w.records + aligned(count_indices(a) * a->v_heads * QN_GDN_RECORD);
    w.transitions = w.states + aligned(2 * pieces * a->head_v * padded_k(a) * sizeof(float));
    w.sources = w.transitions + aligned(pieces * padded_k(a) * padded_k(a) * sizeof(float));
    w.end = w.sources + aligned(pieces * sizeof(uint32_t));
    return w;
}

size_t qn_gdn_gpu_workspace_bytes(const qn_gdn_chunk_args *a, const qn_gdn_division *d)
{
    return workspace_of(a, d->pieces).end;
}

size_t qn_gdn_gpu_max_workspace_bytes(const qn_gdn_chunk_args *a, const qn_gdn_gpu *gpu)
{
    return workspace_of(a, has_spans(a->head_k, gpu) ? max_pieces(a->head_v, QN_GDN_MAX_BLOCK_SLICES, gpu) : 0).end;
}

static void place_workspace(qn_gdn_chunk_args *a, const qn_gdn_division *d, uint64_t workspace)
{
    const struct workspace w = workspace_of(a, d->pieces);
    a->pieces = d->pieces;
    a->chunks = (uint32_t)count_indices(a);
    a->records = workspace + w.records;
    a->states = workspace + w.states;
    a->transitions = workspace + w.transitions;
    a->sources = workspace + w.sources;
}

static qn_status check_chunks(const qn_gdn_chunk_args *a, const qn_gdn_division *d, uint64_t workspace)
{
    const size_t tokens = tokens_of(a);
    QN_TRY(check_chunk_args(a));
    if (a->dtype != QN_DTYPE_BF16 && a->dtype != QN_DTYPE_F16)
        return qn_fail(QN_ERR_INVALID, "delta rule over chunks with data type %u: expected %d (f16) or %d (bf16)",
                       a->dtype, (int)QN_DTYPE_F16, (int)QN_DTYPE_BF16);
    if ((a->q | a->k | a->v | a->o | workspace) % 16 || (a->q_stride | a->k_stride | a->v_stride | a->o_stride) % 8)
        return qn_fail(QN_ERR_INVALID,
                       "delta rule over chunks: an address is no multiple of 16, or a stride none of 8 elements");
    if (tokens > INT32_MAX / 2 || (tokens / QN_GDN_CHUNK + a->sequences) * a->v_heads > INT32_MAX / 8)
        return qn_fail(QN_ERR_INVALID, "delta rule over chunks: %zu tokens with %u heads are too many", tokens,
                       a->v_heads);
    if (d->pieces > MAX_BLOCKS)
        return qn_fail(QN_ERR_INVALID, "delta rule over chunks in %u pieces: expected at most %d", d->pieces,
                       MAX_BLOCKS);
    return QN_OK;
}

static qn_launch chunk_launch(const char *function, size_t x, size_t y, size_t z, size_t threads, size_t shared_bytes)
{
    return (qn_launch){ .function = function,
                        .grid = { (uint32_t)(x ? x : 1), (uint32_t)y, (uint32_t)z },
                        .block = { (uint32_t)threads, 1, 1 },
                        .shared_bytes = (uint32_t)shared_bytes,
                        .args_bytes = sizeof(qn_gdn_chunk_args),
                        .pdl = true };
}

bool qn_gdn_gpu_has_chunks(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu)
{
    return head_k % QN_GDN_SLICE == 0 && head_v % QN_GDN_SLICE == 0 &&
           QN_GDN_ADVANCE_BYTES(head_k, 1, 1) <= gpu->max_shared_bytes;
}

/* Chunks in the ring buffer of qn_gdn_advance. */
static qn_status count_stages(const qn_gdn_chunk_args *a, const qn_gdn_division *d, uint32_t max_shared_bytes,
                              uint32_t *n_stages)
{
    for (uint32_t n = 3; n > 0; n--)
        if (QN_GDN_ADVANCE_BYTES(a->head_k, d->slices, n) <= max_shared_bytes) {
            *n_stages = n;
            return QN_OK;
        }
    return qn_fail(QN_ERR_UNSUPPORTED, "delta rule over chunks: %u bytes of shared memory, expected at least %u",
                   max_shared_bytes, QN_GDN_ADVANCE_BYTES(a->head_k, d->slices, 1));
}

qn_status qn_gdn_gpu_chunk(qn_gdn_chunk_args *a, const qn_gdn_division *d, uint32_t max_shared_bytes,
                           uint64_t workspace, qn_gdn_chunk_launches *out)
{
    const uint32_t head_k = a->head_k, f16 = a->dtype == QN_DTYPE_F16;
    uint32_t n_stages = 0;
    QN_TRY(check_chunks(a, d, workspace));
    QN_TRY(count_stages(a, d, max_shared_bytes, &n_stages));
    const size_t shared_bytes = QN_GDN_ADVANCE_BYTES(head_k, d->slices, n_stages),
                 threads = QN_GDN_ADVANCE_THREADS(d->slices), blocks = blocks_of(a->head_v, d->slices);
    place_workspace(a, d, workspace);
    size_t n = 0;
    out->launches[n] = chunk_launch("qn_gdn_prepare", (size_t)a->chunks * a->k_heads, 1, 1, QN_GDN_PREPARE_THREADS,
                                    QN_GDN_PREPARE_BYTES(head_k));
    out->launches[n++].variant = QN_GPU_VARIANT(prepare, head_k, f16);
    if (a->pieces) {
        const size_t heads = (size_t)a->v_heads * a->sequences, of_rows = a->head_v / QN_GDN_COMPOSE_ROWS,
                     of_heads = QN_GDN_COMPOSE_BLOCKS / of_rows;
        out->launches[n] = chunk_launch("qn_gdn_span_effects", blocks * a->pieces, 1, 1, threads, shared_bytes);
        out->launches[n++].variant = QN_GPU_VARIANT(advance, head_k, n_stages, d->slices, 1, f16);
        out->launches[n] = chunk_launch("qn_gdn_compose", of_rows, heads < of_heads ? heads : of_heads, 1,
                                        QN_GDN_COMPOSE_THREADS, QN_GDN_COMPOSE_BYTES(head_k));
        out->launches[n++].variant = QN_GPU_VARIANT(compose, (uint32_t)padded_k(a));
    }
    out->launches[n] =
        chunk_launch("qn_gdn_advance", blocks * (a->pieces ? a->pieces : (size_t)a->v_heads * a->sequences), 1, 1,
                     threads, shared_bytes);
    out->launches[n++].variant = QN_GPU_VARIANT(advance, head_k, n_stages, d->slices, 0, f16);
    out->n = n;
    return QN_OK;
}

/* ---- Token by token, and around the chunk kernels ---- */

static qn_launch step_launch(qn_gpu_variant variant, const char *function, size_t x, size_t y, size_t z, size_t threads,
                             size_t args_bytes)
{
    return (qn_launch){ .variant = variant,
                        .function = function,
                        .grid = { (uint32_t)x, (uint32_t)y, (uint32_t)z },
                        .block = { (uint32_t)threads, 1, 1 },
                        .args_bytes = (uint32_t)args_bytes,
                        .pdl = true };
}

qn_status qn_gdn_gpu_recurrent(const qn_gdn_chunk_args *a, qn_launch *launch)
{
    qn_gpu_variant variant = { 0 };
    QN_TRY(variant_of(a->head_k, a->head_v, a->dtype, &variant));
    QN_TRY(check_chunk_args(a));
    if (a->state_type == QN_GDN_STATE_PLANES)
        return qn_fail(QN_ERR_INVALID, "delta rule token by token over states in planes: expected f32 or bf16");
    *launch =
        step_launch(variant, "qn_gdn_recurrent", (a->head_v + QN_GDN_RECURRENT_VALUES - 1) / QN_GDN_RECURRENT_VALUES,
                    a->v_heads, a->sequences, QN_GDN_RECURRENT_VALUES * QN_GDN_ROW_LANES, sizeof *a);
    return QN_OK;
}

static qn_status check_taps(uint32_t taps)
{
    if (taps == 0 || taps > QN_GDN_MAX_TAPS)
        return qn_fail(QN_ERR_INVALID, "a convolution of %u taps: expected 1 to %d", taps, QN_GDN_MAX_TAPS);
    return QN_OK;
}

qn_status qn_gdn_gpu_conv(const qn_gdn_conv_args *a, size_t head_k, size_t head_v, qn_launch *launch)
{
    qn_gpu_variant variant = { 0 };
    const size_t row_blocks = divide_up(a->rows, QN_GDN_CONV_ROWS),
                 width = width_of(a->k_heads, a->v_heads, head_k, head_v);
    qn_status status = variant_of(head_k, head_v, QN_DTYPE_BF16, &variant);
    if (!status)
        status = check_heads(a->k_heads, a->v_heads);
    if (!status)
        status = check_taps(a->taps);
    if (!status && a->rows < a->taps - 1)
        status = qn_fail(QN_ERR_INVALID, "a convolution of %u taps over %u rows: expected at least %u", a->taps,
                         a->rows, a->taps - 1);
    if (!status)
        status = check_grid("blocks of tokens", row_blocks);
    if (!status)
        status = check_stride("q, k and v", a->qkv_stride, width);
    if (!status)
        status = check_stride("the convolution's result", a->out_stride, width);
    if (status)
        return status;
    *launch = step_launch(variant, "qn_gdn_conv", 2 * a->k_heads + a->v_heads, row_blocks, 1, 128, sizeof *a);
    return QN_OK;
}

qn_status qn_gdn_gpu_norm(const qn_gdn_norm_args *a, size_t head_k, size_t head_v, qn_launch *launch)
{
    qn_gpu_variant variant = { 0 };
    qn_status status = variant_of(head_k, head_v, QN_DTYPE_BF16, &variant);
    if (!status)
        status = check_heads(a->k_heads, a->v_heads);
    if (!status)
        status = check_grid("rows", a->rows);
    if (!status)
        status = check_stride("o", a->o_stride, a->v_heads * head_v);
    if (!status)
        status = check_stride("gates", a->gate_stride, a->v_heads * head_v);
    if (!status)
        status = check_stride("the result", a->out_stride, a->v_heads * head_v);
    if (status)
        return status;
    *launch = step_launch(variant, "qn_gdn_norm", (a->v_heads + 3) / 4, a->rows, 1, 128, sizeof *a);
    return QN_OK;
}

/* ---- The open chunk ---- */

/* Checks the arguments of both kernels over open chunks, and fills the launch without its function. */
static qn_status open_launch(qn_gdn_open_args *a, size_t head_k, size_t head_v, const qn_gdn_gpu *gpu,
                             qn_launch *launch)
{
    QN_TRY(check_dims(head_k, head_v));
    QN_TRY(check_heads(a->k_heads, a->v_heads));
    QN_TRY(check_taps(a->taps));
    QN_TRY(check_grid("sequences", a->sequences));
    if (!a->positions && a->sequences > 1)
        return qn_fail(QN_ERR_INVALID, "delta rule over open chunks of %u sequences without their positions",
                       a->sequences);
    if ((a->states | a->open | a->state_stride | a->state_offset | a->open_stride | a->open_offset) % 16)
        return qn_fail(QN_ERR_INVALID,
                       "delta rule over open chunks: an address, stride or offset of slots is no multiple of 16");
    const size_t shared_bytes = QN_GDN_OPEN_BYTES(head_k, head_v, a->taps);
    if (shared_bytes > gpu->max_shared_bytes)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "delta rule over open chunks: %u bytes of shared memory, expected at least %zu",
                       gpu->max_shared_bytes, shared_bytes);
    const qn_recurrent_shape shape = { a->k_heads, a->v_heads, head_k, head_v, a->taps };
    a->layout = qn_gpu_recurrent_layout_of(&shape).open;
    *launch = (qn_launch){ .variant = QN_GPU_VARIANT(open, (uint32_t)head_k, (uint32_t)head_v),
                           .grid = { a->sequences * a->v_heads, 1, 1 },
                           .block = { (uint32_t)QN_GDN_OPEN_THREADS(head_v), 1, 1 },
                           .shared_bytes = (uint32_t)shared_bytes,
                           .args_bytes = sizeof *a,
                           .pdl = true };
    return QN_OK;
}

static qn_status check_rows_of_open(const qn_gdn_open_args *a, size_t head_k, size_t head_v)
{
    QN_TRY(check_stride("q, k and v", a->qkv_stride, width_of(a->k_heads, a->v_heads, head_k, head_v)));
    QN_TRY(check_stride("gates", a->gate_stride, a->v_heads * head_v));
    QN_TRY(check_stride("the result", a->out_stride, a->v_heads * head_v));
    if ((a->qkv | a->gate | a->conv | a->norm) % 16 || (a->qkv_stride | a->gate_stride) % 4)
        return qn_fail(QN_ERR_INVALID, "delta rule over open chunks: an address or stride of q, k and v, gates or "
                                       "weights is no multiple of 16 bytes");
    return QN_OK;
}

qn_status qn_gdn_gpu_open_step(qn_gdn_open_args *a, size_t head_k, size_t head_v, const qn_gdn_gpu *gpu,
                               qn_launch *launch)
{
    QN_TRY(open_launch(a, head_k, head_v, gpu, launch));
    QN_TRY(check_rows_of_open(a, head_k, head_v));
    /* The number of blocks that the device runs at a time; each block has some of the heads. The device keeps 1 KB for
     * each block. */
    const size_t by_shared = (gpu->max_shared_bytes + 1024) / (launch->shared_bytes + 1024);
    const size_t by_registers = QN_GDN_OPEN_SM_BLOCKS(head_k, head_v);
    const size_t at_a_time = gpu->n_sms * (by_shared < by_registers ? by_shared : by_registers);
    if (at_a_time > 0 && launch->grid[0] > at_a_time)
        launch->grid[0] = (uint32_t)at_a_time;
    launch->function = "qn_gdn_open_step";
    return QN_OK;
}

enum { ROW_HEAD = 128 };

bool qn_gdn_gpu_has_open_row(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu)
{
    return head_k == ROW_HEAD && head_v == ROW_HEAD &&
           QN_GDN_ROW_BYTES(ROW_HEAD, ROW_HEAD, QN_GDN_MAX_TAPS) <= gpu->max_shared_bytes;
}

/* Fills the launch of a kernel with a block for each head of a sequence. */
static qn_status open_heads_launch(qn_gdn_open_args *a, const qn_gdn_gpu *gpu, size_t shared_bytes, qn_launch *launch)
{
    QN_TRY(open_launch(a, ROW_HEAD, ROW_HEAD, gpu, launch));
    QN_TRY(check_rows_of_open(a, ROW_HEAD, ROW_HEAD));
    if (shared_bytes > gpu->max_shared_bytes)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "delta rule of few rows over open chunks: %u bytes of shared memory, expected at least %zu",
                       gpu->max_shared_bytes, shared_bytes);
    launch->grid[0] = a->v_heads;
    launch->grid[1] = a->sequences;
    launch->block[0] = QN_GDN_ROW_THREADS;
    launch->shared_bytes = (uint32_t)shared_bytes;
    return QN_OK;
}

qn_status qn_gdn_gpu_open_row(qn_gdn_open_args *a, const qn_gdn_gpu *gpu, qn_launch *launch)
{
    QN_TRY(open_heads_launch(a, gpu, QN_GDN_ROW_BYTES(ROW_HEAD, ROW_HEAD, a->taps), launch));
    launch->variant = (qn_gpu_variant){ .source = &open_row_source };
    launch->function = "qn_gdn_open_row";
    return QN_OK;
}

bool qn_gdn_gpu_has_open_few(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu)
{
    return head_k == ROW_HEAD && head_v == ROW_HEAD &&
           QN_GDN_FEW_BYTES(ROW_HEAD, ROW_HEAD, QN_GDN_MAX_TAPS) <= gpu->max_shared_bytes;
}

qn_status qn_gdn_gpu_open_few(qn_gdn_open_args *a, const qn_gdn_gpu *gpu, qn_launch *launch)
{
    QN_TRY(open_heads_launch(a, gpu, QN_GDN_FEW_BYTES(ROW_HEAD, ROW_HEAD, a->taps), launch));
    launch->variant = (qn_gpu_variant){ .source = &open_few_source };
    launch->function = "qn_gdn_open_few";
    return QN_OK;
}

qn_status qn_gdn_gpu_open_fold(qn_gdn_open_args *a, size_t head_k, size_t head_v, const qn_gdn_gpu *gpu,
                               qn_launch *launch)
{
    QN_TRY(open_launch(a, head_k, head_v, gpu, launch));
    QN_TRY(check_grid("layers", a->layers));
    launch->grid[1] = a->layers;
    launch->function = "qn_gdn_open_fold";
    return QN_OK;
}
