/* Encodes a tensor in pieces of whole rows. Threads take chunks of a piece; each chunk is read by the thread that
 * encodes it. The first thread writes the previous piece before it takes chunks, so that writing and encoding
 * overlap. */
#include "convert/encode.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/real.h"
#include "base/team.h"
#include "quant/quant_kernels.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* A chunk's bytes fit in L2, a block's floats in L1. */
enum { PIECE_WEIGHTS = 1 << 22, CHUNK_WEIGHTS = 1 << 16, BLOCK_WEIGHTS = 4096, GROUP = 128, SAMPLED_CHUNKS = 16 };

struct scratch {
    uint8_t *raw, *ordered; /* a chunk as read, and with its columns reordered */
};

struct qn_encoder {
    qn_team *team;
    qn_quant_kernels kernels;
    struct scratch *scratch; /* one per thread */
    uint8_t *memory;
    uint8_t *pieces[2];
    size_t pending; /* bytes of pieces[current ^ 1] still to be written */
    int current;    /* the piece that is encoded; both change between passes, on the calling thread */
};

enum failure { NO_FAILURE, READ_FAILURE, NONFINITE_WEIGHT, LARGE_WEIGHT };

/* One piece, or the chunks of a classification. All threads of the team read it during a pass; they write only the
 * atomic members, and thread-own parts of `out`. write_status and write_error are written by the thread of item 0. */
struct pass {
    qn_encoder *encoder;
    const qn_target *target;
    qn_type_info from, to;      /* the target's types, with the CPU's variants; `to` only when encoding */
    qn_pack_fn *pack;           /* for blocks that need no conversion, or NULL */
    qn_gguf_writer *writer;     /* destination of the previous piece; NULL: none is pending */
    uint8_t *out;               /* NULL: classify only */
    uint64_t first_row, n_rows; /* of the piece */
    uint64_t stride;            /* between the first rows of chunks */
    uint64_t chunk_rows;
    size_t n_chunks;
    atomic_uint kind;       /* the largest qn_weight_kind */
    atomic_uint difference; /* the bits of a non-negative float */
    atomic_int failure, error;
    _Atomic uint64_t failed_row;
    qn_status write_status;
    char write_error[QN_ERROR_TEXT_MAX]; /* a thread's own text of an error is not the caller's */
};

static uint64_t chunk_rows_of(const qn_target *t)
{
    return t->columns >= CHUNK_WEIGHTS ? 1 : CHUNK_WEIGHTS / t->columns;
}

qn_status qn_encoder_create(const qn_targets *targets, int n_threads, qn_encoder **out)
{
    qn_encoder *e;
    size_t chunk_bytes = CHUNK_WEIGHTS * sizeof(float), piece_bytes = PIECE_WEIGHTS * sizeof(float);
    *out = NULL;
    for (size_t i = 0; i < targets->n; i++) {
        const size_t row_bytes = (size_t)targets->at[i].columns * sizeof(float);
        chunk_bytes = row_bytes > chunk_bytes ? row_bytes : chunk_bytes;
        piece_bytes = row_bytes > piece_bytes ? row_bytes : piece_bytes;
    }
    unsigned features;
    QN_TRY(qn_cpu_features(&features));
    QN_TRY(qn_alloc(&e, 1, sizeof *e, "encoder"));
    qn_quant_kernels_init(&e->kernels, features);
    qn_status status = qn_team_create(n_threads, &e->team);
    if (!status)
        status = qn_alloc(&e->scratch, (size_t)n_threads, sizeof *e->scratch, "buffers of threads");
    if (!status)
        status = qn_alloc(&e->memory, (size_t)n_threads, 2 * chunk_bytes, "buffers of threads");
    for (int i = 0; !status && i < 2; i++)
        status = qn_alloc(&e->pieces[i], piece_bytes, 1, "piece of a tensor");
    for (int i = 0; !status && i < n_threads; i++) {
        e->scratch[i].raw = e->memory + (size_t)i * 2 * chunk_bytes;
        e->scratch[i].ordered = e->scratch[i].raw + chunk_bytes;
    }
    if (status)
        qn_encoder_free(e);
    else
        *out = e;
    return status;
}

void qn_encoder_free(qn_encoder *e)
{
    if (!e)
        return;
    qn_team_free(e->team);
    qn_free(e->scratch);
    qn_free(e->memory);
    qn_free(e->pieces[0]);
    qn_free(e->pieces[1]);
    qn_free(e);
}

/* Records the first failure of a pass; later ones are dropped. Any thread. */
static void fail_at(struct pass *p, enum failure failure, int error, uint64_t row)
{
    int none = NO_FAILURE;
    if (atomic_compare_exchange_strong(&p->failure, &none, (int)failure)) {
        atomic_store(&p->error, error);
        atomic_store(&p->failed_row, row);
    }
}

/* Raises a maximum. Any thread. */
static void raise_to(atomic_uint *value, unsigned at_least)
{
    unsigned old = atomic_load(value);
    while (old < at_least && !atomic_compare_exchange_weak(value, &old, at_least))
        ;
}

/* Reads the source's rows of target rows [row, row + n), adjacent ones in one call. */
static bool read_rows(struct pass *p, uint64_t row, uint64_t n, uint8_t *raw)
{
    const qn_target *t = p->target;
    const size_t row_bytes = (size_t)t->columns * t->from->block_bytes;
    for (uint64_t i = 0, run; i < n; i += run) {
        const uint64_t from = qn_reorder_source(&t->row_order, row + i);
        for (run = 1; i + run < n && qn_reorder_source(&t->row_order, row + i + run) == from + run;)
            run++;
        const int error = t->packed ? qn_packed_read(t->packed, from, run, (float *)(void *)(raw + i * row_bytes))
                                    : qn_safetensors_read(t->source->file, t->source->tensor, from * row_bytes,
                                                          raw + i * row_bytes, (size_t)run * row_bytes);
        if (error) {
            fail_at(p, READ_FAILURE, error, row + i);
            return false;
        }
    }
    return true;
}

/* Copies rows with the target's order of columns. */
static void order_columns(const qn_target *t, uint64_t n_rows, const uint8_t *raw, uint8_t *ordered)
{
    const size_t size = t->from->block_bytes, row_bytes = (size_t)t->columns * size;
    for (uint64_t r = 0; r < n_rows; r++)
        for (uint64_t c = 0; c < t->columns; c += t->column_order.unit)
            memcpy(ordered + r * row_bytes + c * size,
                   raw + r * row_bytes + qn_reorder_source(&t->column_order, c) * size, t->column_order.unit * size);
}

static void change_values(qn_target_change change, float *x, size_t n)
{
    if (change == QN_TARGET_ADD_ONE)
        for (size_t i = 0; i < n; i++)
            x[i] += 1.0f;
    else if (change == QN_TARGET_MINUS_EXP)
        for (size_t i = 0; i < n; i++)
            x[i] = -(float)qn_real_exp((double)x[i]);
}

/* Returns a float's magnitude as an integer: the order of magnitudes is that of their bits, and integer loops are
 * vectorised. */
static int32_t magnitude(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

static bool is_f16(float x)
{
    uint8_t half[2];
    float back;
    const qn_type_info *f16 = qn_type_find(QN_TYPE_F16);
    f16->from_float(&x, 1, half);
    f16->to_float(half, 1, &back);
    return back == x;
}

/* Returns the kind of the values in a group of GROUP weights. */
static qn_weight_kind kind_of_group(const float *x)
{
    int32_t largest = 0;
    uint32_t n_largest = 0, n_zero = 0, n_double = 0, n_half = 0;
    for (size_t i = 0; i < GROUP; i++)
        largest = magnitude(x[i]) > largest ? magnitude(x[i]) : largest;
    float d, half;
    memcpy(&d, &largest, sizeof d);
    half = 0.5f * d;
    for (size_t i = 0; i < GROUP; i++) {
        n_largest += magnitude(x[i]) == largest;
        n_zero += magnitude(x[i]) == 0;
        n_double += x[i] == d;
        n_half += magnitude(x[i]) == magnitude(half);
    }
    if (largest == 0)
        return QN_WEIGHTS_BINARY;
    if (is_f16(d) && n_largest == GROUP)
        return QN_WEIGHTS_BINARY;
    if (is_f16(d) && n_largest + n_zero == GROUP)
        return QN_WEIGHTS_TERNARY;
    return is_f16(half) && n_double + n_zero + n_half == GROUP ? QN_WEIGHTS_FOUR : QN_WEIGHTS_ORDINARY;
}

static void classify_block(struct pass *p, const float *x, size_t n)
{
    unsigned kind = QN_WEIGHTS_BINARY;
    for (size_t i = 0; i < n && kind < QN_WEIGHTS_ORDINARY; i += GROUP) {
        const unsigned group = kind_of_group(x + i);
        kind = group > kind ? group : kind;
    }
    raise_to(&p->kind, kind);
}

/* Returns the bits of the largest difference between weights and their blocks, for a type without factors and
 * offsets. */
static uint32_t largest_difference(const struct pass *p, const uint8_t *blocks, const float *x, size_t n)
{
    uint8_t codes[BLOCK_WEIGHTS];
    float scales[BLOCK_WEIGHTS / QN_QUANT_GROUP];
    p->to.unpack(blocks, n / p->to.block_weights, codes, scales, NULL, NULL);
    return p->encoder->kernels.largest_difference(x, codes, scales, p->to.zero_point, n);
}

static void encode_block(struct pass *p, const float *x, size_t n, uint8_t *out)
{
    p->to.from_float(x, n / p->to.block_weights, out);
    if (p->target->lossless)
        raise_to(&p->difference, largest_difference(p, out, x, n));
}

/* Returns the place of weight i of a row in the output. */
static uint8_t *out_at(const struct pass *p, uint64_t row, size_t i)
{
    const qn_target *t = p->target;
    return p->out + ((row - p->first_row) * t->columns + i) / t->to->block_weights * t->to->block_bytes;
}

/* Reads, reorders and encodes rows [row, row + n_rows) of a tensor, or finds the kinds of their groups. */
static void encode_chunk(struct pass *p, const struct scratch *scratch, uint64_t row, uint64_t n_rows)
{
    const qn_target *t = p->target;
    const qn_type_info *from = &p->from;
    const size_t n = (size_t)(n_rows * t->columns);
    const uint8_t *raw = scratch->raw;
    if (!read_rows(p, row, n_rows, scratch->raw))
        return;
    if (t->column_order.outer) {
        order_columns(t, n_rows, scratch->raw, scratch->ordered);
        raw = scratch->ordered;
    }
    for (size_t i = 0; i < n && !atomic_load(&p->failure); i += BLOCK_WEIGHTS) {
        float x[BLOCK_WEIGHTS];
        const size_t now = n - i < BLOCK_WEIGHTS ? n - i : BLOCK_WEIGHTS;
        if (p->pack && p->pack(from->type, raw + i * from->block_bytes, now / GROUP, out_at(p, row, i)) == now / GROUP)
            continue;
        const size_t bad = from->find_nonfinite(raw + i * from->block_bytes, now);
        if (bad < now) {
            fail_at(p, NONFINITE_WEIGHT, 0, row + (i + bad) / t->columns);
            return;
        }
        from->to_float(raw + i * from->block_bytes, now, x);
        change_values(t->change, x, now);
        if (p->out && !qn_type_reaches(t->to, x, now))
            fail_at(p, LARGE_WEIGHT, 0, row + i / t->columns);
        else if (p->out)
            encode_block(p, x, now, out_at(p, row, i));
        else
            classify_block(p, x, now);
    }
}

/* Writes what was encoded last, and keeps the error text: another thread reports it. */
static void write_pending(struct pass *p)
{
    const qn_encoder *e = p->encoder;
    p->write_status = qn_gguf_writer_data(p->writer, e->pieces[e->current ^ 1], e->pending);
    if (p->write_status)
        memcpy(p->write_error, qn_error_text(), sizeof p->write_error);
}

/* Does items of a pass, on a thread of the team: item 0 writes what was encoded last, the others are chunks. */
static void work(void *context, size_t begin, size_t end, int thread)
{
    struct pass *p = context;
    if (begin == 0 && p->writer)
        write_pending(p);
    for (size_t c = begin ? begin - 1 : 0; c < end - 1; c++) {
        const uint64_t at = c * p->stride, left = p->n_rows - at;
        if (atomic_load(&p->failure) || (!p->out && atomic_load(&p->kind) == QN_WEIGHTS_ORDINARY))
            return;
        encode_chunk(p, &p->encoder->scratch[thread], p->first_row + at, left < p->chunk_rows ? left : p->chunk_rows);
    }
}

/* Runs a pass on all threads of the team, and reports its first failure. */
static qn_status run(struct pass *p)
{
    const qn_target *t = p->target;
    qn_team_divide(p->encoder->team, 1 + p->n_chunks, 1, work, p);
    if (p->write_status)
        return qn_fail(p->write_status, "%s", p->write_error);
    switch ((enum failure)atomic_load(&p->failure)) {
    case READ_FAILURE:
        return qn_fail(QN_ERR_IO, "%s: tensor '%s', row %llu: %s", qn_safetensors_path(t->source->file),
                       t->source->name, (unsigned long long)atomic_load(&p->failed_row),
                       atomic_load(&p->error) == ENODATA ? "the file has become shorter"
                                                         : strerror(atomic_load(&p->error)));
    case NONFINITE_WEIGHT:
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s', row %llu contains an infinity or NaN",
                       qn_safetensors_path(t->source->file), t->source->name,
                       (unsigned long long)atomic_load(&p->failed_row));
    case LARGE_WEIGHT:
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' has a weight that is too large for %s",
                       qn_safetensors_path(t->source->file), t->source->name, t->to->name);
    case NO_FAILURE: break;
    }
    return QN_OK;
}

static qn_status load(const qn_target *t)
{
    return t->packed ? qn_packed_load(t->packed) : QN_OK;
}

static void unload(const qn_target *t)
{
    if (t->packed)
        qn_packed_unload(t->packed);
}

qn_status qn_encoder_classify(qn_encoder *e, const qn_target *t, bool whole, qn_weight_kind *kind)
{
    *kind = QN_WEIGHTS_ORDINARY;
    if (t->stays_f32 || t->columns % GROUP)
        return QN_OK;
    const uint64_t rows = whole ? chunk_rows_of(t) : 1, n = (t->rows + rows - 1) / rows;
    struct pass p = { .encoder = e, .target = t, .n_rows = t->rows, .chunk_rows = rows, .stride = rows };
    p.from = qn_quant_type(&e->kernels, t->from);
    p.n_chunks = (size_t)n;
    if (!whole && n > SAMPLED_CHUNKS) {
        p.stride = n / SAMPLED_CHUNKS;
        p.n_chunks = SAMPLED_CHUNKS;
    }
    QN_TRY(load(t));
    const qn_status status = run(&p);
    unload(t);
    QN_TRY(status);
    *kind = (qn_weight_kind)atomic_load(&p.kind);
    return QN_OK;
}

/* Returns the function that stores blocks of a lossless target directly, without conversion to f32; NULL if there is
 * none. */
static qn_pack_fn *find_pack(const qn_encoder *e, const qn_target *t)
{
    if (!t->lossless || t->change != QN_TARGET_KEEP || (t->from->type != QN_TYPE_BF16 && t->from->type != QN_TYPE_F16))
        return NULL;
    return t->to->type == QN_TYPE_Q1_0     ? e->kernels.pack_q1_0
           : t->to->type == QN_TYPE_PTQ1_0 ? e->kernels.pack_ptq1_0
                                           : NULL;
}

static qn_status write_values(qn_encoder *e, const qn_target *t, qn_gguf_writer *writer)
{
    QN_TRY(qn_encoder_flush(e, writer));
    return qn_gguf_writer_data(writer, t->values, (size_t)t->rows * sizeof *t->values);
}

static qn_status write_rows(qn_encoder *e, const qn_target *t, qn_gguf_writer *writer, qn_encoder_report report,
                            void *user, float *difference)
{
    const uint64_t chunk = chunk_rows_of(t), chunks = PIECE_WEIGHTS / (chunk * t->columns),
                   rows = chunk * (chunks ? chunks : 1);
    const uint64_t row_bytes = t->source->tensor->bytes / t->rows; /* of the source, also if it is packed */
    for (uint64_t row = 0; row < t->rows && *difference == 0; row += rows) {
        const uint64_t n = t->rows - row < rows ? t->rows - row : rows;
        struct pass p = {
            .encoder = e, .target = t, .first_row = row, .n_rows = n, .chunk_rows = chunk, .stride = chunk
        };
        p.from = qn_quant_type(&e->kernels, t->from);
        p.to = qn_quant_type(&e->kernels, t->to);
        p.pack = find_pack(e, t);
        p.writer = e->pending ? writer : NULL;
        p.out = e->pieces[e->current];
        p.n_chunks = (size_t)((n + chunk - 1) / chunk);
        qn_safetensors_prefetch(t->source->file, t->source->tensor, (row + n) * row_bytes, rows * row_bytes);
        QN_TRY(run(&p));
        e->pending = (size_t)(n * t->columns) / t->to->block_weights * t->to->block_bytes;
        e->current ^= 1;
        const unsigned bits = atomic_load(&p.difference);
        memcpy(difference, &bits, sizeof *difference);
        QN_TRY(report(user, n * row_bytes));
    }
    return QN_OK;
}

qn_status qn_encoder_write(qn_encoder *e, const qn_target *t, qn_gguf_writer *writer, qn_encoder_report report,
                           void *user, float *difference)
{
    *difference = 0;
    if (!t->source)
        return write_values(e, t, writer);
    QN_TRY(load(t));
    const qn_status status = write_rows(e, t, writer, report, user, difference);
    unload(t);
    return status;
}

qn_status qn_encoder_flush(qn_encoder *e, qn_gguf_writer *writer)
{
    const size_t bytes = e->pending;
    e->pending = 0;
    return bytes ? qn_gguf_writer_data(writer, e->pieces[e->current ^ 1], bytes) : QN_OK;
}

void qn_encoder_reset(qn_encoder *e)
{
    e->pending = 0;
}
