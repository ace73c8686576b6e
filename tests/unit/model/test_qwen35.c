/* Gated DeltaNet layers in a plan: several sessions in one step, stale memory of an earlier conversation, numbers of
 * threads. Files of this architecture with one error each are rejected with a text that names it. Models are small,
 * random and built in memory; test_golden_logits.c tests that results are correct.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "helper_image.h"
#include "helper_model.h"
#include "helper_random.h"

#include "base/append.h"
#include "base/cpu.h"
#include "base/memory.h"

#include <math.h>

enum { EMBD = 32, FF = 64, HEAD = 16, K_HEADS = 2, V_HEADS = 4, HEAD_K = 16, HEAD_V = 32, TAPS = 3, VOCAB = 24 };
enum { CONV = 2 * K_HEADS * HEAD_K + V_HEADS * HEAD_V, MAX_KEYS = 40, MAX_TENSORS = 64 };

/* ---- A model file, as lists that a test may change before it is written ---- */

struct key {
    char name[64];
    uint32_t type; /* QN_GGUF_U32, QN_GGUF_F32, QN_GGUF_STRING or QN_GGUF_ARRAY */
    uint32_t integer;
    float real;
    const char *text;
    uint32_t elements; /* of an array: QN_GGUF_BOOL or QN_GGUF_I8 */
};

struct tensor {
    char name[64];
    uint32_t type;
    uint64_t cols, rows;
};

struct model_file {
    struct key keys[MAX_KEYS];
    struct tensor tensors[MAX_TENSORS];
    size_t n_keys, n_tensors;
    float decay_factor; /* values of ssm_a */
};

static struct key *key_of(struct model_file *f, const char *name)
{
    size_t i = 0;
    while (i < f->n_keys && strcmp(f->keys[i].name, name) != 0)
        i++;
    assert_true(i < MAX_KEYS);
    if (i == f->n_keys) {
        snprintf(f->keys[i].name, sizeof f->keys[i].name, "%s", name);
        f->n_keys++;
    }
    return &f->keys[i];
}

static void set_u32(struct model_file *f, const char *name, uint32_t value)
{
    struct key *key = key_of(f, name);
    key->type = QN_GGUF_U32;
    key->integer = value;
}

/* An array of n elements, one byte of the text each. */
static void set_array(struct model_file *f, const char *name, uint32_t elements, uint32_t n, const char *text)
{
    struct key *key = key_of(f, name);
    key->type = QN_GGUF_ARRAY;
    key->elements = elements;
    key->integer = n;
    key->text = text;
}

static void set_bools(struct model_file *f, const char *name, uint32_t n, const char *text)
{
    set_array(f, name, QN_GGUF_BOOL, n, text);
}

static void drop_key(struct model_file *f, const char *name)
{
    struct key *key = key_of(f, name);
    *key = f->keys[--f->n_keys];
}

static void add_tensor(struct model_file *f, int layer, const char *name, uint64_t cols, uint64_t rows)
{
    struct tensor *t = &f->tensors[f->n_tensors++];
    assert_true(f->n_tensors <= MAX_TENSORS);
    *t = (struct tensor){ .type = QN_TYPE_F32, .cols = cols, .rows = rows };
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
}

static struct tensor *tensor_of(struct model_file *f, const char *name)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    fail_msg("the file has no tensor '%s'", name);
    return NULL;
}

static void drop_tensor(struct model_file *f, const char *name)
{
    *tensor_of(f, name) = f->tensors[--f->n_tensors];
}

static void add_attention(struct model_file *f, int layer)
{
    add_tensor(f, layer, "attn_q.weight", EMBD, 2 * 2 * HEAD);
    add_tensor(f, layer, "attn_k.weight", EMBD, HEAD);
    add_tensor(f, layer, "attn_v.weight", EMBD, HEAD);
    add_tensor(f, layer, "attn_output.weight", 2 * HEAD, EMBD);
    add_tensor(f, layer, "attn_q_norm.weight", HEAD, 1);
    add_tensor(f, layer, "attn_k_norm.weight", HEAD, 1);
}

static void add_delta(struct model_file *f, int layer)
{
    add_tensor(f, layer, "attn_qkv.weight", EMBD, CONV);
    add_tensor(f, layer, "attn_gate.weight", EMBD, V_HEADS * HEAD_V);
    add_tensor(f, layer, "ssm_alpha.weight", EMBD, V_HEADS);
    add_tensor(f, layer, "ssm_beta.weight", EMBD, V_HEADS);
    add_tensor(f, layer, "ssm_conv1d.weight", TAPS, CONV);
    add_tensor(f, layer, "ssm_dt.bias", V_HEADS, 1);
    add_tensor(f, layer, "ssm_a", V_HEADS, 1);
    add_tensor(f, layer, "ssm_norm.weight", HEAD_V, 1);
    add_tensor(f, layer, "ssm_out.weight", V_HEADS * HEAD_V, EMBD);
}

/* Three layers, the second with attention, and an MTP block after them. */
static void make_valid(struct model_file *f)
{
    *f = (struct model_file){ .decay_factor = -0.5f };
    *key_of(f, "general.architecture") = (struct key){ "general.architecture", QN_GGUF_STRING, 0, 0, "qwen35", 0 };
    set_u32(f, "qwen35.block_count", 4);
    set_u32(f, "qwen35.nextn_predict_layers", 1);
    set_u32(f, "qwen35.context_length", 512);
    set_u32(f, "qwen35.embedding_length", EMBD);
    set_u32(f, "qwen35.feed_forward_length", FF);
    set_u32(f, "qwen35.attention.head_count", 2);
    set_u32(f, "qwen35.attention.head_count_kv", 1);
    set_u32(f, "qwen35.attention.key_length", HEAD);
    set_u32(f, "qwen35.attention.value_length", HEAD);
    set_u32(f, "qwen35.rope.dimension_count", HEAD / 2);
    set_u32(f, "qwen35.full_attention_interval", 2);
    set_u32(f, "qwen35.ssm.conv_kernel", TAPS);
    set_u32(f, "qwen35.ssm.inner_size", V_HEADS * HEAD_V);
    set_u32(f, "qwen35.ssm.state_size", HEAD_K);
    set_u32(f, "qwen35.ssm.time_step_rank", V_HEADS);
    set_u32(f, "qwen35.ssm.group_count", K_HEADS);
    struct key *eps = key_of(f, "qwen35.attention.layer_norm_rms_epsilon");
    eps->type = QN_GGUF_F32;
    eps->real = 1e-6f;
    add_tensor(f, -1, "token_embd.weight", EMBD, VOCAB);
    add_tensor(f, -1, "output_norm.weight", EMBD, 1);
    for (int layer = 0; layer < 4; layer++) {
        add_tensor(f, layer, "attn_norm.weight", EMBD, 1);
        (layer % 2 ? add_attention : add_delta)(f, layer);
        add_tensor(f, layer, "post_attention_norm.weight", EMBD, 1);
        add_tensor(f, layer, "ffn_gate.weight", EMBD, FF);
        add_tensor(f, layer, "ffn_up.weight", EMBD, FF);
        add_tensor(f, layer, "ffn_down.weight", FF, EMBD);
    }
    add_tensor(f, 3, "nextn.eh_proj.weight", 2 * EMBD, EMBD);
}

static size_t tensor_bytes(const struct tensor *t)
{
    return t->cols * t->rows * (t->type == QN_TYPE_F32 ? 4 : 2);
}

static void put_values(const struct model_file *f, const struct tensor *t, uint32_t place)
{
    const bool factor = strstr(t->name, "ssm_a") && !strstr(t->name, "alpha"), norm = strstr(t->name, "norm") != NULL;
    for (uint32_t i = 0; i < t->cols * t->rows; i++) {
        const float value = factor ? f->decay_factor : norm ? 1 + 0.2f * number_at(i) : number_at(i + place);
        if (t->type == QN_TYPE_F32)
            put(&value, sizeof value);
        else
            put((const uint8_t *)&value + 2, 2);
    }
}

static void write_image(const struct model_file *f)
{
    size_t offset = 0;
    uint32_t place = 0;
    put_header(3, f->n_tensors, f->n_keys);
    for (const struct key *k = f->keys; k < f->keys + f->n_keys; k++) {
        put_key(k->name, k->type);
        if (k->type == QN_GGUF_STRING)
            put_text(k->text);
        else if (k->type == QN_GGUF_U32)
            put32(k->integer);
        else if (k->type == QN_GGUF_F32)
            put(&k->real, sizeof k->real);
        else {
            put32(k->elements);
            put64(k->integer);
            put(k->text, k->integer);
        }
    }
    for (const struct tensor *t = f->tensors; t < f->tensors + f->n_tensors; t++) {
        put_tensor(t->name, t->type, offset, 2, t->cols, t->rows, 1, 1);
        offset += qn_round_up(tensor_bytes(t), 32);
    }
    for (const struct tensor *t = f->tensors; t < f->tensors + f->n_tensors; t++) {
        put_data(32, 0);
        put_values(f, t, place);
        place += (uint32_t)(t->cols * t->rows);
    }
    put_data(32, 0);
}

/* ---- Files with one error ---- */

/* A change of the valid file. Members that are zero change nothing. */
static const struct wrong_file {
    const char *name;
    qn_status status;
    const char *text; /* that the error text must contain */
    const char *dropped_key, *dropped_tensor;
    const char *renamed[2];
    const char *key;
    uint32_t value;               /* of the key */
    const char *bools, *i8s;      /* the key is an array of `value` bools or integers of 8 bits */
    struct tensor changed, added; /* changed: in what is not zero */
    float decay_factor;
} wrong_files[] = {
    { "no_conv_kernel", QN_ERR_FORMAT, "qwen35.ssm.conv_kernel", .dropped_key = "qwen35.ssm.conv_kernel" },
    { "one_tap", QN_ERR_FORMAT, "ssm.conv_kernel is 1", .key = "qwen35.ssm.conv_kernel", .value = 1 },
    { "nine_taps", QN_ERR_FORMAT, "ssm.conv_kernel is 9", .key = "qwen35.ssm.conv_kernel", .value = 9 },
    { "no_value_heads", QN_ERR_FORMAT, "ssm.time_step_rank is 0", .key = "qwen35.ssm.time_step_rank", .value = 0 },
    { "no_key_heads", QN_ERR_FORMAT, "ssm.group_count is 0", .key = "qwen35.ssm.group_count", .value = 0 },
    { "more_key_heads", QN_ERR_FORMAT, "ssm.group_count is 8", .key = "qwen35.ssm.group_count", .value = 2 * V_HEADS },
    { "uneven_key_heads", QN_ERR_FORMAT, "ssm.group_count 3", .key = "qwen35.ssm.group_count", .value = 3 },
    { "uneven_inner_size", QN_ERR_FORMAT, "ssm.inner_size 129", .key = "qwen35.ssm.inner_size",
      .value = V_HEADS * HEAD_V + 1 },
    { "endless_inner_size", QN_ERR_UNSUPPORTED, "value heads", .key = "qwen35.ssm.inner_size", .value = 0xfffffff0 },
    { "inner_size_0", QN_ERR_UNSUPPORTED, "value heads", .key = "qwen35.ssm.inner_size", .value = 0 },
    { "key_head_24", QN_ERR_UNSUPPORTED, "24 elements", .key = "qwen35.ssm.state_size", .value = 24 },
    { "key_head_512", QN_ERR_UNSUPPORTED, "512 elements", .key = "qwen35.ssm.state_size", .value = 512 },
    { "interval_0", QN_ERR_FORMAT, "full_attention_interval is 0", .key = "qwen35.full_attention_interval",
      .value = 0 },
    { "interval_3", QN_ERR_FORMAT, "'blk.1.attn_qkv.weight' is missing", .key = "qwen35.full_attention_interval",
      .value = 3 },
    { "all_blocks_predict", QN_ERR_FORMAT, "nextn_predict_layers is 4", .key = "qwen35.nextn_predict_layers",
      .value = 4 },
    { "short_list_of_layers", QN_ERR_FORMAT, "recurrent_layers", .key = "qwen35.attention.recurrent_layers", .value = 2,
      .bools = "\1\0" },
    { "odd_list_of_layers", QN_ERR_FORMAT, "element 2 is 7", .key = "qwen35.attention.recurrent_layers", .value = 3,
      .bools = "\1\0\7" },
    { "list_that_is_a_number", QN_ERR_FORMAT, "recurrent_layers", .key = "qwen35.attention.recurrent_layers",
      .value = 1 },
    { "list_against_tensors", QN_ERR_FORMAT, "'blk.1.attn_qkv.weight' is missing",
      .key = "qwen35.attention.recurrent_layers", .value = 3, .bools = "\1\1\1" },
    { "two_kv_heads_in_a_layer", QN_ERR_UNSUPPORTED,
      "'qwen35.attention.head_count_kv' is 1 in layer 1 and 2 in layer 2", .key = "qwen35.attention.head_count_kv",
      .value = 4, .i8s = "\0\1\2\1" },
    { "no_kv_heads", QN_ERR_FORMAT, "'qwen35.attention.head_count_kv' is 0 in all layers",
      .key = "qwen35.attention.head_count_kv", .value = 3, .i8s = "\0\0\0" },
    { "attention_without_kv_heads", QN_ERR_FORMAT, "is 0 in layer 1, which has attention",
      .key = "qwen35.attention.head_count_kv", .value = 3, .i8s = "\1\0\1" },
    { "attention_without_heads", QN_ERR_FORMAT, "'qwen35.attention.head_count' is 0 in layer 1",
      .key = "qwen35.attention.head_count", .value = 3, .i8s = "\2\0\2" },
    { "negative_kv_heads", QN_ERR_FORMAT, "element 1 is -1", .key = "qwen35.attention.head_count_kv", .value = 3,
      .i8s = "\0\377\0" },
    { "short_list_of_kv_heads", QN_ERR_FORMAT, "has 2 elements, expected 3", .key = "qwen35.attention.head_count_kv",
      .value = 2, .i8s = "\1\1" },
    { "feed_forward_0_in_a_layer", QN_ERR_UNSUPPORTED, "in layer 0 and 0 in layer 1",
      .key = "qwen35.feed_forward_length", .value = 3, .i8s = "\40\0\40" },
    { "sections_that_are_a_number", QN_ERR_FORMAT, "not an array of 3 or 4", .key = "qwen35.rope.dimension_sections",
      .value = 4 },
    { "two_sections", QN_ERR_FORMAT, "not an array of 3 or 4", .key = "qwen35.rope.dimension_sections", .value = 2,
      .i8s = "\4\4" },
    { "five_sections", QN_ERR_FORMAT, "not an array of 3 or 4", .key = "qwen35.rope.dimension_sections", .value = 5,
      .i8s = "\2\2\2\2\2" },
    { "negative_section", QN_ERR_FORMAT, "dimension_sections': element 1 is -1",
      .key = "qwen35.rope.dimension_sections", .value = 3, .i8s = "\4\377\4" },
    { "no_conv", QN_ERR_FORMAT, "'blk.0.ssm_conv1d.weight' is missing", .dropped_tensor = "blk.0.ssm_conv1d.weight" },
    { "conv_transposed", QN_ERR_FORMAT, "expected [3, 192, 1, 1]",
      .changed = { "blk.0.ssm_conv1d.weight", .cols = CONV, .rows = TAPS } },
    { "bf16_conv", QN_ERR_UNSUPPORTED, "'blk.2.ssm_conv1d.weight' has type 30",
      .changed = { "blk.2.ssm_conv1d.weight", .type = QN_TYPE_BF16 } },
    { "no_alpha", QN_ERR_FORMAT, "'blk.2.ssm_alpha.weight' is missing", .dropped_tensor = "blk.2.ssm_alpha.weight" },
    { "no_bias", QN_ERR_FORMAT, "'blk.0.ssm_dt.bias' is missing", .dropped_tensor = "blk.0.ssm_dt.bias" },
    { "short_factors", QN_ERR_FORMAT, "'blk.0.ssm_a' is [3, 1", .changed = { "blk.0.ssm_a", .cols = V_HEADS - 1 } },
    { "growing_state", QN_ERR_FORMAT, "'blk.0.ssm_a' is 0.001 at 0", .decay_factor = 1e-3f },
    { "endless_decay", QN_ERR_FORMAT, "'blk.0.ssm_a' is -inf", .decay_factor = -INFINITY },
    { "norm_of_all_heads", QN_ERR_FORMAT, "'blk.0.ssm_norm.weight' is [128, 1",
      .changed = { "blk.0.ssm_norm.weight", .cols = V_HEADS * HEAD_V } },
    { "query_without_gate", QN_ERR_FORMAT, "'blk.1.attn_q.weight' is [32, 32",
      .changed = { "blk.1.attn_q.weight", .rows = 2 * HEAD } },
    { "no_query_norm", QN_ERR_FORMAT, "'blk.1.attn_q_norm.weight' is missing",
      .dropped_tensor = "blk.1.attn_q_norm.weight" },
    { "other_norm", QN_ERR_FORMAT, "'blk.0.post_attention_norm.weight' is missing",
      .renamed = { "blk.0.post_attention_norm.weight", "blk.0.ffn_norm.weight" } },
    { "qkv_bias", QN_ERR_UNSUPPORTED, "'blk.0.attn_qkv.bias' is not used by",
      .added = { "blk.0.attn_qkv.bias", .cols = CONV, .rows = 1 } },
    { "prediction_in_the_trunk", QN_ERR_UNSUPPORTED, "'blk.2.nextn.enorm.weight' is not used by",
      .added = { "blk.2.nextn.enorm.weight", .cols = EMBD, .rows = 1 } },
    { "prediction_without_key", QN_ERR_UNSUPPORTED, "'blk.3.nextn.eh_proj.weight' is not used by",
      .dropped_key = "qwen35.nextn_predict_layers" },
    { "block_after_the_last", QN_ERR_UNSUPPORTED, "'blk.4.nextn.enorm.weight' is not used by",
      .added = { "blk.4.nextn.enorm.weight", .cols = EMBD, .rows = 1 } },
};

static void change_file(struct model_file *f, const struct wrong_file *wrong)
{
    if (wrong->dropped_key)
        drop_key(f, wrong->dropped_key);
    if (wrong->dropped_tensor)
        drop_tensor(f, wrong->dropped_tensor);
    if (wrong->renamed[0])
        qn_print(tensor_of(f, wrong->renamed[0])->name, 64, "%s", wrong->renamed[1]);
    if (wrong->bools)
        set_bools(f, wrong->key, wrong->value, wrong->bools);
    else if (wrong->i8s)
        set_array(f, wrong->key, QN_GGUF_I8, wrong->value, wrong->i8s);
    else if (wrong->key)
        set_u32(f, wrong->key, wrong->value);
    if (*wrong->changed.name) {
        struct tensor *t = tensor_of(f, wrong->changed.name);
        t->type = wrong->changed.type ? wrong->changed.type : t->type;
        t->cols = wrong->changed.cols ? wrong->changed.cols : t->cols;
        t->rows = wrong->changed.rows ? wrong->changed.rows : t->rows;
    }
    if (*wrong->added.name)
        add_tensor(f, -1, wrong->added.name, wrong->added.cols, wrong->added.rows);
    if (wrong->decay_factor != 0)
        f->decay_factor = wrong->decay_factor;
}

TEST_EACH(test_wrong_file, struct wrong_file, wrong, wrong_files)
{
    struct model_file f;
    qn_gguf *file;
    uint8_t *copy;
    qn_hparams hparams;
    qn_plan plan;
    make_valid(&f);
    change_file(&f, wrong);
    write_image(&f);
    assert_ok(open_image(&image, &file, &copy));
    const qn_status status = qn_model_build(file, &hparams, &plan);
    if (status != wrong->status || !strstr(qn_error_text(), wrong->text))
        fail_msg("status %s with the text '%s', expected %s and '%s'", qn_status_name(status),
                 status == QN_OK ? "" : qn_error_text(), qn_status_name(wrong->status), wrong->text);
    qn_gguf_close(file);
    free(copy);
}

/* ---- Running ---- */

enum { MAX_ROWS = 256, CONTEXT = 256 };

static void set_up(struct fixture *x, const struct model_file *f, int n_threads, unsigned cpu)
{
    *x = (struct fixture){ 0 };
    write_image(f);
    assert_ok(open_image(&image, &x->file, &x->data));
    build_executor(x, n_threads, cpu, MAX_ROWS, CONTEXT);
}

struct conversation {
    struct memory memory;
    uint32_t length, seed;
};

static void begin(const struct fixture *x, struct conversation *c, uint32_t seed)
{
    *c = (struct conversation){ .memory = new_memory(x), .seed = seed };
}

static void end(struct conversation *c)
{
    free_memory(&c->memory);
}

/* One step: the next n[i] tokens of each conversation. The logits of position p go to row p of out[i]. */
static void step(const struct fixture *x, struct conversation *const *c, const size_t *n, float *const *out,
                 size_t n_sessions)
{
    static qn_row rows[MAX_ROWS];
    static uint32_t logit_rows[MAX_ROWS];
    static float logits[MAX_ROWS * VOCAB];
    qn_step s = { .rows = rows, .logit_rows = logit_rows, .logits = logits };
    for (size_t i = 0; i < n_sessions; i++) {
        prepare_memory(&c[i]->memory, n[i]);
        for (uint32_t k = 0; k < n[i]; k++) {
            const uint32_t position = c[i]->length + k;
            logit_rows[s.n_rows] = (uint32_t)s.n_rows;
            rows[s.n_rows++] =
                row_of_memory(&c[i]->memory, (int32_t)((position * 7 + position / 5 + c[i]->seed) % VOCAB), position);
        }
    }
    s.n_logit_rows = s.n_rows;
    qn_executor_run(x->executor, &s);
    for (size_t i = 0, row = 0; i < n_sessions; row += n[i++]) {
        memcpy(out[i] + c[i]->length * VOCAB, logits + row * VOCAB, n[i] * VOCAB * sizeof(float));
        c[i]->length += (uint32_t)n[i];
        append_memory(&c[i]->memory, c[i]->length);
    }
}

static void truncate_to(struct conversation *c, uint32_t length)
{
    c->length = length;
    qn_memory_truncate(&c->memory.of->base, length);
}

enum { LONG = 150 }; /* two full chunks and part of a third */

static void all_at_once(const struct fixture *x, struct conversation *c, float *logits)
{
    step(x, &c, &(size_t){ LONG }, &logits, 1);
}

TEST(test_side_by_side)
{
    static float expected[2][LONG * VOCAB], found[2][LONG * VOCAB];
    struct model_file f;
    struct fixture x;
    struct conversation c[2];
    make_valid(&f);
    set_up(&x, &f, 2, 0);
    for (uint32_t i = 0; i < 2; i++) {
        begin(&x, &c[i], i);
        all_at_once(&x, &c[i], expected[i]);
        end(&c[i]);
        begin(&x, &c[i], i);
    }
    assert_memory_not_equal(expected[0], expected[1], sizeof expected[0]);
    /* Steps that end before, at and after the end of a chunk in one conversation, but not in the other. */
    static const size_t pieces[][2] = { { 5, 64 }, { 59, 1 }, { 1, 30 }, { 64, 1 }, { 1, 33 }, { 20, 21 } };
    for (size_t i = 0; i < COUNT(pieces); i++)
        step(&x, (struct conversation *[]){ &c[0], &c[1] }, pieces[i], (float *[]){ found[0], found[1] }, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(c[i].length, LONG);
        assert_memory_equal(found[i], expected[i], sizeof expected[i]);
        end(&c[i]);
    }
    tear_down(&x);
}

/* After a truncation to length 0 the contents of memory are not used: NaN there must not reach the logits. */
TEST(test_old_memory)
{
    static float expected[LONG * VOCAB], found[LONG * VOCAB];
    static const size_t pieces[] = { 1, 1, 2, 61, LONG - 65 };
    struct model_file f;
    struct fixture x;
    struct conversation c, *session = &c;
    float *out = found;
    make_valid(&f);
    set_up(&x, &f, 2, 0);
    begin(&x, &c, 3);
    all_at_once(&x, &c, expected);
    for (size_t i = 0; i < LONG * VOCAB; i++)
        assert_true(isfinite(expected[i]));
    const qn_recurrent_view *recurrent = &c.memory.of->recurrent;
    for (size_t i = 0, count; i < recurrent->layout->n_layers * QN_SAVED_ARRAYS; i++) {
        float *data = qn_recurrent_array(recurrent, i / QN_SAVED_ARRAYS, (qn_saved_array)(i % QN_SAVED_ARRAYS), &count);
        for (size_t k = 0; k < count; k++)
            data[k] = NAN;
    }
    truncate_to(&c, 0);
    for (size_t i = 0; i < COUNT(pieces); i++)
        step(&x, &session, &pieces[i], &out, 1);
    assert_memory_equal(found, expected, sizeof expected);
    end(&c);
    tear_down(&x);
}

/* Truncation within the open chunk only drops rows. */
TEST(test_truncate_within_the_open_chunk)
{
    static float expected[LONG * VOCAB], found[LONG * VOCAB];
    struct model_file f;
    struct fixture x;
    struct conversation c, *session = &c;
    float *out = found;
    make_valid(&f);
    set_up(&x, &f, 2, 0);
    begin(&x, &c, 3);
    all_at_once(&x, &c, expected);
    end(&c);
    begin(&x, &c, 3);
    step(&x, &session, &(size_t){ 100 }, &out, 1);
    truncate_to(&c, 65);
    c.seed = 11; /* other tokens, which are dropped too */
    step(&x, &session, &(size_t){ 20 }, &out, 1);
    truncate_to(&c, 65);
    c.seed = 3;
    memset(found + (size_t)65 * VOCAB, 0, (LONG - 65) * VOCAB * sizeof(float));
    step(&x, &session, &(size_t){ LONG - 65 }, &out, 1);
    assert_memory_equal(found, expected, sizeof expected);
    end(&c);
    tear_down(&x);
}

/* Heads are distributed unevenly over 3 threads; with 11, more threads than heads, slices of heads are distributed. */
TEST(test_threads_and_instruction_sets)
{
    static float expected[LONG * VOCAB], found[LONG * VOCAB];
    static const int n_threads[] = { 1, 2, 3, 7, 11 };
    struct model_file f;
    make_valid(&f);
    for (size_t i = 0; i < 2 * (COUNT(n_threads)); i++) {
        struct fixture x;
        struct conversation c;
        set_up(&x, &f, n_threads[i / 2], i % 2 ? qn_cpu_present() : 0);
        begin(&x, &c, 5);
        all_at_once(&x, &c, i ? found : expected);
        if (i && memcmp(found, expected, sizeof expected) != 0)
            fail_msg("%d threads, %s: logits differ", n_threads[i / 2], i % 2 ? "best kernels" : "reference");
        end(&c);
        tear_down(&x);
    }
}

/* A list of layers is equivalent to the interval; it may include the ignored block. Heads of each layer are equivalent
 * to those of all. */
TEST(test_list_of_layers)
{
    static float expected[LONG * VOCAB], found[LONG * VOCAB];
    for (uint32_t n = 0; n < 5; n += n ? 1 : 3) {
        struct model_file f;
        struct fixture x;
        struct conversation c;
        make_valid(&f);
        if (n) {
            set_u32(&f, "qwen35.full_attention_interval", 4);
            set_bools(&f, "qwen35.attention.recurrent_layers", n, "\1\0\1\0");
            set_array(&f, "qwen35.attention.head_count", QN_GGUF_I8, n, "\2\2\2\2");
            set_array(&f, "qwen35.attention.head_count_kv", QN_GGUF_I8, n, "\0\1\0\1");
        }
        set_up(&x, &f, 1, 0);
        assert_int_equal(x.hparams.n_layers, 3);
        assert_true(x.plan.is_recurrent[0] && !x.plan.is_recurrent[1] && x.plan.is_recurrent[2]);
        begin(&x, &c, 1);
        all_at_once(&x, &c, n ? found : expected);
        if (n)
            assert_memory_equal(found, expected, sizeof expected);
        end(&c);
        tear_down(&x);
    }
}
