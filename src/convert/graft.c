/* Joins an MTP block to a model's file: copies the model, with keys that count one more block, and appends the tensors
 * of the block. mtp_head.c finds and checks the block. */
#include "quern/quern.h"

#include "base/append.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/params.h"
#include "base/team.h"
#include "convert/encode.h"
#include "convert/mtp_head.h"
#include "engine/recode.h"
#include "model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char architecture[] = "qwen35"; /* the one that has such blocks */

struct graft {
    const char *model_path, *head_path, *out;
    const qn_type_info *type; /* of matrices; NULL: kept */
    qn_graft_params params;
    qn_gguf *model;
    qn_hparams hparams;
    qn_head head;
    qn_gguf_writer *writer;
    qn_recoder *recoder;
    qn_encoder *encoder;  /* of a checkpoint's block */
    uint64_t done, total; /* bytes of the inputs' tensors, for on_progress */
};

static void log_line(const struct graft *g, const char *format, ...) QN_PRINTF(2, 3);

static void log_line(const struct graft *g, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (g->params.on_log)
        g->params.on_log(g->params.user, line);
}

/* ---- The inputs ---- */

/* Opens the model, and checks it as loading does: a rotation that lists a tensor of the block, or a tensor that nothing
 * uses, is an error. */
static qn_status open_model(struct graft *g)
{
    qn_plan plan;
    QN_TRY(qn_gguf_open(g->model_path, &g->model));
    QN_TRY(qn_model_build(g->model, &g->hparams, &plan));
    qn_plan_free(&plan);
    if (strcmp(g->hparams.architecture, architecture) != 0)
        return qn_fail(QN_ERR_INVALID, "%s: models of the architecture '%s' have no MTP block, expected '%s'",
                       g->model_path, g->hparams.architecture, architecture);
    if (g->hparams.n_blocks != g->hparams.n_layers)
        return qn_fail(QN_ERR_INVALID, "%s: it has an MTP block already, blk.%u", g->model_path,
                       (unsigned)g->hparams.n_layers);
    return QN_OK;
}

static bool is_same_file(qn_file_id id, const char *path)
{
    qn_file_info info;
    return qn_file_describe(path, &info) && qn_file_id_equal(id, info.identity.id);
}

static bool is_file_of(qn_file_id id, const qn_gguf *file)
{
    const char *last = qn_gguf_path(file);
    if (is_same_file(id, last))
        return true;
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const char *path = qn_gguf_tensor_path(file, qn_gguf_tensor_at(file, i));
        if (path != last && is_same_file(id, path))
            return true;
        last = path;
    }
    return false;
}

/* The inputs are read while the target is written, and may be all that there is of the model. */
static qn_status check_target(const struct graft *g)
{
    qn_file_info info;
    if (!qn_file_describe(g->out, &info))
        return QN_OK;
    bool same = is_file_of(info.identity.id, g->model) || (g->head.file && is_file_of(info.identity.id, g->head.file));
    for (size_t i = 0; i < g->head.checkpoint.n_files && !same; i++)
        same = is_same_file(info.identity.id, qn_safetensors_path(g->head.checkpoint.files[i]));
    return same ? qn_fail(QN_ERR_INVALID, "%s: is an input, expected another file to write", g->out) : QN_OK;
}

/* ---- Keys ---- */

/* Writes an integer of the size of a key's type, little-endian. */
static void set_integer(uint8_t *bytes, size_t size, uint64_t value)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = i < sizeof value ? (uint8_t)(value >> 8 * i) : 0;
}

/* Adds a key with another value, of the type that it has. */
static qn_status add_integer(const struct graft *g, const qn_gguf_kv *kv, uint64_t value)
{
    uint8_t bytes[8] = { 0 };
    qn_gguf_kv changed = *kv;
    set_integer(bytes, kv->bytes, value);
    changed.data = bytes;
    /* A type of a byte holds it, unless the model has 128 layers and more. */
    const uint64_t limit = kv->bytes >= 4 ? INT32_MAX : kv->bytes == 2 ? INT16_MAX : INT8_MAX;
    return value <= limit ? qn_gguf_writer_copy(g->writer, &changed)
                          : qn_fail(QN_ERR_UNSUPPORTED, "%s: key '%.*s' of %zu bytes does not hold %" PRIu64,
                                    g->model_path, (int)kv->key.length, kv->key.data, kv->bytes, value);
}

/* Adds an array of one element a layer with one more, for the block. */
static qn_status add_longer(const struct graft *g, const qn_gguf_kv *kv, uint32_t value)
{
    const size_t size = kv->bytes / (size_t)kv->count;
    uint8_t *bytes;
    QN_TRY(qn_alloc(&bytes, kv->bytes + size, 1, "array of layers"));
    qn_gguf_kv longer = *kv;
    memcpy(bytes, kv->data, kv->bytes);
    set_integer(bytes + kv->bytes, size, value);
    longer.data = bytes;
    longer.bytes += size;
    longer.count++;
    const qn_status status = qn_gguf_writer_copy(g->writer, &longer);
    qn_free(bytes);
    return status;
}

/* Whether a key is "qwen35.NAME". */
static bool is_key(const qn_gguf_kv *kv, const char *name)
{
    const size_t n = sizeof architecture - 1, m = strlen(name);
    return kv->key.length == n + 1 + m && memcmp(kv->key.data, architecture, n) == 0 && kv->key.data[n] == '.' &&
           memcmp(kv->key.data + n + 1, name, m) == 0;
}

static qn_status copy_key(const struct graft *g, const qn_gguf_kv *kv)
{
    const struct {
        const char *name;
        uint32_t value; /* of the block, which has attention */
    } arrays[] = { { "attention.recurrent_layers", 0 },
                   { "attention.head_count", g->hparams.n_heads },
                   { "attention.head_count_kv", g->hparams.n_kv_heads },
                   { "feed_forward_length", g->hparams.n_ff } };
    if (is_key(kv, "block_count"))
        return add_integer(g, kv, (uint64_t)g->hparams.n_layers + 1);
    if (is_key(kv, "nextn_predict_layers"))
        return add_integer(g, kv, 1);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (is_key(kv, arrays[i].name) && kv->type == QN_GGUF_ARRAY)
            return add_longer(g, kv, arrays[i].value); /* the model was built: it has one element a layer */
    return qn_gguf_writer_copy(g->writer, kv);
}

static qn_status write_keys(const struct graft *g)
{
    bool has_count = false;
    for (size_t i = 0; i < qn_gguf_n_kv(g->model); i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(g->model, i);
        has_count |= is_key(kv, "nextn_predict_layers");
        if (!qn_gguf_is_split_key(kv->key)) /* the output is one file */
            QN_TRY(copy_key(g, kv));
    }
    char key[64];
    snprintf(key, sizeof key, "%s.nextn_predict_layers", architecture);
    return has_count ? QN_OK : qn_gguf_writer_add_u32(g->writer, key, 1);
}

/* ---- Tensors ---- */

static qn_status write_header(struct graft *g)
{
    QN_TRY(qn_gguf_writer_set_alignment(g->writer, g->model));
    QN_TRY(write_keys(g));
    for (size_t i = 0; i < qn_gguf_n_tensors(g->model); i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(g->model, i);
        QN_TRY(qn_gguf_writer_add_tensor(g->writer, t->name, t->stored_type, t->n_dims, t->dims, t->bytes));
        g->total += t->bytes;
    }
    for (size_t i = 0; i < g->head.n; i++) {
        const qn_head_tensor *t = &g->head.tensors[i];
        const qn_string name = { t->name, strlen(t->name) };
        QN_TRY(qn_gguf_writer_add_tensor(g->writer, name, (uint32_t)t->to->type, t->n_dims, t->dims, t->bytes));
        g->total += t->source_bytes;
    }
    return qn_gguf_writer_begin_data(g->writer);
}

static qn_status report(void *user, uint64_t bytes)
{
    struct graft *g = user;
    g->done += bytes;
    if (g->params.on_progress && !g->params.on_progress(g->params.user, (size_t)g->done, (size_t)g->total))
        return qn_fail(QN_ERR_CANCELLED, "%s: cancelled, nothing was written", g->out);
    return QN_OK;
}

static qn_status write_block(struct graft *g)
{
    for (size_t i = 0; i < g->head.n; i++) {
        const qn_head_tensor *t = &g->head.tensors[i];
        float difference;
        QN_TRY(t->tensor ? qn_recode_tensor(g->recoder, g->head.file, t->tensor, t->to, false, NULL)
                         : qn_encoder_write(g->encoder, t->target, g->writer, report, g, &difference));
    }
    return g->encoder ? qn_encoder_flush(g->encoder, g->writer) : QN_OK;
}

static qn_status check_unchanged(const struct graft *g)
{
    QN_TRY(qn_gguf_check_unchanged(g->model));
    return g->head.file ? qn_gguf_check_unchanged(g->head.file) : qn_checkpoint_check_unchanged(&g->head.checkpoint);
}

/* ---- All ---- */

static void log_block(const struct graft *g)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->head.n; i++) {
        const qn_head_tensor *t = &g->head.tensors[i];
        bytes += t->bytes;
        if (g->type && t->n_dims > 1 && t->to != g->type)
            log_line(g, "%s: the row length %" PRIu64 " is not a multiple of the block size %zu (%s): %s instead",
                     t->name, t->dims[0], g->type->block_weights, g->type->name, t->to->name);
    }
    log_line(g, "joined the MTP block as blk.%u: %zu tensors, %.3g MB", (unsigned)g->hparams.n_layers, g->head.n,
             (double)bytes * 1e-6);
    if (qn_gguf_find(g->model, "prism.hadamard.version"))
        log_line(g, "the model's matrices are rotated, those of the block are not");
}

static qn_status graft(struct graft *g)
{
    QN_TRY(open_model(g));
    QN_TRY(qn_head_open(&g->head, g->head_path, &(qn_trunk){ g->model, &g->hparams }, g->type));
    QN_TRY(check_target(g));
    QN_TRY(qn_gguf_writer_create(g->out, &g->writer));
    QN_TRY(qn_recoder_create(g->writer, g->params.n_threads, report, g, &g->recoder));
    if (!g->head.file)
        QN_TRY(qn_encoder_create(&g->head.targets, g->params.n_threads ? g->params.n_threads : qn_cpu_best_threads(),
                                 &g->encoder));
    QN_TRY(write_header(g));
    QN_TRY(report(g, 0));
    for (size_t i = 0; i < qn_gguf_n_tensors(g->model); i++)
        QN_TRY(qn_recode_copy(g->recoder, g->model, qn_gguf_tensor_at(g->model, i)));
    QN_TRY(write_block(g));
    QN_TRY(check_unchanged(g));
    QN_TRY(qn_gguf_writer_finish(g->writer));
    log_block(g);
    return QN_OK;
}

/* Finds the type of matrices. Ordinary weights do not survive types of 1 or 2 bits. */
static qn_status find_type(const char *name, const qn_type_info **type)
{
    *type = NULL;
    if (name && strcmp(name, "keep") == 0)
        return QN_OK;
    QN_TRY(qn_type_find_writable(name ? name : "q8_0", true, type));
    return qn_type_is_low_bit(*type)
               ? qn_fail(QN_ERR_INVALID,
                         "type '%s' does not hold the ordinary weights of an MTP block: expected keep, f32, f16, bf16, "
                         "q8_0, q4_0 or q4_1",
                         name)
               : QN_OK;
}

qn_status qn_graft_mtp(const char *model, const char *head, const char *out, const char *type,
                       const qn_graft_params *params)
{
    struct graft g = { .model_path = model, .head_path = head, .out = out, .params = QN_GRAFT_PARAMS_INIT };
    if (params)
        QN_TRY(QN_PARAMS_READ(qn_graft_params, params, &g.params));
    if (g.params.n_threads < 0 || g.params.n_threads > QN_TEAM_MAX)
        return qn_fail(QN_ERR_INVALID, "n_threads is %d, expected 0 to %d", g.params.n_threads, QN_TEAM_MAX);
    QN_TRY(find_type(type, &g.type));
    const qn_status status = graft(&g);
    qn_encoder_free(g.encoder);
    qn_recoder_free(g.recoder);
    qn_gguf_writer_free(g.writer);
    qn_head_close(&g.head);
    qn_gguf_close(g.model);
    return status;
}
