/* Files with a block for multi-token prediction alone that cannot serve a model as its draft head: each is refused with
 * a text that says what was found and what is expected. test_graft.c has the same for files that are joined. */
#include "helper_change.h"

#include "model/model.h"
#include "model/role.h"

#include <unistd.h>

#define GOLDEN(name) QN_SOURCE_DIR "/tests/golden/" name ".gguf"

static qn_string rotated[] = { { "blk.4.attn_q.weight", 20 } };
static int32_t few_layers[] = { 4 };

/* Of scheduler-mtp-block.gguf. */
static const struct misfit {
    const char *name;
    struct change change;
    qn_status status;
    const char *text;
} misfits[] = {
    { "another_architecture",
      { .keys = { { "general.architecture", .text = "qwen3next" } } },
      QN_ERR_INVALID,
      "general.architecture is 'qwen3next', but 'qwen35' in " },
    { "two_blocks", { .keys = { { "qwen35.nextn_predict_layers", .value = 2 } } }, QN_ERR_INVALID, "it has 2 MTP blo" },
    { "a_tensor_of_another_block",
      { .renamed = "blk.4.attn_q.weight", .to = "blk.5.nextn.x.weight" },
      QN_ERR_INVALID,
      "blocks 4 and 5 are MTP blocks, expected one" },
    { "another_width",
      { .keys = { { "qwen35.embedding_length", .value = 96 } } },
      QN_ERR_INVALID,
      "embedding_length: 96, but 128 in " },
    { "other_heads",
      { .keys = { { "qwen35.attention.head_count", .value = 8 } } },
      QN_ERR_INVALID,
      "attention.head_count: 8, but 4 in " },
    { "other_key_heads",
      { .keys = { { "qwen35.attention.head_count_kv", .value = 1 } } },
      QN_ERR_INVALID,
      "attention.head_count_kv: 1, but 2 in " },
    { "heads_of_other_layers",
      { .keys = { { "qwen35.attention.head_count", .array = few_layers, .n = 1 } } },
      QN_ERR_FORMAT,
      "key 'qwen35.attention.head_count' has 1 elements" },
    { "shorter_heads",
      { .keys = { { "qwen35.attention.key_length", .value = 64 } } },
      QN_ERR_INVALID,
      "attention.key_length: 64, but 128 in " },
    { "another_feed_forward",
      { .keys = { { "qwen35.feed_forward_length", .value = 96 } } },
      QN_ERR_INVALID,
      "feed_forward_length: 96, but 128 in " },
    { "other_dimensions_of_rope",
      { .keys = { { "qwen35.rope.dimension_count", .value = 16 } } },
      QN_ERR_INVALID,
      "rope.dimension_count: 16, but 32 in " },
    { "no_hidden_norm",
      { .without = "blk.4.nextn.hnorm.weight" },
      QN_ERR_FORMAT,
      "tensor 'blk.4.nextn.hnorm.weight' of the MTP block is missing" },
    { "no_keys", { .without = "blk.4.attn_k.weight" }, QN_ERR_FORMAT, "tensor 'blk.4.attn_k.weight' of the MTP " },
    { "a_projection_transposed",
      { .misshapen = "blk.4.nextn.eh_proj.weight" },
      QN_ERR_FORMAT,
      "tensor 'blk.4.nextn.eh_proj.weight' is 128 x 256 x 1 x 1, expected 256 x 128" },
    { "a_wide_norm",
      { .misshapen = "blk.4.attn_norm.weight" },
      QN_ERR_FORMAT,
      "tensor 'blk.4.attn_norm.weight' is 64 x 2 x 1 x 1, expected 128 x 1" },
    { "an_unknown_tensor",
      { .renamed = "blk.4.nextn.shared_head_norm.weight", .to = "blk.4.nextn.shared_head_form.weight" },
      QN_ERR_FORMAT,
      "tensor 'blk.4.nextn.shared_head_form.weight' is unknown in an MTP block of 'qwen35'" },
    { "other_tokens",
      { .keys = { { "tokenizer.ggml.tokens", .strings = rotated, .n = 1 } } },
      QN_ERR_INVALID,
      "number of tokens: 1, but 4096 in " },
    { "a_rotated_block",
      { .keys = { { "prism.hadamard.weight_names", .strings = rotated, .n = 1 } } },
      QN_ERR_UNSUPPORTED,
      "'blk.4.attn_q.weight' is rotated (prism.hadamard.weight_names), which a block to join may not be" },
};

static qn_status build(const char *model, const qn_gguf *block)
{
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan;
    assert_ok(qn_gguf_open(model, &file));
    const qn_status status = qn_model_build_with_drafter(file, block, &hparams, &plan);
    if (status == QN_OK)
        qn_plan_free(&plan);
    qn_gguf_close(file);
    return status;
}

/* A changed copy of the block's file. */
static qn_gguf *open_changed(const struct change *change)
{
    char path[64];
    qn_gguf *file;
    snprintf(path, sizeof path, "/tmp/quern-test-mtp-block-%d", (int)getpid());
    change_file(GOLDEN("scheduler-mtp-block"), path, change);
    assert_ok(qn_gguf_open(path, &file));
    unlink(path);
    return file;
}

TEST_EACH(misfits_are_refused, struct misfit, m, misfits)
{
    label("%s", m->name);
    qn_gguf *file = open_changed(&m->change);
    assert_fails(build(GOLDEN("scheduler"), file), m->status, m->text);
    qn_gguf_close(file);
}

/* Blocks are found by their tensors, too, whatever their number is. */
TEST(blocks_without_a_count_serve)
{
    static const struct change changes[] = { { 0 },
                                             { .as_first = true },
                                             { .without_key = "qwen35.nextn_predict_layers" },
                                             { .without_key = "qwen35.nextn_predict_layers", .as_first = true } };
    for (size_t i = 0; i < COUNT(changes); i++) {
        qn_gguf *file = open_changed(&changes[i]);
        assert_true(qn_file_is_mtp_block(file));
        assert_ok(build(GOLDEN("scheduler"), file));
        qn_gguf_close(file);
    }
}

/* Models whose architecture has no such blocks, and a rope of other scaling. */
TEST(other_models_are_refused)
{
    qn_gguf *file = open_changed(&(struct change){
        .keys = { { "general.architecture", .text = "qwen3" }, { "qwen3.nextn_predict_layers", .value = 1 } } });
    assert_fails(build(GOLDEN("qwen3.f16"), file), QN_ERR_UNSUPPORTED,
                 "which models of the architecture 'qwen3' (" GOLDEN("qwen3.f16") ") do not have");
    qn_gguf_close(file);
    file = open_changed(&(struct change){ 0 });
    assert_fails(build(GOLDEN("qwen35.f16"), file), QN_ERR_INVALID, "embedding_length: 128, but 48 in ");
    qn_gguf_close(file);
}
