/* Lists the tensors of MTP blocks of GGUF files and checkpoints. */
#include "convert/mtp_head.h"

#include "base/append.h"
#include "base/file.h"
#include "convert/tokenizer.h"
#include "engine/recode.h"
#include "model/rope.h"

#include <stdio.h>
#include <string.h>

/* Sets the size of a tensor in the type that it gets. */
static qn_status settle(const qn_head *head, qn_head_tensor *t, const qn_type_info *type)
{
    t->to = t->n_dims == 1 ? qn_type_find(QN_TYPE_F32) : type ? qn_type_for_width(type, t->dims[0]) : t->from;
    return qn_row_bytes(t->to, t->dims[0] * t->dims[1], &t->bytes)
               ? QN_OK
               : qn_fail(QN_ERR_FORMAT, "%s: tensor '%s': its size as %s overflows", head->path, t->name, t->to->name);
}

/* ---- GGUF ---- */

/* The number 42 is that of several layouts, of which a file has one. */
static qn_status check_type(const qn_head *head, const qn_gguf_tensor *t, const qn_type_info *type)
{
    QN_TRY(qn_recode_check(head->file, t));
    return type || t->stored_type != QN_TYPE_Q2_0
               ? QN_OK
               : qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%.*s' is of type 42, which is not kept: name a type",
                         head->path, (int)(t->name.length < 60 ? t->name.length : 60), t->name.data);
}

static qn_status open_file(qn_head *head, const qn_trunk *trunk, const qn_type_info *type)
{
    qn_mtp_block block;
    QN_TRY(qn_gguf_open(head->path, &head->file));
    QN_TRY(qn_mtp_block_find(head->file, trunk, &block));
    for (size_t i = 0; i < block.n; i++) {
        const qn_gguf_tensor *from = block.tensors[i].tensor;
        qn_head_tensor *to = &head->tensors[head->n++];
        QN_TRY(check_type(head, from, type));
        *to = (qn_head_tensor){ .dims = { from->dims[0], from->dims[1] },
                                .n_dims = block.tensors[i].is_vector ? 1 : 2,
                                .tensor = from,
                                .from = qn_type_find(from->type),
                                .source_bytes = from->bytes };
        snprintf(to->name, sizeof to->name, "blk.%u.%s", (unsigned)trunk->hparams->n_layers, block.tensors[i].name);
        QN_TRY(settle(head, to, type));
    }
    return QN_OK;
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
    if (!qn_file_exists(path))
        return qn_mtp_compare_vocabulary(head->path, trunk, NULL, 0, head->config.n_vocab);
    qn_status status = qn_tokenizer_files_read(&files, head->folder, path, &head->config);
    if (!status)
        status = qn_token_list_read(&files, &list);
    if (!status)
        status = qn_mtp_compare_vocabulary(head->path, trunk, list.tokens, list.n, head->config.n_vocab);
    qn_token_list_free(&list);
    qn_tokenizer_files_free(&files);
    return status;
}

static qn_status open_sources(qn_head *head, bool is_folder)
{
    if (is_folder)
        return qn_checkpoint_open_part(&head->checkpoint, head->folder, qn_mtp_prefixes, QN_MTP_PREFIXES);
    return qn_checkpoint_open_file(&head->checkpoint, head->folder, qn_file_name(head->path));
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
    const int before_name = (int)(qn_file_name(head->path) - head->path); /* with its separator */
    const int length = is_folder || !before_name ? -1 : before_name == 1 ? 1 : before_name - 1;
    const qn_config *c = &head->config;
    if (!qn_print(head->folder, sizeof head->folder, "%.*s", length, is_folder || before_name ? head->path : "."))
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
    QN_TRY(qn_mtp_compare(head->path, trunk, &h));
    QN_TRY(qn_mtp_compare_integer(head->path, trunk, "tensors rope_freqs.weight", qn_config_has_rope_factors(c),
                                  has_frequencies));
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
    qn_file_info info;
    head->path = path;
    const bool is_folder = qn_file_describe(path, &info) && info.kind == QN_FILE_FOLDER;
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
