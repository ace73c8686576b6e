/* qn_graft_mtp: a block that was taken off and is joined again gives the file that it was taken from; models whose
 * weights are of any type, or rotated, keep every byte and their logits; heads of all kinds; heads of other models, and
 * blocks that are not whole. */
#include "helper_change.h"
#include "helper_checkpoint.h"
#include "helper_create.h"
#include "helper_random.h"
#include "helper_split.h"

#include "model/model.h"
#include "model/role.h"
#include "gguf/safetensors.h"
#include "quant/quant.h"

static char full[4096], trunk[4096], head[4096], joined[4096]; /* paths in the folder of the test */

static void name_files(void)
{
    snprintf(full, sizeof full, "%s/full.gguf", work);
    snprintf(trunk, sizeof trunk, "%s/trunk.gguf", work);
    snprintf(head, sizeof head, "%s/head.gguf", work);
    snprintf(joined, sizeof joined, "%s/joined.gguf", work);
}

/* Converts the golden checkpoint with a block to `full`, takes the block off in `trunk`, and the rest in `head`. */
static void make_files(void)
{
    char folder[4096];
    checkpoint_path("qwen35", folder);
    assert_ok(convert(folder, NULL, 1, false));
    assert_int_equal(rename(out, full), 0);
    change_file(full, trunk, &(struct change){ .strip = true });
    change_file(full, head, &(struct change){ .alone = true });
}

static qn_status graft(const char *model, const char *from, const char *type)
{
    const qn_graft_params params = { .size = sizeof params, .n_threads = 2, .on_log = on_log };
    log_text[0] = '\0';
    unlink(joined);
    return qn_graft_mtp(model, from, joined, type, &params);
}

/* ---- Comparison ---- */

static void compare_kv(const qn_gguf_kv *a, const qn_gguf_kv *b)
{
    label("key %.*s", (int)a->key.length, a->key.data);
    assert_non_null(b);
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->data, b->data, a->bytes);
    if (a->type != QN_GGUF_ARRAY)
        return;
    assert_int_equal(a->element_type, b->element_type);
    assert_int_equal(a->count, b->count);
}

static void compare_tensor(const qn_gguf_tensor *a, const qn_gguf_tensor *b)
{
    label("tensor %.*s", (int)a->name.length, a->name.data);
    assert_non_null(b);
    assert_int_equal(a->stored_type, b->stored_type);
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->n_dims, b->n_dims);
    assert_memory_equal(a->dims, b->dims, sizeof a->dims);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->data, b->data, a->bytes);
}

static const char *name_of(qn_string s)
{
    static char name[256];
    snprintf(name, sizeof name, "%.*s", (int)s.length, s.data);
    return name;
}

static bool may_change(qn_string key)
{
    static const char *const keys[] = { "block_count",          "nextn_predict_layers",    "attention.recurrent_layers",
                                        "attention.head_count", "attention.head_count_kv", "feed_forward_length" };
    bool may = false;
    for (size_t i = 0; i < COUNT(keys); i++)
        may |= key.length > 7 && qn_string_equals((qn_string){ key.data + 7, key.length - 7 }, keys[i]);
    return may || qn_gguf_is_split_key(key);
}

/* Everything of the model is in the joined file, in the same order, and after it 15 tensors of the block. */
static void check_joined(const char *model_path)
{
    qn_gguf *a, *b;
    assert_ok(qn_gguf_open(model_path, &a));
    assert_ok(qn_gguf_open(joined, &b));
    assert_int_equal(qn_gguf_alignment(a), qn_gguf_alignment(b));
    size_t at = 0;
    for (size_t i = 0; i < qn_gguf_n_kv(a); i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(a, i);
        if (!qn_gguf_is_split_key(kv->key)) {
            assert_string_equal(name_of(qn_gguf_kv_at(b, at++)->key), name_of(kv->key));
            if (!may_change(kv->key))
                compare_kv(kv, qn_gguf_find(b, name_of(kv->key)));
        }
    }
    const size_t n = qn_gguf_n_tensors(a);
    for (size_t i = 0; i < n; i++) {
        compare_tensor(qn_gguf_tensor_at(a, i), qn_gguf_tensor_at(b, i));
        assert_int_equal(qn_gguf_tensor_at(b, i)->offset % qn_gguf_alignment(a), 0);
    }
    assert_int_equal(qn_gguf_n_tensors(b), n + 15);
    for (size_t i = n; i < n + 15; i++)
        assert_int_equal(qn_weights_block(qn_gguf_tensor_at(b, i)->name), layers_of(a));
    assert_int_equal(layers_of(a), layers_of(b));
    qn_gguf_close(a);
    qn_gguf_close(b);
}

/* The keys and tensors of two files are the same, in any order. */
static void check_same(const char *path, const char *other)
{
    qn_gguf *a, *b;
    assert_ok(qn_gguf_open(path, &a));
    assert_ok(qn_gguf_open(other, &b));
    assert_int_equal(qn_gguf_n_kv(a), qn_gguf_n_kv(b));
    assert_int_equal(qn_gguf_n_tensors(a), qn_gguf_n_tensors(b));
    for (size_t i = 0; i < qn_gguf_n_kv(a); i++)
        compare_kv(qn_gguf_kv_at(a, i), qn_gguf_find(b, name_of(qn_gguf_kv_at(a, i)->key)));
    for (size_t i = 0; i < qn_gguf_n_tensors(a); i++)
        compare_tensor(qn_gguf_tensor_at(a, i), qn_gguf_find_tensor(b, name_of(qn_gguf_tensor_at(a, i)->name)));
    qn_gguf_close(a);
    qn_gguf_close(b);
}

static float *logits_of(const char *path, size_t *n)
{
    const qn_token ids[] = { 1, 5, 9, 30, 2, 7, 11, 3 };
    qn_model *model = create_model(path, &CPU_MODEL(.n_threads = 2));
    *n = COUNT(ids) * qn_model_get_info(model)->n_vocab;
    float *logits = malloc(*n * sizeof *logits);
    assert_non_null(logits);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 64));
    assert_ok(qn_session_eval(session, ids, COUNT(ids), QN_LOGITS_ALL, logits));
    qn_session_free(session);
    qn_model_free(model);
    return logits;
}

static void check_logits(const char *model_path)
{
    size_t n, m;
    float *a = logits_of(model_path, &n), *b = logits_of(joined, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n * sizeof *a);
    free(a);
    free(b);
}

/* ---- A head for any model ---- */

static void add_tensor(qn_gguf_writer *w, bool data, const char *name, uint64_t columns, uint64_t rows)
{
    const size_t n = (size_t)(columns * rows), bytes = n * (rows > 1 ? 2 : 4);
    if (!data) {
        assert_ok(qn_gguf_writer_add_tensor(w, (qn_string){ name, strlen(name) }, rows > 1 ? QN_TYPE_BF16 : QN_TYPE_F32,
                                            rows > 1 ? 2 : 1, (const uint64_t[]){ columns, rows }, bytes));
        return;
    }
    float *x = random_floats(n);
    uint8_t *stored = malloc(bytes);
    assert_non_null(stored);
    qn_type_find(rows > 1 ? QN_TYPE_BF16 : QN_TYPE_F32)->from_float(x, n, stored);
    assert_ok(qn_gguf_writer_data(w, stored, bytes));
    free(stored);
    free(x);
}

/* Writes a file with a random block alone and few keys, as a script would. */
static void write_head(const char *path, const qn_hparams *h, uint32_t block)
{
    const uint64_t e = h->n_embd, q = (uint64_t)h->n_heads * h->head_dim, kv = (uint64_t)h->n_kv_heads * h->head_dim;
    const struct {
        const char *name;
        uint64_t columns, rows;
    } tensors[] = {
        { "attn_norm", e, 1 },
        { "attn_q", e, 2 * q },
        { "attn_k", e, kv },
        { "attn_v", e, kv },
        { "attn_output", q, e },
        { "attn_q_norm", h->head_dim, 1 },
        { "attn_k_norm", h->head_dim, 1 },
        { "post_attention_norm", e, 1 },
        { "ffn_gate", e, h->n_ff },
        { "ffn_up", e, h->n_ff },
        { "ffn_down", h->n_ff, e },
        { "nextn.eh_proj", 2 * e, e },
        { "nextn.enorm", e, 1 },
        { "nextn.hnorm", e, 1 },
        { "nextn.shared_head_norm", e, 1 },
    };
    qn_gguf_writer *w;
    assert_ok(qn_gguf_writer_create(path, &w));
    assert_ok(qn_gguf_writer_add_string(w, "general.architecture", "qwen35"));
    for (int data = 0; data < 2; data++) {
        for (size_t i = 0; i < COUNT(tensors); i++) {
            char name[128];
            snprintf(name, sizeof name, "blk.%u.%s.weight", (unsigned)block, tensors[i].name);
            add_tensor(w, data, name, tensors[i].columns, tensors[i].rows);
        }
        assert_ok(data ? qn_gguf_writer_finish(w) : qn_gguf_writer_begin_data(w));
    }
    qn_gguf_writer_free(w);
}

static qn_hparams hparams_of(const char *path)
{
    qn_gguf *file;
    qn_hparams h;
    qn_plan plan;
    assert_ok(qn_gguf_open(path, &file));
    assert_ok(qn_model_build(file, &h, &plan));
    qn_plan_free(&plan);
    qn_gguf_close(file);
    return h;
}

static qn_file_role role_of(const char *path)
{
    qn_file_role role;
    assert_true(qn_file_role_read(path, &role));
    return role;
}

/* ---- What is joined ---- */

TEST(the_file_is_the_one_that_the_block_was_taken_from)
{
    char folder[4096];
    make_files();
    checkpoint_path("qwen35", folder);
    const char *const heads[] = { full, head, folder };
    for (size_t i = 0; i < COUNT(heads); i++) {
        label("head %s", heads[i]);
        assert_ok(graft(trunk, heads[i], "keep"));
        assert_contains(log_text, "joined the MTP block as blk.4: 15 tensors");
        check_joined(trunk);
        check_same(joined, full);
    }
    assert_int_equal(role_of(head), QN_FILE_DRAFTER);
    assert_int_equal(role_of(trunk), QN_FILE_MODEL);
    assert_int_equal(role_of(joined), QN_FILE_MODEL);
}

TEST(types_of_the_block)
{
    static const char *const types[] = { NULL, "q8_0", "q4_0", "q4_1", "f16", "f32", "bf16" };
    char folder[4096];
    make_files();
    checkpoint_path("qwen35", folder);
    for (size_t i = 0; i < COUNT(types); i++) {
        qn_gguf *file, *expected;
        const char *type = types[i] ? types[i] : "q8_0";
        label("type %s", types[i] ? types[i] : "not given");
        if (strcmp(type, "f32") == 0) { /* which qn_quantize_file does not write */
            assert_ok(convert(folder, type, 1, false));
        } else {
            assert_ok(qn_quantize_file(full, out, type, NULL));
        }
        assert_ok(graft(trunk, full, types[i]));
        assert_int_equal(strstr(log_text, "blk.4.ffn_down.weight: the row length 80 is not a multiple") != NULL,
                         type[0] == 'q');
        assert_ok(qn_gguf_open(joined, &file));
        assert_ok(qn_gguf_open(out, &expected));
        for (size_t t = 0; t < qn_gguf_n_tensors(file); t++)
            if (qn_weights_block(qn_gguf_tensor_at(file, t)->name) == 4)
                compare_tensor(qn_gguf_tensor_at(file, t),
                               qn_gguf_find_tensor(expected, name_of(qn_gguf_tensor_at(file, t)->name)));
        qn_gguf_close(file);
        qn_gguf_close(expected);
        assert_int_equal(rename(joined, out), 0);
        assert_ok(graft(trunk, folder, types[i]));
        assert_same_files(joined, out);
    }
    static const char *const low[] = { "q1_0", "ptq1_0", "q2_0" };
    for (size_t i = 0; i < COUNT(low); i++)
        assert_fails(graft(trunk, full, low[i]), QN_ERR_INVALID, "does not hold the ordinary weights of an MTP block");
    assert_fails(graft(trunk, full, "q4_k"), QN_ERR_INVALID, "q4_k");
}

/* Blocks of other files in types that quern does not write are kept. */
TEST(types_that_are_kept)
{
    make_files();
    assert_ok(qn_quantize_file(full, out, "q4_0", NULL));
    assert_ok(graft(trunk, out, "keep"));
    qn_gguf *file;
    assert_ok(qn_gguf_open(joined, &file));
    assert_int_equal(qn_gguf_find_tensor(file, "blk.4.attn_q.weight")->type, QN_TYPE_Q4_0);
    assert_int_equal(qn_gguf_find_tensor(file, "blk.4.nextn.enorm.weight")->type, QN_TYPE_F32);
    assert_int_equal(qn_gguf_find_tensor(file, "blk.0.attn_qkv.weight")->type, QN_TYPE_BF16);
    qn_gguf_close(file);
}

/* Tables that a block may have of its own, and a norm that it may lack. */
TEST(optional_tensors)
{
    make_files();
    change_file(head, out, &(struct change){ .renamed = "token_embd.weight", .to = "blk.4.nextn.embed_tokens.weight" });
    assert_ok(graft(trunk, out, NULL));
    assert_contains(log_text, "16 tensors");
    change_file(head, out, &(struct change){ .without = "blk.4.nextn.shared_head_norm.weight" });
    assert_ok(graft(trunk, out, NULL));
    assert_contains(log_text, "14 tensors");
    check_logits(trunk);
}

TEST(models_of_all_kinds)
{
    static const char *const names[] = { "qwen35.f16",           "qwen35.q1_0",          "qwen35.q2_0",
                                         "qwen35.pq2_0",         "qwen35.ptq1_0",        "qwen35-yarn.f16",
                                         "qwen35-rotated.f16",   "qwen35-rotated.q1_0",  "qwen35-rotated.q2_0",
                                         "qwen35-rotated.pq2_0", "qwen35-rotated.ptq1_0" };
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[4096];
        label("%s", names[i]);
        snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, names[i]);
        const qn_hparams h = hparams_of(path);
        write_head(head, &h, i % 2 ? 0 : h.n_layers);
        assert_ok(graft(path, head, NULL));
        assert_int_equal(strstr(log_text, "rotated, those of the block are not") != NULL,
                         strstr(names[i], "rotated") != NULL);
        check_joined(path);
        check_logits(path);
        assert_int_equal(rename(joined, out), 0);
        assert_fails(graft(out, head, NULL), QN_ERR_INVALID, "it has an MTP block already");
    }
}

/* Older files have PQ2_0 under the number 42, which others use for Q2_0. */
TEST(the_number_of_a_type_stays)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/qwen35.ptq1_0.gguf", QN_SOURCE_DIR);
    const qn_hparams h = hparams_of(path);
    write_head(head, &h, h.n_layers);
    assert_ok(qn_quantize_file(path, out, "pq2_0", NULL));
    change_file(out, trunk, &(struct change){ .as_42 = true });
    assert_ok(graft(trunk, head, NULL));
    check_joined(trunk);
    check_logits(trunk);
}

TEST(alignments)
{
    static const size_t alignments[] = { 8, 16, 32, 64, 4096, 16384 };
    make_files();
    for (size_t i = 0; i < COUNT(alignments); i++) {
        label("alignment %zu", alignments[i]);
        change_file(full, trunk, &(struct change){ .strip = true, .alignment = alignments[i] });
        assert_ok(graft(trunk, head, NULL));
        check_joined(trunk);
        check_logits(trunk);
    }
}

TEST(arrays_of_layers)
{
    int32_t heads[] = { 4, 4, 4, 4 }, kv[] = { 0, 0, 0, 2 }, ff[] = { 80, 80, 80, 80 };
    const struct change change = { .strip = true,
                                   .keys = { { "qwen35.attention.head_count", .array = heads, .n = 4 },
                                             { "qwen35.attention.head_count_kv", .array = kv, .n = 4 },
                                             { "qwen35.feed_forward_length", .array = ff, .n = 4 },
                                             { "qwen35.nextn_predict_layers", .value = 0 } } };
    static const struct {
        const char *key;
        int32_t value;
    } cases[] = { { "qwen35.attention.head_count", 4 },
                  { "qwen35.attention.head_count_kv", 2 },
                  { "qwen35.feed_forward_length", 80 },
                  { "qwen35.attention.recurrent_layers", 0 } };
    make_files();
    struct change stripped = change;
    stripped.keys[3].name = NULL; /* with the key of 0: a second pass, as `strip` removes it */
    change_file(full, out, &stripped);
    change_file(out, trunk, &(struct change){ .keys = { { "qwen35.nextn_predict_layers", .value = 0 } } });
    assert_ok(graft(trunk, full, NULL));
    check_joined(trunk);
    check_logits(trunk);
    qn_gguf *file;
    uint32_t n;
    assert_ok(qn_gguf_open(joined, &file));
    assert_ok(qn_gguf_get_u32(file, "qwen35.nextn_predict_layers", true, &n));
    assert_int_equal(n, 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].key);
        const qn_gguf_kv *array = qn_gguf_find(file, cases[i].key);
        int32_t value = -1;
        assert_int_equal(array->count, 5);
        if (array->element_type == QN_GGUF_BOOL)
            value = array->data[4];
        else
            assert_ok(qn_gguf_array_i32(file, array, 4, &value));
        assert_int_equal(value, cases[i].value);
    }
    qn_gguf_close(file);
    assert_ok(qn_gguf_open(joined, &file)); /* a whole model with arrays as the head */
    qn_gguf_close(file);
    assert_int_equal(rename(joined, out), 0);
    assert_ok(graft(trunk, out, NULL));
}

TEST(a_split_model)
{
    struct part parts[3];
    char prefix[4096], path[4224], first[4224];
    qn_gguf *file;
    make_files();
    assert_ok(graft(trunk, full, NULL));
    assert_int_equal(rename(joined, out), 0);
    snprintf(prefix, sizeof prefix, "%.4000s/parts", work);
    assert_ok(qn_gguf_open(trunk, &file));
    plan_parts(file, 3, true, parts);
    for (size_t i = 0; i < 3; i++) {
        part_path(path, sizeof path, prefix, i, 3);
        write_part(file, &parts[i], path);
    }
    qn_gguf_close(file);
    part_path(first, sizeof first, prefix, 0, 3);
    assert_ok(graft(first, full, NULL));
    assert_same_files(joined, out);
    const qn_graft_params params = QN_GRAFT_PARAMS_INIT;
    assert_fails(qn_graft_mtp(first, full, path, NULL, &params), QN_ERR_INVALID, "is an input");
    assert_fails(qn_graft_mtp(path, full, first, NULL, &params), QN_ERR_INVALID, "is an input");
    assert_int_equal(role_of(first), QN_FILE_MODEL);
}

/* ---- Checkpoints ---- */

/* Writes a safetensors file with the tensors of the golden checkpoint whose names begin with `prefix`. */
static void write_tensors(const char *path, const char *prefix)
{
    char golden[4096], source[4200];
    qn_safetensors *file;
    checkpoint_path("qwen35", golden);
    snprintf(source, sizeof source, "%s/model.safetensors", golden);
    assert_ok(qn_safetensors_open(source, &file));
    char *header = calloc(1, 1 << 20);
    uint8_t *data = malloc(1 << 20);
    size_t length = 1, size = 0;
    header[0] = '{';
    for (size_t i = 0; i < qn_safetensors_count(file); i++) {
        const qn_safetensor *t = qn_safetensors_at(file, i);
        if (strncmp(t->name, prefix, strlen(prefix)) != 0)
            continue;
        length += (size_t)sprintf(header + length, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", length > 1 ? "," : "",
                                  t->name, t->dtype);
        for (uint32_t d = 0; d < t->n_dims; d++)
            length += (size_t)sprintf(header + length, "%s%llu", d ? "," : "", (unsigned long long)t->dims[d]);
        length += (size_t)sprintf(header + length, "],\"data_offsets\":[%zu,%zu]}", size, size + (size_t)t->bytes);
        assert_int_equal(qn_safetensors_read(file, t, 0, data + size, (size_t)t->bytes), 0);
        size += (size_t)t->bytes;
    }
    header[length++] = '}';
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    const uint64_t n = length;
    assert_int_equal(fwrite(&n, 8, 1, to) + fwrite(header, length, 1, to) + fwrite(data, size, 1, to), 3);
    assert_int_equal(fclose(to), 0);
    qn_safetensors_close(file);
    free(header);
    free(data);
}

static void remove_from_copy(const char *file)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", copy, file);
    assert_int_equal(unlink(path), 0);
}

/* Of a checkpoint in several files only the one with the block is there. */
TEST(a_part_of_a_checkpoint)
{
    char path[8192], text[512];
    make_files();
    assert_ok(graft(trunk, full, NULL));
    assert_int_equal(rename(joined, out), 0);
    link_checkpoint("qwen35");
    remove_from_copy("model.safetensors");
    remove_from_copy("tokenizer.json");
    snprintf(path, sizeof path, "%s/b.safetensors", copy);
    write_tensors(path, "mtp.");
    assert_ok(graft(trunk, path, NULL)); /* the file alone, with config.json next to it */
    assert_same_files(joined, out);
    assert_fails(graft(trunk, copy, NULL), QN_ERR_IO, "model.safetensors");

    qn_safetensors *file;
    assert_ok(qn_safetensors_open(path, &file));
    char *index = calloc(1, 1 << 16);
    size_t n = (size_t)sprintf(index, "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\"");
    for (size_t i = 0; i < qn_safetensors_count(file); i++)
        n += (size_t)sprintf(index + n, ",\"%s\":\"b.safetensors\"", qn_safetensors_at(file, i)->name);
    sprintf(index + n, "}}");
    qn_safetensors_close(file);
    edit("model.safetensors.index.json", NULL, index);
    assert_ok(graft(trunk, copy, NULL));
    assert_same_files(joined, out);
    char *at = strstr(index, "mtp.norm"); /* in another file, which is not there */
    assert_non_null(at);
    memcpy(strchr(strchr(at, ':'), 'b'), "c", 1);
    edit("model.safetensors.index.json", NULL, index);
    assert_fails(graft(trunk, copy, NULL), QN_ERR_IO, "c.safetensors");
    free(index);

    /* Configurations of Qwen3.6 do not say that there is a block. */
    edit("config.json", ",\n    \"mtp_num_hidden_layers\": 1", "");
    assert_ok(graft(trunk, path, NULL));
    assert_same_files(joined, out);
    snprintf(text, sizeof text, "\"dtype\": \"bfloat16\"");
    edit("config.json", "\"head_dim\": 32,", "\"head_dim\": 32,\n    \"mtp_num_hidden_layers\": 2,");
    assert_fails(graft(trunk, path, NULL), QN_ERR_INVALID, "mtp_num_hidden_layers is 2");
}

/* Scaled positions of a configuration are those of the file that is converted from it, whatever the kind. */
TEST(scaled_positions)
{
    static const char *const kinds[] = {
        "\"rope_type\": \"linear\", \"factor\": 2.5",
        "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 128",
        "\"rope_type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": 8, \"beta_slow\": 0.5, \"attention_factor\": 1.3",
        "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 128, \"truncate\": false",
    };
    char first[4096];
    make_files();
    snprintf(first, sizeof first, "%.4000s/first.gguf", work);
    assert_int_equal(rename(trunk, first), 0); /* with plain positions */
    for (size_t i = 0; i < COUNT(kinds); i++) {
        label("%s", kinds[i]);
        link_checkpoint("qwen35");
        edit("config.json", "\"rope_type\": \"default\"", kinds[i]);
        convert_copy();
        change_file(out, trunk, &(struct change){ .strip = true });
        assert_ok(graft(trunk, copy, "keep"));
        check_same(joined, out);
        assert_ok(graft(trunk, out, "keep"));
        check_same(joined, out);
        assert_fails(graft(first, copy, "keep"), QN_ERR_INVALID, "rope");
        assert_fails(graft(first, out, "keep"), QN_ERR_INVALID, "rope");
        assert_fails(graft(trunk, full, "keep"), QN_ERR_INVALID, "rope");
    }
}

TEST(checkpoints_of_other_models)
{
    static const struct {
        const char *before, *after, *text;
    } cases[] = {
        { "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4", "attention.head_count_kv: 4, but 2 in " },
        { "\"num_attention_heads\": 4", "\"num_attention_heads\": 2", "attention.head_count: 2, but 4 in " },
        { "\"head_dim\": 32", "\"head_dim\": 64", "attention.key_length: 64, but 32 in " },
        { "\"hidden_size\": 64", "\"hidden_size\": 128", "embedding_length: 128, but 64 in " },
        { "\"intermediate_size\": 80", "\"intermediate_size\": 96", "feed_forward_length: 96, but 80 in " },
        { "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-05",
          "attention.layer_norm_rms_epsilon: 1e-05, but 1e-06 in " },
        { "\"rope_theta\": 10000000.0", "\"rope_theta\": 1000000.0", "rope.freq_base: 1e+06, but 1e+07 in " },
        { "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\": 0.25", "rope.dimension_count: 8, but 16 in " },
        { "\"rope_type\": \"default\"", "\"rope_type\": \"linear\", \"factor\": 2.0",
          "rope.scaling.factor: 2, but 1 in " },
        { "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\", \"factor\": 4.0",
          "rope.scaling.factor: 4, but 1 in " },
        { "\"mrope_section\": [\n        4,", "\"mrope_section\": [\n        3,",
          "rope.dimension_sections: 3, but 4 in " },
        { "\"vocab_size\": 352", "\"vocab_size\": 353", "number of tokens: 353, but 352 in " },
        { "\"linear_attention\",\n      \"full_attention\"", "\"full_attention\"", NULL }, /* 3 of 4 layers: no text */
        { "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", NULL },
    };
    make_files();
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].after);
        link_checkpoint("qwen35");
        edit("config.json", cases[i].before, cases[i].after);
        const qn_status status = graft(trunk, copy, NULL);
        assert_true(status == QN_ERR_INVALID || (!cases[i].text && status == QN_ERR_FORMAT));
        if (cases[i].text)
            assert_text(cases[i].text);
    }
    link_checkpoint("qwen35");
    compact_json("tokenizer.json");
    edit("tokenizer.json", "\"content\":\"<|im_end|>\"", "\"content\":\"<|IM_end|>\"");
    assert_fails(graft(trunk, copy, NULL), QN_ERR_INVALID, "token 322 is '<|IM_end|>', but '<|im_end|>' in ");
    remove_from_copy("tokenizer.json"); /* then sizes are compared */
    assert_ok(graft(trunk, copy, NULL));
    edit("config.json", "\"vocab_size\": 352", "\"vocab_size\": 351");
    assert_fails(graft(trunk, copy, NULL), QN_ERR_INVALID, "size of the vocabulary: 351, but 352 in ");
    checkpoint_path("qwen3", copy);
    assert_fails(graft(trunk, copy, NULL), QN_ERR_INVALID, "the class is 'Qwen3ForCausalLM'");
    checkpoint_path("qwen35-text", copy);
    assert_fails(graft(trunk, copy, NULL), QN_ERR_INVALID, "layers before the block: 3, but 4 in ");
    char path[8192];
    link_checkpoint("qwen35");
    snprintf(path, sizeof path, "%s/none.safetensors", copy);
    write_tensors(path, "model.language_model.norm");
    assert_fails(graft(trunk, path, NULL), QN_ERR_FORMAT, "it has no MTP block: no tensor's name begins with 'mtp.'");
    write_tensors(path, "mtp.layers");
    assert_fails(graft(trunk, path, NULL), QN_ERR_FORMAT, "tensor 'mtp.fc.weight' of Qwen3_5");
    remove_from_copy("config.json");
    assert_fails(graft(trunk, path, NULL), QN_ERR_IO, "config.json");
}

/* ---- GGUF files that do not fit ---- */

TEST(heads_that_do_not_fit)
{
    static const struct {
        struct change change;
        qn_status status;
        const char *text;
    } cases[] = {
        { { .strip = true }, QN_ERR_INVALID, "it has no MTP block: no tensor 'blk.N.nextn.eh_proj.weight'" },
        { { .keys = { { "general.architecture", .text = "qwen3next" } } },
          QN_ERR_INVALID,
          "general.architecture is 'qwen3next', but 'qwen35' in " },
        { { .without_key = "general.architecture" }, QN_ERR_FORMAT, "general.architecture" },
        { { .keys = { { "qwen35.nextn_predict_layers", .value = 2 } } }, QN_ERR_INVALID, "it has 2 MTP blocks" },
        { { .keys = { { "qwen35.embedding_length", .value = 96 } } },
          QN_ERR_INVALID,
          "embedding_length: 96, but 64 in " },
        { { .keys = { { "qwen35.attention.head_count", .value = 8 } } },
          QN_ERR_INVALID,
          "attention.head_count: 8, but 4 in " },
        { { .keys = { { "qwen35.attention.head_count_kv", .value = 1 } } },
          QN_ERR_INVALID,
          "attention.head_count_kv: 1, but 2 in " },
        { { .keys = { { "qwen35.attention.key_length", .value = 64 } } },
          QN_ERR_INVALID,
          "attention.key_length: 64, but 32 in " },
        { { .keys = { { "qwen35.feed_forward_length", .value = 96 } } },
          QN_ERR_INVALID,
          "feed_forward_length: 96, but 80 in " },
        { { .keys = { { "qwen35.rope.dimension_count", .value = 8 } } },
          QN_ERR_INVALID,
          "rope.dimension_count: 8, but 16 in " },
        { { .keys = { { "qwen35.rope.scaling.type", .text = "yarn" }, { "qwen35.rope.scaling.factor", .value = 4 } } },
          QN_ERR_FORMAT,
          "rope.scaling.factor" },
        { { .renamed = "blk.4.attn_q.weight", .to = "blk.5.nextn.x.weight" },
          QN_ERR_INVALID,
          "blocks 5 and 4 are MTP blocks" },
        { { .without = "blk.4.nextn.hnorm.weight" },
          QN_ERR_FORMAT,
          "tensor 'blk.4.nextn.hnorm.weight' of the MTP block is missing" },
        { { .without = "blk.4.attn_q.weight" },
          QN_ERR_FORMAT,
          "tensor 'blk.4.attn_q.weight' of the MTP block is miss" },
        { { .misshapen = "blk.4.nextn.eh_proj.weight" },
          QN_ERR_FORMAT,
          "tensor 'blk.4.nextn.eh_proj.weight' is 64 x 128 x 1 x 1, expected 128 x 64" },
        { { .misshapen = "blk.4.attn_norm.weight" },
          QN_ERR_FORMAT,
          "tensor 'blk.4.attn_norm.weight' is 32 x 2 x 1 x 1, expected 64 x 1" },
        { { .renamed = "token_embd.weight", .to = "blk.4.attn_gate.weight" },
          QN_ERR_FORMAT,
          "tensor 'blk.4.attn_gate.weight' is unknown in an MTP block of 'qwen35'" },
        { { .poisoned = "blk.4.ffn_up.weight" }, QN_ERR_FORMAT, "tensor 'blk.4.ffn_up.weight': block" },
    };
    make_files();
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].text);
        change_file(full, out, &cases[i].change);
        assert_fails(graft(trunk, out, NULL), cases[i].status, cases[i].text);
        assert_int_equal(access(joined, F_OK), -1);
    }
}

/* Writes a copy with the first n tokens, of which one is another. */
static void with_tokens(const char *from, const char *to, size_t n, size_t id, const char *token)
{
    qn_gguf *file;
    qn_string *tokens;
    assert_ok(qn_gguf_open(from, &file));
    assert_ok(qn_gguf_array_strings(file, qn_gguf_find(file, "tokenizer.ggml.tokens"), &tokens));
    tokens[id] = (qn_string){ token, strlen(token) };
    change_file(from, to, &(struct change){ .keys = { { "tokenizer.ggml.tokens", .strings = tokens, .n = n } } });
    free(tokens);
    qn_gguf_close(file);
}

TEST(vocabularies)
{
    make_files();
    with_tokens(head, out, 352, 300, "other");
    assert_fails(graft(trunk, out, NULL), QN_ERR_INVALID, "token 300 is 'other', but ");
    with_tokens(head, out, 352, 351, "other"); /* an id without a token has any name */
    assert_ok(graft(trunk, out, NULL));
    with_tokens(head, out, 351, 0, "!");
    assert_fails(graft(trunk, out, NULL), QN_ERR_INVALID, "number of tokens: 351, but 352 in ");
    change_file(head, out, &(struct change){ .without_key = "tokenizer.ggml.tokens" });
    assert_ok(graft(trunk, out, NULL)); /* the embedding has as many rows */
    change_file(head, out,
                &(struct change){ .without_key = "tokenizer.ggml.tokens", .misshapen = "token_embd.weight" });
    assert_fails(graft(trunk, out, NULL), QN_ERR_INVALID, "size of the vocabulary: 64, but 352 in ");
}

/* A rotated model whose block is rotated, too: the keys of the model would not say so. */
TEST(a_rotated_head)
{
    char path[4096];
    qn_string name = { "blk.3.attn_q.weight", 19 };
    snprintf(path, sizeof path, "%s/tests/golden/qwen35-rotated.f16.gguf", QN_SOURCE_DIR);
    const qn_hparams h = hparams_of(path);
    write_head(head, &h, h.n_layers);
    change_file(head, out, &(struct change){ .keys = { { "prism.hadamard.weight_names", .strings = &name, .n = 1 } } });
    assert_fails(graft(path, out, NULL), QN_ERR_UNSUPPORTED, "'blk.3.attn_q.weight' is rotated");
}

TEST(models_that_take_no_block)
{
    char path[4096];
    make_files();
    snprintf(path, sizeof path, "%s/tests/golden/qwen3.f16.gguf", QN_SOURCE_DIR);
    assert_fails(graft(path, full, NULL), QN_ERR_INVALID, "models of the architecture 'qwen3' have no MTP block");
    assert_fails(graft(full, full, NULL), QN_ERR_INVALID, "it has an MTP block already, blk.4");
    assert_fails(graft(head, full, NULL), QN_ERR_FORMAT, "blk.0."); /* a head is no model */
    assert_fails(graft("/nonexistent.gguf", full, NULL), QN_ERR_IO, "/nonexistent.gguf");
    assert_fails(graft(trunk, "/nonexistent.gguf", NULL), QN_ERR_IO, "/nonexistent.gguf");
    write_text(out, "some text that is long enough to be a header");
    assert_fails(graft(trunk, out, NULL), QN_ERR_FORMAT, out);
    change_file(full, out, &(struct change){ .strip = true, .keys = { { "qwen35.expert_count", .value = 4 } } });
    assert_fails(graft(out, full, NULL), QN_ERR_UNSUPPORTED, "experts");
}

/* ---- The target ---- */

static int files_in_folder(void)
{
    DIR *dir = opendir(work);
    int n = 0;
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

TEST(the_target_is_no_input)
{
    char link_path[4096], tensors[8192];
    size_t size;
    make_files();
    void *before = read_file(trunk, &size);
    snprintf(link_path, sizeof link_path, "%.4000s/link.gguf", work);
    assert_int_equal(symlink(trunk, link_path), 0);
    assert_fails(qn_graft_mtp(trunk, full, trunk, NULL, NULL), QN_ERR_INVALID, "is an input");
    assert_fails(qn_graft_mtp(trunk, full, full, NULL, NULL), QN_ERR_INVALID, "is an input");
    assert_fails(qn_graft_mtp(trunk, full, link_path, NULL, NULL), QN_ERR_INVALID, "is an input");
    assert_int_equal(unlink(link_path) + link(full, link_path), 0);
    assert_fails(qn_graft_mtp(trunk, full, link_path, NULL, NULL), QN_ERR_INVALID, "is an input");
    link_checkpoint("qwen35");
    snprintf(tensors, sizeof tensors, "%s/b.safetensors", copy);
    write_tensors(tensors, "mtp.");
    assert_fails(qn_graft_mtp(trunk, tensors, tensors, NULL, NULL), QN_ERR_INVALID, "is an input");
    assert_int_equal(unlink(link_path), 0);
    assert_file(trunk, before, size);
    free(before);
}

static bool stop_at_half(void *user, size_t done, size_t total)
{
    size_t *calls = user;
    ++*calls;
    assert_true(done <= total);
    return done * 2 < total;
}

static bool count_calls(void *user, size_t done, size_t total)
{
    size_t *last = user;
    assert_true(done >= last[0] && done <= total);
    last[0] = done;
    last[1] = total;
    return true;
}

TEST(progress_and_cancelling)
{
    char folder[4096];
    size_t calls = 0, last[2] = { 0 };
    make_files();
    checkpoint_path("qwen35", folder);
    write_text(joined, "before");
    const int n_files = files_in_folder();
    const char *const heads[] = { full, folder };
    for (size_t i = 0; i < COUNT(heads); i++) {
        const qn_graft_params stops = { .size = sizeof stops, .on_progress = stop_at_half, .user = &calls };
        assert_fails(qn_graft_mtp(trunk, heads[i], joined, NULL, &stops), QN_ERR_CANCELLED, "cancelled");
        assert_true(calls > 0);
        assert_file(joined, "before", 6);
        assert_int_equal(files_in_folder(), n_files);
        memset(last, 0, sizeof last);
        const qn_graft_params counts = { .size = sizeof counts, .on_progress = count_calls, .user = last };
        assert_ok(qn_graft_mtp(trunk, heads[i], joined, NULL, &counts));
        assert_true(last[0] > 0 && last[0] == last[1]);
        write_text(joined, "before");
    }
    const qn_graft_params bad = { .size = sizeof bad, .n_threads = -1 };
    assert_fails(qn_graft_mtp(trunk, full, joined, NULL, &bad), QN_ERR_INVALID, "n_threads is -1");
    char nowhere[4096];
    snprintf(nowhere, sizeof nowhere, "%.4000s/no/folder.gguf", work);
    assert_fails(qn_graft_mtp(trunk, full, nowhere, NULL, NULL), QN_ERR_IO, nowhere);
}

static int set_up(void)
{
    const int status = make_folder();
    name_files();
    return status;
}

TEST_GROUP(set_up, remove_folder)
