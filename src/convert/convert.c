/* Converts a checkpoint to a GGUF file: selects the type of each tensor, writes keys and tensors. */
#include "quern/quern.h"

#include "base/append.h"
#include "base/cpu.h"
#include "base/params.h"
#include "base/team.h"
#include "convert/encode.h"
#include "convert/general.h"
#include "convert/tokenizer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct conversion {
    const char *folder, *out;
    char config_path[QN_CHECKPOINT_PATH_MAX], tokenizer_path[QN_CHECKPOINT_PATH_MAX];
    const qn_type_info *asked; /* the requested type; NULL: chosen for each matrix */
    qn_convert_params params;
    qn_config config;
    qn_checkpoint checkpoint;
    qn_targets targets;
    qn_encoder *encoder;
    size_t n_stripping;   /* number of flags lstrip and rstrip of added tokens */
    bool adds_end;        /* the tokeniser adds an end token to each text */
    float difference;     /* largest difference in lossless tensors */
    bool classifies_all;  /* classify matrices by all of their weights instead of a sample */
    uint64_t done, total; /* bytes of the source's tensors, for on_progress */
};

static void log_line(const struct conversion *c, const char *format, ...) QN_PRINTF(2, 3);

static void log_line(const struct conversion *c, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (c->params.on_log)
        c->params.on_log(c->params.user, line);
}

/* Returns the type that stores weights of this kind exactly: the requested one if possible, else the smallest. TQ1_0
 * and TQ2_0 have one scale for 256 weights, but groups have 128. */
static const qn_type_info *lossless_type(const qn_type_info *asked, qn_weight_kind kind)
{
    static const qn_type smallest[] = {
        [QN_WEIGHTS_BINARY] = QN_TYPE_Q1_0,
        [QN_WEIGHTS_TERNARY] = QN_TYPE_PTQ1_0,
        [QN_WEIGHTS_FOUR] = QN_TYPE_PQ2_0,
    };
    const bool four_valued = asked && (asked->type == QN_TYPE_Q2_0 || asked->type == QN_TYPE_PQ2_0);
    if (four_valued || (asked && asked->type == QN_TYPE_PTQ1_0 && kind != QN_WEIGHTS_FOUR))
        return asked;
    return qn_type_find((uint32_t)smallest[kind]);
}

static qn_status select_type(const struct conversion *c, qn_target *t)
{
    t->lossless = false;
    if (t->stays_f32) {
        t->to = qn_type_find(QN_TYPE_F32);
        return QN_OK;
    }
    t->kind = QN_WEIGHTS_ORDINARY;
    if (!c->asked || qn_type_is_low_bit(c->asked))
        QN_TRY(qn_encoder_classify(c->encoder, t, c->classifies_all, &t->kind));
    t->lossless = t->kind != QN_WEIGHTS_ORDINARY;
    if (t->lossless)
        t->to = lossless_type(c->asked, t->kind);
    else
        t->to = c->asked ? qn_type_for_width(c->asked, t->columns) : t->kept;
    return QN_OK;
}

/* Refuses 1-bit and 2-bit types for ordinary weights, which they would destroy. */
static qn_status check_ordinary(const struct conversion *c)
{
    size_t n = 0, n_matrices = 0;
    const qn_target *first = NULL;
    for (size_t i = 0; i < c->targets.n; i++) {
        const qn_target *t = &c->targets.at[i];
        n_matrices += !t->stays_f32;
        if (t->stays_f32 || t->lossless || !qn_type_is_low_bit(t->to))
            continue;
        first = n++ ? first : t;
    }
    if (!n)
        return QN_OK;
    if (!c->params.force)
        return qn_fail(
            QN_ERR_INVALID,
            "%s: tensor '%s' and %zu more of %zu matrices have ordinary weights: a model trained in more bits is not "
            "usable in %s (convert it to q8_0 or q4_0, or leave the type out; --force writes it all the same)",
            c->folder, first->name, n - 1, n_matrices, c->asked->name);
    log_line(c, "warning: %zu of %zu matrices have ordinary weights: the model will not be usable in %s", n, n_matrices,
             c->asked->name);
    return QN_OK;
}

static qn_status select_types(struct conversion *c)
{
    for (size_t i = 0; i < c->targets.n; i++)
        QN_TRY(select_type(c, &c->targets.at[i]));
    return check_ordinary(c);
}

static qn_status write_keys(struct conversion *c, qn_gguf_writer *writer)
{
    qn_tokenizer_files files = { 0 };
    QN_TRY(qn_general_write(c->folder, &c->config, &c->targets, writer));
    QN_TRY(qn_config_write(&c->config, writer));
    qn_status status = qn_tokenizer_files_read(&files, c->folder, c->tokenizer_path, &c->config);
    if (!status)
        status = qn_tokenizer_write(&files, writer);
    if (!status)
        status = qn_special_tokens_write(&files, writer);
    c->n_stripping = files.n_stripping;
    c->adds_end = files.adds_end;
    qn_tokenizer_files_free(&files);
    return status;
}

static qn_status write_header(struct conversion *c, qn_gguf_writer *writer)
{
    QN_TRY(write_keys(c, writer));
    c->done = c->total = 0;
    for (size_t i = 0; i < c->targets.n; i++) {
        const qn_target *t = &c->targets.at[i];
        const uint64_t dims[2] = { t->is_vector ? t->rows : t->columns, t->rows };
        size_t bytes;
        if (!qn_row_bytes(t->to, t->rows * t->columns, &bytes))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s': its size as %s overflows", c->folder, t->name, t->to->name);
        const qn_string name = { t->name, strlen(t->name) };
        QN_TRY(qn_gguf_writer_add_tensor(writer, name, (uint32_t)t->to->type, t->is_vector ? 1 : 2, dims, bytes));
        c->total += t->source ? t->source->tensor->bytes : 0;
    }
    return qn_gguf_writer_begin_data(writer);
}

static qn_status report(void *user, uint64_t bytes)
{
    struct conversion *c = user;
    c->done += bytes;
    if (c->params.on_progress && !c->params.on_progress(c->params.user, (size_t)c->done, (size_t)c->total))
        return qn_fail(QN_ERR_CANCELLED, "%s: cancelled, nothing was written", c->out);
    return QN_OK;
}

/* Writes the whole file. *guessed_wrong: a tensor's sample was misleading; the file must be started again. */
static qn_status write_file(struct conversion *c, qn_gguf_writer *writer, bool *guessed_wrong)
{
    c->difference = 0;
    QN_TRY(write_header(c, writer));
    QN_TRY(report(c, 0));
    for (size_t i = 0; i < c->targets.n; i++) {
        float difference;
        QN_TRY(qn_encoder_write(c->encoder, &c->targets.at[i], writer, report, c, &difference));
        c->difference = difference > c->difference ? difference : c->difference;
        *guessed_wrong = difference != 0;
        if (!*guessed_wrong)
            continue;
        if (c->classifies_all)
            return qn_fail(QN_ERR_IO, "%s: tensor '%s' changed while it was read", c->folder, c->targets.at[i].name);
        return QN_OK;
    }
    QN_TRY(qn_encoder_flush(c->encoder, writer));
    QN_TRY(qn_checkpoint_check_unchanged(&c->checkpoint));
    return qn_gguf_writer_finish(writer);
}

static void log_wider(const struct conversion *c)
{
    const qn_target *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < c->targets.n; i++) {
        const qn_target *t = &c->targets.at[i];
        if (c->asked && !t->stays_f32 && !t->lossless && t->to != c->asked)
            first = n++ ? first : t;
    }
    if (n)
        log_line(c, "%zu matri%s a wider type than %s: rows are not multiples of %zu weights (%s: %llu, %s)", n,
                 n == 1 ? "x keeps" : "ces keep", c->asked->name, c->asked->block_weights, first->name,
                 (unsigned long long)first->columns, first->to->name);
}

static void log_packed(const struct conversion *c)
{
    const char *name = NULL;
    size_t n = 0;
    for (size_t i = 0; i < c->targets.n; i++) {
        name = c->targets.at[i].packed ? qn_packed_name(c->targets.at[i].packed) : name;
        n += c->targets.at[i].packed != NULL;
    }
    if (n)
        log_line(c, "%zu matrices are packed (%s): their weights are computed in f32, and then stored", n, name);
    if (c->targets.n_activation)
        log_line(c, "left out: %zu scales of activations or of the KV cache", c->targets.n_activation);
}

static void log_summary(const struct conversion *c)
{
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_PTQ1_0, QN_TYPE_PQ2_0, QN_TYPE_Q2_0 };
    char list[128];
    qn_text_buffer text = QN_APPEND_TO(list);
    size_t n_all = 0, n_matrices = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t n = 0;
        for (size_t t = 0; t < c->targets.n; t++)
            n += c->targets.at[t].lossless && c->targets.at[t].to->type == types[i];
        if (n)
            qn_append(&text, "%s%zu in %s", text.length ? ", " : "", n, qn_type_find((uint32_t)types[i])->name);
        n_all += n;
    }
    for (size_t t = 0; t < c->targets.n; t++)
        n_matrices += !c->targets.at[t].stays_f32;
    if (n_all)
        log_line(c, "lossless: %zu of %zu matrices have 1 or 2 bits a weight (%s), largest difference %g", n_all,
                 n_matrices, list, (double)c->difference);
    log_packed(c);
    log_wider(c);
    if (c->n_stripping)
        log_line(c, "%zu flags lstrip and rstrip of added tokens are stored in keys that llama.cpp does not read",
                 c->n_stripping);
    if (c->adds_end)
        log_line(c, "the tokeniser adds an end token to each text; quern does not, as answers continue prompts");
    if (c->config.rope_ignored)
        log_line(c, "config.json: '%s' has no effect with this rope_type, as in transformers", c->config.rope_ignored);
    if (c->config.rope_untruncated)
        log_line(c, "YaRN without truncation is stored as rope_freqs.weight%s",
                 c->config.kind == QN_CONFIG_LLAMA ? "" : ", which llama.cpp does not read for this architecture");
    if (c->targets.n_vision)
        log_line(c, "left out: %zu tensors of the image encoder", c->targets.n_vision);
    if (c->targets.dropped_output)
        log_line(c, "left out: lm_head.weight, which has the values of the embedding (tie_word_embeddings)");
    if (c->targets.untied_output)
        log_line(
            c,
            "lm_head.weight is used: its values are not those of the embedding, although tie_word_embeddings is true");
    if (c->targets.unnamed_mtp)
        log_line(c, "config.json does not name the MTP block that the checkpoint has: it is converted");
    if (c->targets.dropped_mtp)
        log_line(c, "left out: the MTP block, which config.json names and the checkpoint does not have");
}

static void log_files(const struct conversion *c)
{
    if (c->checkpoint.has_unlisted_file)
        log_line(c,
                 "the folder has both model.safetensors and model.safetensors.index.json: the %zu files that the "
                 "index lists are used, not model.safetensors (which transformers takes)",
                 c->checkpoint.n_files);
}

static qn_status convert(struct conversion *c)
{
    QN_TRY(qn_checkpoint_path(c->folder, "config.json", c->config_path));
    QN_TRY(qn_checkpoint_path(c->folder, "tokenizer.json", c->tokenizer_path));
    QN_TRY(qn_config_read(&c->config, c->config_path));
    QN_TRY(qn_checkpoint_open(&c->checkpoint, c->folder));
    log_files(c);
    QN_TRY(qn_targets_list(&c->targets, &c->config, &c->checkpoint));
    QN_TRY(
        qn_encoder_create(&c->targets, c->params.n_threads ? c->params.n_threads : qn_cpu_best_threads(), &c->encoder));
    bool guessed_wrong = true;
    for (int attempt = 0; guessed_wrong; attempt++) {
        qn_gguf_writer *writer;
        c->classifies_all = attempt > 0;
        qn_encoder_reset(c->encoder);
        QN_TRY(select_types(c));
        QN_TRY(qn_gguf_writer_create(c->out, &writer));
        const qn_status status = write_file(c, writer, &guessed_wrong);
        qn_gguf_writer_free(writer);
        QN_TRY(status);
    }
    log_summary(c);
    return QN_OK;
}

qn_status qn_convert_checkpoint(const char *folder, const char *out, const char *type, const qn_convert_params *params)
{
    struct conversion c = { .folder = folder, .out = out, .params = QN_CONVERT_PARAMS_INIT };
    if (params)
        QN_TRY(QN_PARAMS_READ(qn_convert_params, params, &c.params));
    if (c.params.n_threads < 0 || c.params.n_threads > QN_TEAM_MAX)
        return qn_fail(QN_ERR_INVALID, "n_threads is %d, expected 0 to %d", c.params.n_threads, QN_TEAM_MAX);
    if (type)
        QN_TRY(qn_type_find_writable(type, true, &c.asked));
    const qn_status status = convert(&c);
    qn_encoder_free(c.encoder);
    qn_targets_free(&c.targets);
    qn_checkpoint_close(&c.checkpoint);
    qn_config_free(&c.config);
    return status;
}
