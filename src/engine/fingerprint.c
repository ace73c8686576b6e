/* The fingerprint of a model: a hash of the hyperparameters and tensor headers of the file and of samples of its
 * weights. */
#include "engine/internal.h"

#include <string.h>
#include <xxhash.h>

/* Samples of each tensor, spread evenly from its first byte to its last. They read only a few pages of a large file. */
enum { SAMPLES = 4, SAMPLE_BYTES = 64 };

static bool begins_with(qn_string s, const char *start, size_t length)
{
    return s.length >= length && memcmp(s.data, start, length) == 0;
}

/* Whether a key counts for the fingerprint. Other keys, such as the author or the tokeniser's, may differ between files
 * of the same model. */
static bool is_hyper_parameter(qn_string key, const char *architecture)
{
    const size_t n = strlen(architecture);
    return (key.length > n && begins_with(key, architecture, n) && key.data[n] == '.') ||
           begins_with(key, "prism.", 6) || qn_string_equals(key, "general.architecture");
}

static void add_bytes(XXH64_state_t *hash, const void *data, size_t bytes)
{
    const uint64_t length = bytes; /* the length separates strings: "ab", "c" differs from "a", "bc" */
    XXH64_update(hash, &length, sizeof length);
    XXH64_update(hash, data, bytes);
}

static void add_tensor(XXH64_state_t *hash, const qn_gguf_tensor *t)
{
    add_bytes(hash, t->name.data, t->name.length);
    XXH64_update(hash, &t->type, sizeof t->type);
    XXH64_update(hash, t->dims, sizeof t->dims);
    if (t->bytes <= SAMPLES * SAMPLE_BYTES) {
        add_bytes(hash, t->data, t->bytes);
        return;
    }
    for (size_t i = 0; i < SAMPLES; i++)
        XXH64_update(hash, t->data + (t->bytes - SAMPLE_BYTES) / (SAMPLES - 1) * i, SAMPLE_BYTES);
}

static qn_status hash_file(const qn_gguf *file, const char *architecture, uint64_t *out)
{
    XXH64_state_t *hash = XXH64_createState();
    if (!hash)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a hash", qn_gguf_path(file));
    XXH64_reset(hash, 0);
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(file, i);
        if (!is_hyper_parameter(kv->key, architecture))
            continue;
        add_bytes(hash, kv->key.data, kv->key.length);
        const uint32_t types[2] = { (uint32_t)kv->type, kv->type == QN_GGUF_ARRAY ? (uint32_t)kv->element_type : 0 };
        XXH64_update(hash, types, sizeof types);
        add_bytes(hash, kv->data, kv->bytes);
    }
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++)
        add_tensor(hash, qn_gguf_tensor_at(file, i));
    *out = XXH64_digest(hash);
    XXH64_freeState(hash);
    return QN_OK;
}

qn_status qn_model_fingerprint(const qn_model *model, uint64_t *out)
{
    QN_TRY(hash_file(model->file, model->hparams.architecture, out));
    return qn_model_check(model);
}

qn_status qn_model_head_fingerprint(const qn_model *model, uint64_t *out)
{
    if (!model->drafter)
        return qn_model_fingerprint(model, out);
    QN_TRY(hash_file(model->drafter, model->plan.head.block ? "dflash" : model->hparams.architecture, out));
    return qn_gguf_check_unchanged(model->drafter);
}
