/* Drafters that cannot serve a model: each is refused with a text that says what was found and what is expected. */
#include "helper_assert.h"
#include "helper_files.h"
#include "helper_vocab.h"

#include "model/dflash.h"

#include <stdlib.h>

/* An edit of the bytes of qwen35-dflash.f16.gguf: a name becomes another of the same length, the number of a key
 * another one, or an element of a list, or the dimensions of a tensor. */
static const struct edit {
    const char *name, *edited, *renamed; /* edited: a key or a tensor */
    int64_t number;                      /* of a key; -1: it stays */
    int element;                         /* of a list; -1: the key is no list */
    uint64_t dims[2];                    /* 0: they stay */
    qn_status status;
    const char *text;
} edits[] = {
#define RENAMED(from, to)                                                                                              \
    from, to, -1, -1,                                                                                                  \
    {                                                                                                                  \
        0                                                                                                              \
    }
#define NUMBER(key, value)                                                                                             \
    key, NULL, value, -1,                                                                                              \
    {                                                                                                                  \
        0                                                                                                              \
    }
#define ELEMENT(key, i, value)                                                                                         \
    key, NULL, value, i,                                                                                               \
    {                                                                                                                  \
        0                                                                                                              \
    }
#define SHAPE(tensor, a, b)                                                                                            \
    tensor, NULL, -1, -1,                                                                                              \
    {                                                                                                                  \
        a, b                                                                                                           \
    }
    { "no_fusion", RENAMED("fc.weight", "fx.weight"), QN_ERR_FORMAT, "tensor 'fc.weight' is missing" },
    { "no_hidden_norm", RENAMED("enc.output_norm.weight", "enx.output_norm.weight"), QN_ERR_FORMAT,
      "tensor 'enc.output_norm.weight' is missing" },
    { "no_keys", RENAMED("blk.1.attn_k.weight", "blk.1.attn_x.weight"), QN_ERR_FORMAT,
      "tensor 'blk.1.attn_k.weight' is missing" },
    { "no_query_norm", RENAMED("blk.1.attn_q_norm.weight", "blk.1.attn_x_norm.weight"), QN_ERR_FORMAT,
      "tensor 'blk.1.attn_q_norm.weight' is missing" },
    { "fusion_of_other_layers", SHAPE("fc.weight", 64, 64), QN_ERR_FORMAT,
      "tensor 'fc.weight' is [64, 64, 1, 1], expected [128, 64, 1, 1]" },
    { "values_of_other_heads", SHAPE("blk.0.attn_v.weight", 64, 64), QN_ERR_FORMAT,
      "tensor 'blk.0.attn_v.weight' is [64, 64, 1, 1], expected [64, 128, 1, 1]" },
    { "no_output_norm", RENAMED("output_norm.weight", "outpux_norm.weight"), QN_ERR_FORMAT,
      "tensor 'output_norm.weight' is missing" },
    { "no_block", RENAMED("dflash.block_size", "dflash.xlock_size"), QN_ERR_FORMAT, "dflash.block_size" },
    { "a_block_of_one", NUMBER("dflash.block_size", 1), QN_ERR_FORMAT, "dflash.block_size is 1, expected 2 to 16" },
    { "a_long_block", NUMBER("dflash.block_size", 17), QN_ERR_FORMAT, "dflash.block_size is 17, expected 2 to 16" },
    { "no_layers_of_the_model", RENAMED("dflash.target_layers", "dflash.xarget_layers"), QN_ERR_FORMAT,
      "key 'dflash.target_layers' is no array of 1 to 32 layers" },
    { "a_layer_that_is_not_there", ELEMENT("dflash.target_layers", 1, 3), QN_ERR_FORMAT,
      "key 'dflash.target_layers': element 1 is 3, expected 1 to 2, layers of the model" },
    { "the_embedding", ELEMENT("dflash.target_layers", 0, 0), QN_ERR_FORMAT,
      "key 'dflash.target_layers': element 0 is 0, expected 1 to 2" },
    { "no_mask", RENAMED("tokenizer.ggml.mask_token_id", "tokenizer.ggml.xask_token_id"), QN_ERR_FORMAT,
      "tokenizer.ggml.mask_token_id" },
    { "a_mask_beyond_the_vocabulary", NUMBER("tokenizer.ggml.mask_token_id", 72), QN_ERR_FORMAT,
      "tokenizer.ggml.mask_token_id is 72, expected 0 to 71" },
    { "another_width", NUMBER("dflash.embedding_length", 96), QN_ERR_UNSUPPORTED,
      "a drafter for hidden states of 96 elements, those of the model have 64" },
    { "keys_that_are_not_as_long_as_values", NUMBER("dflash.attention.key_length", 48), QN_ERR_UNSUPPORTED,
      "key and value heads" },
    { "groups_of_heads", NUMBER("dflash.attention.head_count", 3), QN_ERR_FORMAT,
      "attention.head_count 3 is not a multiple of attention.head_count_kv 2" },
    { "too_many_layers", NUMBER("dflash.block_count", 65), QN_ERR_FORMAT, "block_count is 65, expected 1 to 64" },
    { "a_layer_too_many", NUMBER("dflash.block_count", 3), QN_ERR_FORMAT, "tensor 'blk.2.attn_k.weight' is missing" },
    { "a_layer_too_few", NUMBER("dflash.block_count", 1), QN_ERR_UNSUPPORTED,
      "tensor 'blk.1.attn_norm.weight' is not used by a 'dflash' model of 1 blocks" },
    { "another_architecture", RENAMED("dflash", "dflask"), QN_ERR_UNSUPPORTED, "architecture other than 'dflash'" },
};

/* The place of a name that is a whole one: a length precedes it. */
static uint8_t *find_name(uint8_t *bytes, size_t size, const char *name)
{
    uint64_t length = strlen(name), found;
    for (uint8_t *at = bytes; (at = memmem(at, size - (size_t)(at - bytes), name, length)); at++) {
        memcpy(&found, at - sizeof found, sizeof found);
        if (found == length)
            return at;
    }
    fail_msg("no '%s'", name);
    return NULL;
}

static void apply(uint8_t *bytes, size_t size, const struct edit *e)
{
    const size_t length = strlen(e->edited);
    uint8_t *at = find_name(bytes, size, e->edited);
    if (e->renamed)
        memcpy(at, e->renamed, length);
    if (e->dims[0]) /* after the name: their number, then the dimensions */
        memcpy(at + length + sizeof(uint32_t), e->dims, sizeof e->dims);
    if (e->number < 0)
        return;
    const uint32_t number = (uint32_t)e->number;
    at += length + sizeof(uint32_t); /* after the type */
    if (e->element >= 0)
        at += sizeof(uint32_t) + sizeof(uint64_t) + (size_t)e->element * sizeof number;
    memcpy(at, &number, sizeof number);
}

static qn_status build(const qn_gguf *drafter)
{
    qn_gguf *model;
    qn_hparams hparams;
    qn_plan plan;
    assert_ok(qn_gguf_open(QN_SOURCE_DIR "/tests/golden/qwen35-mtp-grafted.f16.gguf", &model));
    const qn_status status = qn_model_build_with_drafter(model, drafter, &hparams, &plan);
    if (status == QN_OK)
        qn_plan_free(&plan);
    qn_gguf_close(model);
    return status;
}

static void assert_refused(const char *path, const struct edit *e)
{
    size_t size;
    uint8_t *bytes = read_file(path, &size);
    qn_gguf *file;
    label("%s", e->name);
    apply(bytes, size, e);
    assert_ok(qn_gguf_open_memory(bytes, size, "edited", &file));
    assert_fails(build(file), e->status, e->text);
    qn_gguf_close(file);
    free(bytes);
}

TEST_EACH(broken_drafters_are_refused, struct edit, e, edits)
{
    assert_refused(QN_SOURCE_DIR "/tests/golden/qwen35-dflash.f16.gguf", e);
}

/* Edits of qwen35-dspark.f16.gguf, which has a Markov head and a confidence head. */
static const struct edit markov_edits[] = {
    { "no_second_matrix", RENAMED("markov_w2.weight", "markov_w3.weight"), QN_ERR_FORMAT,
      "tensor 'markov_w2.weight' is missing" },
    { "no_first_matrix", RENAMED("markov_w1.weight", "markov_w0.weight"), QN_ERR_UNSUPPORTED,
      "tensor 'markov_w0.weight'" },
    { "another_rank", SHAPE("markov_w1.weight", 16, 72), QN_ERR_FORMAT,
      "tensor 'markov_w2.weight' is [32, 72, 1, 1], expected [16, 72, 1, 1]" },
    { "another_vocabulary", SHAPE("markov_w1.weight", 32, 64), QN_ERR_FORMAT,
      "tensor 'markov_w1.weight' is [32, 64, 1, 1], expected [32, 72, 1, 1]" },
    { "confidence_of_another_rank", SHAPE("conf_proj.weight", 64, 1), QN_ERR_FORMAT,
      "tensor 'conf_proj.weight' is [64, 1, 1, 1], expected [96, 1" },
};

TEST_EACH(broken_markov_heads_are_refused, struct edit, e, markov_edits)
{
    assert_refused(QN_SOURCE_DIR "/tests/golden/qwen35-dspark.f16.gguf", e);
}

TEST(drafters_are_no_models)
{
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan;
    assert_ok(qn_gguf_open(QN_SOURCE_DIR "/tests/golden/qwen35-dflash.f16.gguf", &file));
    assert_fails(qn_model_build(file, &hparams, &plan), QN_ERR_UNSUPPORTED, "a drafter for a model");
    qn_gguf_close(file);
}

TEST(heads_without_codes_are_refused)
{
    qn_gguf *file;
    assert_ok(qn_gguf_open(QN_SOURCE_DIR "/tests/golden/qwen3-dflash-causal.f32.gguf", &file));
    assert_fails(build(file), QN_ERR_UNSUPPORTED,
                 "heads of 32 elements, for which caches have no codes; those of the model have 64");
    qn_gguf_close(file);
}

/* Tensors that only drafters of other kinds have. The file has nothing else. */
static const struct other_kind {
    const char *name, *text;
} other_kinds[] = {
    { "selector_hidden.weight", "tensor 'selector_hidden.weight': a drafter that is DFlash 2, with a selector" },
    { "d2t", "tensor 'd2t': a drafter that is of a vocabulary of its own" },
};

TEST_EACH(drafters_of_other_kinds_are_named, struct other_kind, kind, other_kinds)
{
    struct file_bytes bytes = { 0 };
    uint64_t n_keys = 0;
    qn_gguf *file;
    put_bytes(&bytes, "GGUF", 4);
    put_u32(&bytes, 3);
    put_u64(&bytes, 1); /* tensors */
    put_u64(&bytes, 1); /* keys */
    put_key_string(&bytes, &n_keys, "general.architecture", "dflash");
    put_string(&bytes, kind->name, strlen(kind->name));
    put_u32(&bytes, 1); /* dimensions */
    put_u64(&bytes, 1);
    put_u32(&bytes, 0); /* f32 */
    put_u64(&bytes, 0);
    while (bytes.n % 32)
        put_bytes(&bytes, "", 1);
    put_u32(&bytes, 0);
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "small", &file));
    assert_fails(build(file), QN_ERR_UNSUPPORTED, kind->text);
    qn_gguf_close(file);
    free(bytes.data);
}
