/* Finds and compares MTP blocks. Names, shapes and optional tensors are those of llama.cpp (src/models/qwen35.cpp),
 * which also writes files with the block alone: all keys of the model, the embedding, and blk.N after layers that are
 * not there. */
#include "model/mtp_block.h"

#include "base/strings.h"
#include "model/keys.h"
#include "model/rope.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRING_ARGS(s) (int)((s).length < 60 ? (s).length : 60), (s).data
#define TOKENS "tokenizer.ggml.tokens"

/* ---- Comparison ---- */

static qn_status other_model(const char *path, const qn_trunk *trunk, const char *what, const char *found,
                             const char *expected)
{
    return qn_fail(QN_ERR_INVALID, "%s: %s: %s, but %s in %s: the block is another model's", path, what, found,
                   expected, qn_gguf_path(trunk->file));
}

qn_status qn_mtp_compare_integer(const char *path, const qn_trunk *trunk, const char *what, uint64_t a, uint64_t b)
{
    char found[24], expected[24];
    snprintf(found, sizeof found, "%llu", (unsigned long long)a);
    snprintf(expected, sizeof expected, "%llu", (unsigned long long)b);
    return a == b ? QN_OK : other_model(path, trunk, what, found, expected);
}

/* Numbers come from text and from f32, in either file. */
static qn_status compare_number(const char *path, const qn_trunk *trunk, const char *what, double a, double b)
{
    char found[32], expected[32];
    snprintf(found, sizeof found, "%g", a);
    snprintf(expected, sizeof expected, "%g", b);
    return fabs(a - b) <= 1e-5 * fabs(b) ? QN_OK : other_model(path, trunk, what, found, expected);
}

static qn_status compare_rope(const char *path, const qn_trunk *trunk, const qn_hparams *h)
{
    const qn_hparams *t = trunk->hparams;
    const qn_rope_scaling *a = &h->rope_scaling, *b = &t->rope_scaling;
    QN_TRY(qn_mtp_compare_integer(path, trunk, "rope.dimension_count", h->n_rot, t->n_rot));
    QN_TRY(compare_number(path, trunk, "rope.freq_base", (double)h->rope_base, (double)t->rope_base));
    QN_TRY(compare_number(path, trunk, "rope.scaling.factor", a->factor, b->factor));
    QN_TRY(compare_number(path, trunk, "YaRN's share of the scaling", a->ext_factor, b->ext_factor));
    QN_TRY(compare_number(path, trunk, "the attention factor of rope", a->attn_factor, b->attn_factor));
    QN_TRY(compare_number(path, trunk, "the first pair of YaRN's ramp", a->ramp_begin, b->ramp_begin));
    QN_TRY(compare_number(path, trunk, "the pairs of YaRN's ramp", a->ramp_length, b->ramp_length));
    for (size_t i = 0; i < 3 && h->has_rope_sections && t->has_rope_sections; i++)
        QN_TRY(qn_mtp_compare_integer(path, trunk, "rope.dimension_sections", h->rope_sections.pairs[i],
                                      t->rope_sections.pairs[i]));
    return QN_OK;
}

qn_status qn_mtp_compare(const char *path, const qn_trunk *trunk, const qn_hparams *h)
{
    const qn_hparams *t = trunk->hparams;
    QN_TRY(qn_mtp_compare_integer(path, trunk, "embedding_length", h->n_embd, t->n_embd));
    QN_TRY(qn_mtp_compare_integer(path, trunk, "layers before the block", h->n_layers, t->n_layers));
    QN_TRY(qn_mtp_compare_integer(path, trunk, "attention.head_count", h->n_heads, t->n_heads));
    QN_TRY(qn_mtp_compare_integer(path, trunk, "attention.head_count_kv", h->n_kv_heads, t->n_kv_heads));
    QN_TRY(qn_mtp_compare_integer(path, trunk, "attention.key_length", h->head_dim, t->head_dim));
    QN_TRY(qn_mtp_compare_integer(path, trunk, "feed_forward_length", h->n_ff, t->n_ff));
    QN_TRY(compare_number(path, trunk, "attention.layer_norm_rms_epsilon", (double)h->eps, (double)t->eps));
    return compare_rope(path, trunk, h);
}

/* Whether an id has no token: converters name such ids, and others may give them another name. */
static bool is_unused(qn_string token)
{
    return token.length > 4 && memcmp(token.data, "[PAD", 4) == 0;
}

qn_status qn_mtp_compare_vocabulary(const char *path, const qn_trunk *trunk, const qn_string *tokens, size_t n,
                                    uint32_t n_vocab)
{
    const qn_gguf_kv *kv = qn_gguf_find(trunk->file, TOKENS);
    qn_string *expected;
    if (!kv || !tokens)
        return qn_mtp_compare_integer(path, trunk, "size of the vocabulary", n_vocab, trunk->hparams->n_vocab);
    QN_TRY(qn_gguf_array_strings(trunk->file, kv, &expected));
    qn_status status = qn_mtp_compare_integer(path, trunk, "number of tokens", n, kv->count);
    for (size_t i = 0; i < n && !status; i++) {
        const qn_string a = tokens[i], b = expected[i];
        if ((a.length == b.length && memcmp(a.data, b.data, a.length) == 0) || is_unused(a) || is_unused(b))
            continue;
        status = qn_fail(QN_ERR_INVALID, "%s: token %zu is '%.*s', but '%.*s' in %s: the block is another model's",
                         path, i, STRING_ARGS(a), STRING_ARGS(b), qn_gguf_path(trunk->file));
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
_Static_assert((int)N_PARTS <= QN_MTP_MAX_TENSORS, "a block fits");

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

/* ---- GGUF ---- */

/* Finds the one block with tensors of an MTP block: its number, or UINT32_MAX if there is none. */
static qn_status find_block(const qn_gguf *file, uint32_t *block)
{
    *block = UINT32_MAX;
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_string name = qn_gguf_tensor_at(file, i)->name;
        const uint32_t n = qn_weights_block(name);
        if (n == UINT32_MAX || !qn_memmem(name.data, name.length, ".nextn.", 7))
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
static qn_status compare_frequencies(const qn_gguf *file, const qn_trunk *trunk)
{
    static const char name[] = "rope_freqs.weight";
    const qn_gguf_tensor *a = qn_gguf_find_tensor(file, name), *b = qn_gguf_find_tensor(trunk->file, name);
    const bool is_whole = qn_gguf_find_tensor(file, "blk.0.attn_norm.weight") != NULL;
    if (a && b)
        return a->type == b->type && a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0
                   ? QN_OK
                   : other_model(qn_gguf_path(file), trunk, name, "its values", "others");
    return a || (b && is_whole)
               ? other_model(qn_gguf_path(file), trunk, name, a ? "a tensor" : "none", a ? "none" : "a tensor")
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

/* Refuses a block with a tensor that is none of the parts: it would be computed without it. */
static qn_status reject_unknown(const qn_gguf *file, const qn_trunk *trunk, uint32_t block)
{
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_string name = qn_gguf_tensor_at(file, i)->name;
        const char *dot = qn_weights_block(name) == block ? memchr(name.data + 4, '.', name.length - 4) : NULL;
        bool known = !dot;
        for (size_t p = 0; p < N_PARTS && !known; p++)
            known =
                qn_string_equals((qn_string){ dot + 1, name.length - (size_t)(dot + 1 - name.data) }, parts[p].name);
        if (!known)
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' is unknown in an MTP block of '%s'", qn_gguf_path(file),
                           STRING_ARGS(name), trunk->hparams->architecture);
    }
    return QN_OK;
}

static qn_status compare_vocabulary_of_file(const qn_gguf *file, const qn_trunk *trunk, uint32_t n_vocab)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, TOKENS);
    qn_string *tokens = NULL;
    if (kv)
        QN_TRY(qn_gguf_array_strings(file, kv, &tokens));
    const qn_status status =
        qn_mtp_compare_vocabulary(qn_gguf_path(file), trunk, tokens, kv ? (size_t)kv->count : 0, n_vocab);
    free(tokens);
    return status;
}

static qn_status add_part(const qn_gguf *file, const qn_trunk *trunk, const struct part *part, qn_mtp_block *block)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", (unsigned)block->number, part->name);
    const qn_gguf_tensor *t = qn_gguf_find_tensor(file, name);
    if (!t && part->optional)
        return QN_OK;
    if (!t)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' of the MTP block is missing", qn_gguf_path(file), name);
    QN_TRY(check_shape(file, t, part, trunk->hparams));
    block->tensors[block->n++] = (qn_mtp_tensor){ .name = part->name, .tensor = t, .is_vector = part->rows == ONE };
    return QN_OK;
}

qn_status qn_mtp_block_find(const qn_gguf *file, const qn_trunk *trunk, qn_mtp_block *block)
{
    qn_hparams h = *trunk->hparams;
    *block = (qn_mtp_block){ 0 };
    QN_TRY(check_architecture(file, trunk));
    QN_TRY(read_depth(file, &h, &block->number));
    QN_TRY(read_keys(file, &h));
    QN_TRY(qn_mtp_compare(qn_gguf_path(file), trunk, &h));
    QN_TRY(compare_frequencies(file, trunk));
    QN_TRY(compare_vocabulary_of_file(file, trunk, h.n_vocab));
    QN_TRY(reject_rotated(file, block->number));
    for (size_t i = 0; i < N_PARTS; i++)
        QN_TRY(add_part(file, trunk, &parts[i], block));
    return reject_unknown(file, trunk, block->number);
}
