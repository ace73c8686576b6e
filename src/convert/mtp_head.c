/* Finds and compares MTP blocks. Names, shapes and optional tensors are those of llama.cpp (src/models/qwen35.cpp),
 * which also writes files with the block alone: all keys of the model, the embedding, and blk.N after layers that are
 * not there. */
#include "convert/mtp_head.h"

#include "base/append.h"
#include "convert/tokenizer.h"
#include "engine/recode.h"
#include "model/keys.h"
#include "model/rope.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STRING_ARGS(s) (int)((s).length < 60 ? (s).length : 60), (s).data
#define TOKENS "tokenizer.ggml.tokens"

/* ---- Comparison ---- */

static qn_status other_model(const qn_head *head, const qn_trunk *trunk, const char *what, const char *found,
                             const char *expected)
{
    return qn_fail(QN_ERR_INVALID, "%s: %s: %s, but %s in %s: the block is another model's", head->path, what, found,
                   expected, qn_gguf_path(trunk->file));
}

static qn_status compare_integer(const qn_head *head, const qn_trunk *trunk, const char *what, uint64_t a, uint64_t b)
{
    char found[24], expected[24];
    snprintf(found, sizeof found, "%llu", (unsigned long long)a);
    snprintf(expected, sizeof expected, "%llu", (unsigned long long)b);
    return a == b ? QN_OK : other_model(head, trunk, what, found, expected);
}

/* Numbers come from text and from f32, in either file. */
static qn_status compare_number(const qn_head *head, const qn_trunk *trunk, const char *what, double a, double b)
{
    char found[32], expected[32];
    snprintf(found, sizeof found, "%g", a);
    snprintf(expected, sizeof expected, "%g", b);
    return fabs(a - b) <= 1e-5 * fabs(b) ? QN_OK : other_model(head, trunk, what, found, expected);
}

static qn_status compare_rope(const qn_head *head, const qn_trunk *trunk, const qn_hparams *h)
{
    const qn_hparams *t = trunk->hparams;
    const qn_rope_scaling *a = &h->rope_scaling, *b = &t->rope_scaling;
    QN_TRY(compare_integer(head, trunk, "rope.dimension_count", h->n_rot, t->n_rot));
    QN_TRY(compare_number(head, trunk, "rope.freq_base", (double)h->rope_base, (double)t->rope_base));
    QN_TRY(compare_number(head, trunk, "rope.scaling.factor", a->factor, b->factor));
    QN_TRY(compare_number(head, trunk, "YaRN's share of the scaling", a->ext_factor, b->ext_factor));
    QN_TRY(compare_number(head, trunk, "the attention factor of rope", a->attn_factor, b->attn_factor));
    QN_TRY(compare_number(head, trunk, "the first pair of YaRN's ramp", a->ramp_begin, b->ramp_begin));
    QN_TRY(compare_number(head, trunk, "the pairs of YaRN's ramp", a->ramp_length, b->ramp_length));
    for (size_t i = 0; i < 3 && h->has_rope_sections && t->has_rope_sections; i++)
        QN_TRY(compare_integer(head, trunk, "rope.dimension_sections", h->rope_sections.pairs[i],
                               t->rope_sections.pairs[i]));
    return QN_OK;
}

static qn_status compare(const qn_head *head, const qn_trunk *trunk, const qn_hparams *h)
{
    const qn_hparams *t = trunk->hparams;
    QN_TRY(compare_integer(head, trunk, "embedding_length", h->n_embd, t->n_embd));
    QN_TRY(compare_integer(head, trunk, "layers before the block", h->n_layers, t->n_layers));
    QN_TRY(compare_integer(head, trunk, "attention.head_count", h->n_heads, t->n_heads));
    QN_TRY(compare_integer(head, trunk, "attention.head_count_kv", h->n_kv_heads, t->n_kv_heads));
    QN_TRY(compare_integer(head, trunk, "attention.key_length", h->head_dim, t->head_dim));
    QN_TRY(compare_integer(head, trunk, "feed_forward_length", h->n_ff, t->n_ff));
    QN_TRY(compare_number(head, trunk, "attention.layer_norm_rms_epsilon", (double)h->eps, (double)t->eps));
    return compare_rope(head, trunk, h);
}

/* Whether an id has no token: converters name such ids, and others may give them another name. */
static bool is_unused(qn_string token)
{
    return token.length > 4 && memcmp(token.data, "[PAD", 4) == 0;
}

/* Compares the lists of tokens, or if one of the two has none, the sizes. tokens [n]: NULL for none. */
static qn_status compare_vocabulary(const qn_head *head, const qn_trunk *trunk, const qn_string *tokens, size_t n,
                                    uint32_t n_vocab)
{
    const qn_gguf_kv *kv = qn_gguf_find(trunk->file, TOKENS);
    qn_string *expected;
    if (!kv || !tokens)
        return compare_integer(head, trunk, "size of the vocabulary", n_vocab, trunk->hparams->n_vocab);
    QN_TRY(qn_gguf_array_strings(trunk->file, kv, &expected));
    qn_status status = compare_integer(head, trunk, "number of tokens", n, kv->count);
    for (size_t i = 0; i < n && !status; i++) {
        const qn_string a = tokens[i], b = expected[i];
        if ((a.length == b.length && memcmp(a.data, b.data, a.length) == 0) || is_unused(a) || is_unused(b))
            continue;
        status = qn_fail(QN_ERR_INVALID, "%s: token %zu is '%.*s', but '%.*s' in %s: the block is another model's",
                         head->path, i, STRING_ARGS(a), STRING_ARGS(b), qn_gguf_path(trunk->file));
    }
    free(expected);
    return status;
}

/* ---- Tensors of the block ---- */

typedef enum size_name { ONE, EMBD, TWO_EMBD, QUERIES_AND_GATES, QUERIES, KV, HEAD, FF, VOCAB } size_name;

static const struct part {
    const char *name;
    size_name columns, rows;
    bool optional;
} parts[] = {
    { "attn_norm.weight", EMBD, ONE, false },
    { "attn_q.weight", EMBD, QUERIES_AND_GATES, false },
    { "attn_k.weight", EMBD, KV, false },
    { "attn_v.weight", EMBD, KV, false },
    { "attn_output.weight", QUERIES, EMBD, false },
    { "attn_q_norm.weight", HEAD, ONE, false },
    { "attn_k_norm.weight", HEAD, ONE, false },
    { "post_attention_norm.weight", EMBD, ONE, false },
    { "ffn_gate.weight", EMBD, FF, false },
    { "ffn_up.weight", EMBD, FF, false },
    { "ffn_down.weight", FF, EMBD, false },
    { "nextn.eh_proj.weight", TWO_EMBD, EMBD, false },
    { "nextn.enorm.weight", EMBD, ONE, false },
    { "nextn.hnorm.weight", EMBD, ONE, false },
    { "nextn.shared_head_norm.weight", EMBD, ONE, true },  /* without it the output norm serves */
    { "nextn.embed_tokens.weight", EMBD, VOCAB, true },    /* without it the model's embedding */
    { "nextn.shared_head_head.weight", EMBD, VOCAB, true } /* without it the model's output matrix */
};
enum { N_PARTS = sizeof parts / sizeof *parts };
_Static_assert((int)N_PARTS <= QN_HEAD_MAX_TENSORS, "a block fits");

static uint64_t size_of(const qn_hparams *h, size_name name)
{
    const uint64_t q = (uint64_t)h->n_heads * h->head_dim;
    switch (name) {
    case ONE: return 1;
    case EMBD: return h->n_embd;
    case TWO_EMBD: return 2 * (uint64_t)h->n_embd;
    case QUERIES_AND_GATES: return 2 * q;
    case QUERIES: return q;
    case KV: return (uint64_t)h->n_kv_heads * h->head_dim;
    case HEAD: return h->head_dim;
    case FF: return h->n_ff;
    case VOCAB: return h->n_vocab;
    }
    return 0;
}

/* Sets the size of a tensor in the type that it gets. */
static qn_status settle(const qn_head *head, qn_head_tensor *t, const qn_type_info *type)
{
    t->to = t->n_dims == 1 ? qn_type_find(QN_TYPE_F32) : type ? qn_type_for_width(type, t->dims[0]) : t->from;
    return qn_row_bytes(t->to, t->dims[0] * t->dims[1], &t->bytes)
               ? QN_OK
               : qn_fail(QN_ERR_FORMAT, "%s: tensor '%s': its size as %s overflows", head->path, t->name, t->to->name);
}

/* ---- GGUF ---- */

/* Finds the one block with tensors of an MTP block: its number, or UINT32_MAX if there is none. */
static qn_status find_block(const qn_gguf *file, uint32_t *block)
{
    *block = UINT32_MAX;
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_string name = qn_gguf_tensor_at(file, i)->name;
        const uint32_t n = qn_weights_block(name);
        if (n == UINT32_MAX || !memmem(name.data, name.length, ".nextn.", 7))
            continue;
        if (*block != UINT32_MAX && n != *block)
            return qn_fail(QN_ERR_INVALID, "%s: blocks %u and %u are MTP blocks, expected one", qn_gguf_path(file),
                           (unsigned)*block, (unsigned)n);
        *block = n;
    }
    return QN_OK;
}

/* Sets the number of the block, and that of the layers before it. */
static qn_status read_depth(const qn_gguf *file, qn_hparams *h, uint32_t *block)
{
    uint32_t n_blocks = 0, n_mtp = 0;
    QN_TRY(qn_key_u32(file, h->architecture, "block_count", false, &n_blocks));
    QN_TRY(qn_key_u32(file, h->architecture, "nextn_predict_layers", false, &n_mtp));
    QN_TRY(find_block(file, block));
    if (n_mtp > 1)
        return qn_fail(QN_ERR_INVALID, "%s: it has %u MTP blocks (nextn_predict_layers), expected one",
                       qn_gguf_path(file), (unsigned)n_mtp);
    if (*block == UINT32_MAX && (!n_mtp || n_blocks < 2))
        return qn_fail(QN_ERR_INVALID, "%s: it has no MTP block: no tensor 'blk.N.nextn.eh_proj.weight'",
                       qn_gguf_path(file));
    if (*block == UINT32_MAX)
        *block = n_blocks - 1; /* a tensor that is missing is named later */
    if (*block > 0)
        h->n_layers = *block;
    h->n_blocks = n_blocks;
    return QN_OK;
}

/* Reads what the file says about its model; h keeps the trunk's values where it says nothing. */
static qn_status read_keys(const qn_gguf *file, qn_hparams *h)
{
    const char *a = h->architecture;
    const uint32_t n_layers = h->n_layers, n_blocks = h->n_blocks;
    char base_key[128];
    QN_TRY(qn_key_u32(file, a, "embedding_length", false, &h->n_embd));
    QN_TRY(qn_key_layers_u32(file, a, "attention.head_count", false, n_layers, n_blocks, true, &h->n_heads));
    QN_TRY(qn_key_layers_u32(file, a, "attention.head_count_kv", false, n_layers, n_blocks, true, &h->n_kv_heads));
    QN_TRY(qn_key_layers_u32(file, a, "feed_forward_length", false, n_layers, n_blocks, true, &h->n_ff));
    QN_TRY(qn_key_u32(file, a, "attention.key_length", false, &h->head_dim));
    QN_TRY(qn_key_f32(file, a, "attention.layer_norm_rms_epsilon", false, &h->eps));
    QN_TRY(qn_key_u32(file, a, "context_length", false, &h->n_ctx_train));
    const qn_gguf_tensor *table = qn_gguf_find_tensor(file, "token_embd.weight");
    if (table)
        h->n_vocab = table->dims[1] < UINT32_MAX ? (uint32_t)table->dims[1] : UINT32_MAX;
    QN_TRY(qn_rope_read_sections(file, h));
    snprintf(base_key, sizeof base_key, "%s.rope.freq_base", a);
    return qn_gguf_find(file, base_key) ? qn_rope_read(file, h) : QN_OK;
}

/* Compares the divisors of rope's frequencies. A file with the block alone may leave them out. */
static qn_status compare_frequencies(const qn_head *head, const qn_trunk *trunk)
{
    static const char name[] = "rope_freqs.weight";
    const qn_gguf_tensor *a = qn_gguf_find_tensor(head->file, name), *b = qn_gguf_find_tensor(trunk->file, name);
    const bool is_whole = qn_gguf_find_tensor(head->file, "blk.0.attn_norm.weight") != NULL;
    if (a && b)
        return a->type == b->type && a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0
                   ? QN_OK
                   : other_model(head, trunk, name, "its values", "others");
    return a || (b && is_whole) ? other_model(head, trunk, name, a ? "a tensor" : "none", a ? "none" : "a tensor")
                                : QN_OK;
}

/* Refuses a block whose matrices expect rotated inputs: they would be joined as ordinary ones. */
static qn_status reject_rotated(const qn_gguf *file, uint32_t block)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, "prism.hadamard.weight_names");
    qn_string *names;
    if (!kv)
        return QN_OK;
    QN_TRY(qn_gguf_array_strings(file, kv, &names));
    size_t i = 0;
    while (i < kv->count && qn_weights_block(names[i]) != block)
        i++;
    const qn_status status =
        i == kv->count ? QN_OK
                       : qn_fail(QN_ERR_UNSUPPORTED, "%s: '%.*s' is rotated (%.*s), which a block to join may not be",
                                 qn_gguf_path(file), STRING_ARGS(names[i]), STRING_ARGS(kv->key));
    free(names);
    return status;
}

static qn_status check_architecture(const qn_gguf *file, const qn_trunk *trunk)
{
    qn_string name;
    QN_TRY(qn_gguf_get_string(file, "general.architecture", true, &name));
    if (qn_string_equals(name, trunk->hparams->architecture))
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "%s: general.architecture is '%.*s', but '%s' in %s: the block is another model's",
                   qn_gguf_path(file), STRING_ARGS(name), trunk->hparams->architecture, qn_gguf_path(trunk->file));
}

static qn_status check_shape(const qn_gguf *file, const qn_gguf_tensor *t, const struct part *part, const qn_hparams *h)
{
    const uint64_t columns = size_of(h, part->columns), rows = size_of(h, part->rows);
    if (t->dims[0] != columns || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' is %llu x %llu x %llu x %llu, expected %llu x %llu",
                       qn_gguf_path(file), STRING_ARGS(t->name), (unsigned long long)t->dims[0],
                       (unsigned long long)t->dims[1], (unsigned long long)t->dims[2], (unsigned long long)t->dims[3],
                       (unsigned long long)columns, (unsigned long long)rows);
    return QN_OK;
}

/* The number 42 is that of several layouts, of which a file has one. */
static qn_status check_type(const qn_head *head, const qn_gguf_tensor *t, const qn_type_info *type)
{
    QN_TRY(qn_recode_check(head->file, t));
    return type || t->stored_type != QN_TYPE_Q2_0
               ? QN_OK
               : qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%.*s' is of type 42, which is not kept: name a type",
                         head->path, STRING_ARGS(t->name));
}

static qn_status add_part(qn_head *head, const qn_trunk *trunk, uint32_t block, const struct part *part,
                          const qn_type_info *type)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", (unsigned)block, part->name);
    const qn_gguf_tensor *t = qn_gguf_find_tensor(head->file, name);
    if (!t && part->optional)
        return QN_OK;
    if (!t)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' of the MTP block is missing", head->path, name);
    QN_TRY(check_shape(head->file, t, part, trunk->hparams));
    QN_TRY(check_type(head, t, type));
    qn_head_tensor *to = &head->tensors[head->n++];
    *to = (qn_head_tensor){ .dims = { t->dims[0], t->dims[1] },
                            .n_dims = part->rows == ONE ? 1 : 2,
                            .tensor = t,
                            .from = qn_type_find(t->type),
                            .source_bytes = t->bytes };
    snprintf(to->name, sizeof to->name, "blk.%u.%s", (unsigned)trunk->hparams->n_layers, part->name);
    return settle(head, to, type);
}

/* Refuses a block with a tensor that is none of the parts: it would be computed without it. */
static qn_status reject_unknown(const qn_head *head, const qn_trunk *trunk, uint32_t block)
{
    for (size_t i = 0; i < qn_gguf_n_tensors(head->file); i++) {
        const qn_string name = qn_gguf_tensor_at(head->file, i)->name;
        const char *dot = qn_weights_block(name) == block ? memchr(name.data + 4, '.', name.length - 4) : NULL;
        bool known = !dot;
        for (size_t p = 0; p < N_PARTS && !known; p++)
            known =
                qn_string_equals((qn_string){ dot + 1, name.length - (size_t)(dot + 1 - name.data) }, parts[p].name);
        if (!known)
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' is unknown in an MTP block of '%s'", head->path,
                           STRING_ARGS(name), trunk->hparams->architecture);
    }
    return QN_OK;
}

static qn_status compare_vocabulary_of_file(const qn_head *head, const qn_trunk *trunk, uint32_t n_vocab)
{
    const qn_gguf_kv *kv = qn_gguf_find(head->file, TOKENS);
    qn_string *tokens = NULL;
    if (kv)
        QN_TRY(qn_gguf_array_strings(head->file, kv, &tokens));
    const qn_status status = compare_vocabulary(head, trunk, tokens, kv ? (size_t)kv->count : 0, n_vocab);
    free(tokens);
    return status;
}

static qn_status open_file(qn_head *head, const qn_trunk *trunk, const qn_type_info *type)
{
    qn_hparams h = *trunk->hparams;
    uint32_t block;
    QN_TRY(qn_gguf_open(head->path, &head->file));
    QN_TRY(check_architecture(head->file, trunk));
    QN_TRY(read_depth(head->file, &h, &block));
    QN_TRY(read_keys(head->file, &h));
    QN_TRY(compare(head, trunk, &h));
    QN_TRY(compare_frequencies(head, trunk));
    QN_TRY(compare_vocabulary_of_file(head, trunk, h.n_vocab));
    QN_TRY(reject_rotated(head->file, block));
    for (size_t i = 0; i < N_PARTS; i++)
        QN_TRY(add_part(head, trunk, block, &parts[i], type));
    return reject_unknown(head, trunk, block);
}

/* ---- Checkpoints ---- */

/* The hyper-parameters of a configuration, as a file that is converted from it has them. */
static qn_hparams hparams_of(const qn_config *c, const qn_hparams *trunk)
{
    qn_hparams h = *trunk;
    h.n_embd = c->n_embd;
    h.n_layers = c->n_layers;
    h.n_heads = c->n_heads;
    h.n_kv_heads = c->n_kv_heads;
    h.head_dim = c->head_dim;
    h.n_ff = c->n_ff;
    h.n_vocab = c->n_vocab;
    h.eps = (float)c->eps;
    h.n_rot = c->n_rot;
    h.rope_base = (float)c->rope_base;
    h.rope_scaling = QN_ROPE_UNSCALED;
    h.has_rope_sections = true;
    memcpy(h.rope_sections.pairs, c->rope_sections, sizeof c->rope_sections);
    if (c->rope_untruncated) { /* the frequencies are in a tensor */
        h.rope_scaling.attn_factor = c->rope_attn_factor;
    } else if (c->rope == QN_CONFIG_ROPE_LINEAR || c->rope == QN_CONFIG_ROPE_YARN) {
        h.rope_scaling.factor = c->rope_factor;
        if (c->rope == QN_CONFIG_ROPE_YARN) {
            h.rope_scaling.ext_factor = 1;
            h.rope_scaling.attn_factor = c->rope_attn_factor;
            qn_rope_yarn_ramp(&h.rope_scaling, c->rope_base, c->n_rot, c->rope_original_ctx, c->rope_beta_fast,
                              c->rope_beta_slow);
        }
    }
    return h;
}

static qn_status compare_vocabulary_of_folder(const qn_head *head, const qn_trunk *trunk)
{
    char path[QN_CHECKPOINT_PATH_MAX];
    qn_tokenizer_files files = { 0 };
    qn_token_list list = { 0 };
    QN_TRY(qn_checkpoint_path(head->folder, "tokenizer.json", path));
    if (access(path, F_OK) != 0)
        return compare_vocabulary(head, trunk, NULL, 0, head->config.n_vocab);
    qn_status status = qn_tokenizer_files_read(&files, head->folder, path, &head->config);
    if (!status)
        status = qn_token_list_read(&files, &list);
    if (!status)
        status = compare_vocabulary(head, trunk, list.tokens, list.n, head->config.n_vocab);
    qn_token_list_free(&list);
    qn_tokenizer_files_free(&files);
    return status;
}

static qn_status open_sources(qn_head *head, bool is_folder)
{
    if (is_folder)
        return qn_checkpoint_open_part(&head->checkpoint, head->folder, qn_mtp_prefixes, QN_MTP_PREFIXES);
    const char *slash = strrchr(head->path, '/');
    return qn_checkpoint_open_file(&head->checkpoint, head->folder, slash ? slash + 1 : head->path);
}

static qn_status add_targets(qn_head *head, const qn_type_info *type)
{
    for (size_t i = 0; i < head->targets.n; i++) {
        qn_target *target = &head->targets.at[i];
        qn_head_tensor *t = &head->tensors[head->n++];
        *t = (qn_head_tensor){ .dims = { target->is_vector ? target->rows : target->columns,
                                         target->is_vector ? 1 : target->rows },
                               .n_dims = target->is_vector ? 1 : 2,
                               .target = target,
                               .from = target->kept,
                               .source_bytes = target->source->tensor->bytes };
        snprintf(t->name, sizeof t->name, "%s", target->name);
        QN_TRY(settle(head, t, type));
        target->to = t->to;
    }
    return QN_OK;
}

static qn_status open_checkpoint(qn_head *head, bool is_folder, const qn_trunk *trunk, const qn_type_info *type)
{
    const char *slash = strrchr(head->path, '/');
    const int length = is_folder || !slash ? -1 : slash == head->path ? 1 : (int)(slash - head->path);
    const qn_config *c = &head->config;
    if (!qn_print(head->folder, sizeof head->folder, "%.*s", length, is_folder || slash ? head->path : "."))
        return qn_fail(QN_ERR_INVALID, "%.200s: the path is too long", head->path);
    QN_TRY(qn_checkpoint_path(head->folder, "config.json", head->config_path));
    QN_TRY(qn_config_read(&head->config, head->config_path));
    if (c->kind != QN_CONFIG_QWEN35)
        return qn_fail(QN_ERR_INVALID,
                       "%s: the class is '%s', but the architecture of %s is '%s': the block is "
                       "another model's",
                       head->config_path, c->class_name, qn_gguf_path(trunk->file), trunk->hparams->architecture);
    if (c->n_mtp > 1)
        return qn_fail(QN_ERR_INVALID, "%s: mtp_num_hidden_layers is %u, expected one MTP block", head->config_path,
                       (unsigned)c->n_mtp);
    const qn_hparams h = hparams_of(c, trunk->hparams);
    const bool has_frequencies = qn_gguf_find_tensor(trunk->file, "rope_freqs.weight") != NULL;
    QN_TRY(compare(head, trunk, &h));
    QN_TRY(compare_integer(head, trunk, "tensors rope_freqs.weight", qn_config_has_rope_factors(c), has_frequencies));
    QN_TRY(compare_vocabulary_of_folder(head, trunk));
    QN_TRY(open_sources(head, is_folder));
    QN_TRY(qn_targets_list_mtp(&head->targets, &head->config, &head->checkpoint));
    return add_targets(head, type);
}

/* ---- Both ---- */

qn_status qn_head_open(qn_head *head, const char *path, const qn_trunk *trunk, const qn_type_info *type)
{
    static const char end[] = ".safetensors";
    const size_t n = strlen(path), m = sizeof end - 1;
    struct stat st;
    head->path = path;
    const bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return is_folder || (n > m && strcmp(path + n - m, end) == 0) ? open_checkpoint(head, is_folder, trunk, type)
                                                                  : open_file(head, trunk, type);
}

void qn_head_close(qn_head *head)
{
    qn_targets_free(&head->targets);
    qn_checkpoint_close(&head->checkpoint);
    qn_config_free(&head->config);
    qn_gguf_close(head->file);
    *head = (qn_head){ 0 };
}
