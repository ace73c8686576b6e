/* Blocks for multi-token prediction that cannot be used: the plan is that of the model alone, the reason names the
 * tensor, the model loads with a line in the log and answers. qn_nextn_check says the same of the block of any file. */
#include "helper_assert.h"
#include "helper_create.h"
#include "helper_files.h"
#include "helper_golden.h"

#include "engine/internal.h"
#include "model/nextn.h"

#include <stdlib.h>
#include <unistd.h>

/* An edit of the bytes of qwen35-mtp.bf16.gguf: a tensor is renamed, or its two dimensions become others. */
static const struct broken_block {
    const char *name, *tensor, *renamed, *text;
    uint64_t dims[2]; /* 0: they stay */
} broken_blocks[] = {
    { "no_projection",
      "blk.3.nextn.eh_proj.weight",
      "blk.3.nextn.eh_prox.weight",
      "tensor 'blk.3.nextn.eh_proj.weight' is missing",
      { 0 } },
    { "no_embedding_norm",
      "blk.3.nextn.enorm.weight",
      "blk.3.nextn.xnorm.weight",
      "tensor 'blk.3.nextn.enorm.weight' is missing",
      { 0 } },
    { "no_hidden_norm",
      "blk.3.nextn.hnorm.weight",
      "blk.3.nextn.xnorm.weight",
      "tensor 'blk.3.nextn.hnorm.weight' is missing",
      { 0 } },
    { "no_attention_norm",
      "blk.3.attn_norm.weight",
      "blk.3.attn_xorm.weight",
      "tensor 'blk.3.attn_norm.weight' is missing",
      { 0 } },
    { "no_keys", "blk.3.attn_k.weight", "blk.3.attn_x.weight", "tensor 'blk.3.attn_k.weight' is missing", { 0 } },
    { "no_query_norm",
      "blk.3.attn_q_norm.weight",
      "blk.3.attn_x_norm.weight",
      "tensor 'blk.3.attn_q_norm.weight' is missing",
      { 0 } },
    { "no_feed_forward",
      "blk.3.ffn_down.weight",
      "blk.3.ffn_dowx.weight",
      "tensor 'blk.3.ffn_down.weight' is missing",
      { 0 } },
    { "projection_transposed",
      "blk.3.nextn.eh_proj.weight",
      NULL,
      "tensor 'blk.3.nextn.eh_proj.weight' is [48, 96, 1, 1], expected [96, 48, 1, 1]",
      { 48, 96 } },
    { "values_of_other_heads", "blk.3.attn_v.weight", NULL, "tensor 'blk.3.attn_v.weight' is [24, 96", { 24, 96 } },
    { "feed_forward_of_another_width",
      "blk.3.ffn_up.weight",
      NULL,
      "tensor 'blk.3.ffn_up.weight' is [96, 32",
      { 96, 32 } },
};

static uint8_t *read_model(size_t *size)
{
    FILE *file = open_golden("qwen35-mtp.bf16", ".gguf");
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    rewind(file);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void edit(uint8_t *bytes, size_t size, const struct broken_block *b)
{
    const size_t length = strlen(b->tensor);
    uint8_t *at = memmem(bytes, size, b->tensor, length);
    assert_non_null(at);
    if (b->renamed)
        memcpy(at, b->renamed, length);
    if (b->dims[0]) /* after the name: their number, then the dimensions */
        memcpy(at + length + sizeof(uint32_t), b->dims, sizeof b->dims);
}

TEST_EACH(plans_are_without_the_block, struct broken_block, b, broken_blocks)
{
    size_t size;
    uint8_t *bytes = read_model(&size);
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan, without;
    qn_model_head head;
    edit(bytes, size, b);
    assert_ok(qn_gguf_open_memory(bytes, size, "edited", &file));
    assert_ok(qn_model_build(file, &hparams, &without));
    assert_ok(qn_model_build_with_head(file, &hparams, &plan, &head));
    assert_false(head.is_there);
    assert_true(head.is_broken);
    if (!strstr(head.why, b->text))
        fail_msg("'%s', expected '%s'", head.why, b->text);
    assert_fails(qn_nextn_check(file, hparams.n_layers, &hparams), QN_ERR_FORMAT, b->text);
    assert_int_equal(plan.n_ops, without.n_ops);
    assert_int_equal(plan.n_buffers, without.n_buffers);
    assert_int_equal(plan.n_acts, without.n_acts);
    assert_int_equal(plan.n_layers, hparams.n_layers);
    assert_int_equal(plan.head.draft, 0);
    assert_ok(qn_plan_validate(&plan));
    qn_plan_free(&plan);
    qn_plan_free(&without);
    qn_gguf_close(file);
    free(bytes);
}

/* ---- Loading ---- */

static char logged[1024];

static void keep_line(void *user, const char *line)
{
    (void)user;
    snprintf(logged, sizeof logged, "%s", line);
}

TEST_EACH(models_run_without_the_block, struct broken_block, b, broken_blocks)
{
    char path[64];
    size_t size;
    uint8_t *bytes = read_model(&size);
    qn_model *model, *refused;
    float logits[72];
    edit(bytes, size, b);
    snprintf(path, sizeof path, "/tmp/quern-test-nextn-%d.gguf", (int)getpid());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    *logged = 0;
    assert_ok(qn_model_load(path, &CPU_MODEL(.on_log = keep_line), &model));
    if (!strstr(logged, "drafts: without mtp: ") || !strstr(logged, b->text))
        fail_msg("the log has '%s', expected '%s'", logged, b->text);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 16));
    assert_ok(qn_session_eval(session, (const qn_token[]){ 1, 2, 3 }, 3, QN_LOGITS_LAST, logits));
    assert_true(isfinite(logits[0]));
    qn_session_free(session);
    assert_fails(qn_model_load(path, &CPU_MODEL(.draft = QN_DRAFT_MTP), &refused), QN_ERR_UNSUPPORTED, b->text);
    assert_null(strstr(qn_error_text(), path)); /* clients of a server may see the text */
    qn_model_free(model);
    unlink(path);
    free(bytes);
}

/* ---- Blocks of other files ---- */

TEST(blocks_serve_models_of_their_shapes)
{
    char path[512];
    qn_gguf *own, *grafted;
    qn_hparams hparams, other;
    qn_plan plan;
    snprintf(path, sizeof path, "%s/tests/golden/qwen35-mtp.bf16.gguf", QN_SOURCE_DIR);
    assert_ok(qn_gguf_open(path, &own));
    snprintf(path, sizeof path, "%s/tests/golden/qwen35-mtp-grafted.f16.gguf", QN_SOURCE_DIR);
    assert_ok(qn_gguf_open(path, &grafted));
    assert_ok(qn_model_build(own, &hparams, &plan));
    qn_plan_free(&plan);
    assert_ok(qn_model_build(grafted, &other, &plan));
    qn_plan_free(&plan);
    assert_ok(qn_nextn_check(own, 3, &hparams));
    assert_ok(qn_nextn_check(grafted, 3, &other));
    assert_fails(qn_nextn_check(grafted, 3, &hparams), QN_ERR_FORMAT, "nextn.eh_proj.weight' is [128, 64");
    assert_fails(qn_nextn_check(own, 3, &other), QN_ERR_FORMAT, "nextn.eh_proj.weight' is [96, 48");
    assert_fails(qn_nextn_check(own, 2, &hparams), QN_ERR_FORMAT, "'blk.2.nextn.eh_proj.weight' is missing");
    qn_gguf_close(grafted);
    qn_gguf_close(own);
}
