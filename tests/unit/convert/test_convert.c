/* qn_convert_checkpoint on the golden checkpoints (tests/golden/README.md): logits of transformers, tokens of
 * tokenizers, weights of one and two bits without loss; and checkpoints that are not what their configuration says. */
#include "helper_checkpoint.h"
#include "helper_create.h"
#include "helper_golden.h"

#include "convert/general.h"
#include "gguf/gguf.h"
#include "gguf/json.h"
#include "gguf/safetensors.h"
#include "quant/quant.h"
#include "quern/quern.h"

#include <dirent.h>
#include <unistd.h>

/* As in test_golden_logits.c: what f16 keys and values and inputs of matmuls may cost. A wrong order of heads costs 0.1
 * and more. */
#define MAX_ERROR 3e-3
/* int8 activations. */
#define MAX_ERROR_LOW_BIT 2.5e-2

enum { MAX_IDS = 64 };

static const char *const names[] = { "llama", "qwen2", "qwen3", "qwen3-low-bit", "qwen35", "qwen35-text" };
enum { N_NAMES = COUNT(names) };

/* ---- Logits and tokens ---- */

static double error_of_logits(const char *name, const qn_model *model)
{
    char golden[128];
    qn_token ids[MAX_IDS];
    size_t n_rows;
    snprintf(golden, sizeof golden, "checkpoints/%s/golden", name);
    const size_t n = read_golden_ids(golden, ids, MAX_IDS), n_vocab = qn_model_get_info(model)->n_vocab;
    float *expected = read_golden_logits(golden, n_vocab, &n_rows), *found = malloc(n * n_vocab * sizeof *found);
    assert_int_equal(n_rows, n);
    assert_non_null(found);
    qn_session *session = create_session((qn_model *)model, &SESSION_PARAMS(.n_ctx = MAX_IDS));
    assert_ok(qn_session_eval(session, ids, n, QN_LOGITS_ALL, found));
    const double error = mean_relative_error(found, expected, n, n_vocab);
    qn_session_free(session);
    free(expected);
    free(found);
    return error;
}

/* Replaces the escapes of tools/make_tokenizer_golden.py. */
static size_t unescape(char *text)
{
    size_t n = 0;
    for (const char *c = text; *c; c++) {
        static const char escapes[] = "n\nr\rt\t0\0\\\\";
        if (*c == '\\') {
            c++;
            for (size_t i = 0; i < sizeof escapes - 1; i += 2)
                if (escapes[i] == *c)
                    text[n++] = escapes[i + 1];
        } else {
            text[n++] = *c;
        }
    }
    return n;
}

static void compare_tokens(const char *name, const qn_model *model)
{
    char golden[128], *line = NULL;
    size_t capacity = 0, n_lines = 0;
    snprintf(golden, sizeof golden, "checkpoints/%s/golden", name);
    FILE *file = open_golden(golden, ".tokens");
    while (getline(&line, &capacity, file) > 0) {
        char *text = strchr(line, '\t') + 1, *ids = strrchr(text, '\t');
        *ids++ = '\0';
        label("%s", text);
        const size_t length = unescape(text);
        qn_token *tokens;
        size_t n;
        assert_ok(qn_tokenize(model, text, length, true, false, &tokens, &n));
        for (size_t i = 0; i < n; i++)
            assert_int_equal(strtol(ids, &ids, 10), tokens[i]);
        while (*ids == ' ' || *ids == '\n')
            ids++;
        assert_int_equal(*ids, 0);
        qn_free_tokens(tokens);
        n_lines++;
    }
    assert_true(n_lines > 40);
    free(line);
    fclose(file);
}

TEST(test_golden)
{
    static const char *const types[] = { "f16", "f32", NULL };
    for (size_t i = 0; i < N_NAMES; i++)
        for (size_t t = 0; t < COUNT(types); t++) {
            char folder[4096];
            const bool low_bit = !types[t] && strstr(names[i], "low-bit");
            label("%s to %s", names[i], types[t] ? types[t] : "the types that it has");
            checkpoint_path(names[i], folder);
            assert_ok(convert(folder, types[t], 2, false));
            qn_model *model = create_model(out, &CPU_MODEL(.n_threads = 2));
            const double error = error_of_logits(names[i], model);
            print_message("%-14s %-4s mean relative error %.2e\n", names[i], types[t] ? types[t] : "", error);
            if (!(error <= (low_bit ? MAX_ERROR_LOW_BIT : MAX_ERROR)))
                fail_msg("%s: mean relative error %.3e", names[i], error);
            compare_tokens(names[i], model);
            qn_model_free(model);
        }
}

/* ---- Types ---- */

static uint32_t type_in_file(const qn_gguf *file, const char *name)
{
    const qn_gguf_tensor *t = qn_gguf_find_tensor(file, name);
    assert_non_null(t);
    return t->type;
}

TEST(test_low_bit)
{
    static const struct {
        const char *asked;
        qn_type binary, ternary, four;
    } cases[] = {
        { NULL, QN_TYPE_Q1_0, QN_TYPE_PTQ1_0, QN_TYPE_PQ2_0 },
        { "q1_0", QN_TYPE_Q1_0, QN_TYPE_PTQ1_0, QN_TYPE_PQ2_0 },
        { "ptq1_0", QN_TYPE_PTQ1_0, QN_TYPE_PTQ1_0, QN_TYPE_PQ2_0 },
        { "pq2_0", QN_TYPE_PQ2_0, QN_TYPE_PQ2_0, QN_TYPE_PQ2_0 },
        { "Q2_0", QN_TYPE_Q2_0, QN_TYPE_Q2_0, QN_TYPE_Q2_0 },
        { "q8_0", QN_TYPE_Q8_0, QN_TYPE_Q8_0, QN_TYPE_Q8_0 },
    };
    char folder[4096];
    checkpoint_path("qwen3-low-bit", folder);
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("type %s", cases[i].asked ? cases[i].asked : "not given");
        assert_ok(convert(folder, cases[i].asked, 2, false));
        assert_int_equal(strstr(log_text, "lossless: 8 of 8 matrices") && strstr(log_text, "largest difference 0\n"),
                         cases[i].four != QN_TYPE_Q8_0);
        qn_gguf *file = open_out();
        assert_int_equal(type_in_file(file, "blk.0.attn_q.weight"), cases[i].binary);
        assert_int_equal(type_in_file(file, "blk.0.ffn_down.weight"), cases[i].ternary);
        assert_int_equal(type_in_file(file, "blk.0.ffn_up.weight"), cases[i].four);
        assert_int_equal(type_in_file(file, "blk.0.attn_norm.weight"), QN_TYPE_F32);
        qn_gguf_close(file);
    }
}

/* Sets the bf16 weight at `index` of a tensor of the copy. */
static void poke(const char *tensor, size_t index, uint16_t bits)
{
    char path[8192];
    qn_safetensors *file;
    size_t size;
    snprintf(path, sizeof path, "%s/model.safetensors", copy);
    assert_ok(qn_safetensors_open(path, &file));
    char *bytes = read_file(path, &size);
    uint64_t header;
    memcpy(&header, bytes, 8);
    for (size_t i = 0; i < qn_safetensors_count(file); i++)
        if (strcmp(qn_safetensors_at(file, i)->name, tensor) == 0)
            memcpy(bytes + 8 + header + qn_safetensors_at(file, i)->begin + 2 * index, &bits, 2);
    qn_safetensors_close(file);
    replace_file(path, bytes, size);
    free(bytes);
}

/* One weight that no sample sees: the tensor keeps its type, the others stay low-bit. */
TEST(test_wrong_guess)
{
    link_checkpoint("qwen3-low-bit");
    poke("model.embed_tokens.weight", 5 * 128 + 3, 0x3f9d);
    assert_ok(convert(copy, NULL, 2, false));
    assert_contains(log_text, "lossless: 7 of 8 matrices");
    assert_contains(log_text, "largest difference 0\n");
    qn_gguf *file = open_out();
    assert_int_equal(type_in_file(file, "token_embd.weight"), QN_TYPE_BF16);
    assert_int_equal(type_in_file(file, "blk.0.ffn_gate.weight"), QN_TYPE_PTQ1_0);
    qn_gguf_close(file);
    assert_fails(convert(copy, "ptq1_0", 2, false), QN_ERR_INVALID,
                 "'token_embd.weight' and 0 more of 8 matrices have ordinary weights");
    poke("model.embed_tokens.weight", 5 * 128 + 3, 0x7f80);
    assert_fails(convert(copy, NULL, 2, false), QN_ERR_FORMAT,
                 "'model.embed_tokens.weight', row 5 contains an infinity or NaN");
    poke("model.embed_tokens.weight", 5 * 128 + 3, 0x4780); /* 65536 */
    assert_fails(convert(copy, "f16", 2, false), QN_ERR_FORMAT,
                 "'model.embed_tokens.weight' has a weight that is too large for f16");
}

TEST(test_force)
{
    char folder[4096];
    checkpoint_path("qwen35-text", folder);
    assert_fails(convert(folder, "q2_0", 1, false), QN_ERR_INVALID, "have ordinary weights");
    assert_text("--force");
    assert_ok(convert(folder, "q2_0", 1, true));
    assert_contains(log_text, "will not be usable");
    assert_contains(log_text, "keep a wider type than q2_0");
    qn_gguf *file = open_out();
    assert_int_equal(type_in_file(file, "blk.0.attn_q.weight"), QN_TYPE_Q2_0);
    assert_int_equal(type_in_file(file, "blk.1.ssm_conv1d.weight"), QN_TYPE_F32);
    qn_gguf_close(file);
}

TEST(test_threads)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        char folder[4096];
        size_t size;
        checkpoint_path(names[i], folder);
        assert_ok(convert(folder, NULL, 1, false));
        char *bytes = read_file(out, &size);
        assert_ok(convert(folder, NULL, 5, false));
        assert_file(out, bytes, size);
        free(bytes);
    }
}

/* ---- Checkpoints that cannot be converted ---- */

struct damage {
    const char *name, *file, *before, *after;
    qn_status status;
    const char *text;
};

static const struct damage damages[] = {
    { "qwen2", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", QN_ERR_FORMAT,
      "'model.layers.2.input_layernorm.weight' of Qwen2ForCausalLM is missing" },
    { "qwen2", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", QN_ERR_FORMAT,
      "'model.layers.1.input_layernorm.weight' is unknown to Qwen2ForCausalLM" },
    { "qwen2", "config.json", "\"vocab_size\": 352", "\"vocab_size\": 351", QN_ERR_FORMAT,
      "the shape [352, 64], expected [351, 64]" },
    { "qwen2", "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", QN_ERR_FORMAT,
      "'lm_head.weight' of Qwen2ForCausalLM is missing" },
    { "qwen2", "config.json", "Qwen2ForCausalLM", "Qwen9ForCausalLM", QN_ERR_UNSUPPORTED, "'Qwen9ForCausalLM'" },
    { "qwen2", "config.json", "\"silu\"", "\"gelu\"", QN_ERR_UNSUPPORTED, "hidden_act is 'gelu'" },
    { "qwen2", "config.json", "\"use_sliding_window\": false", "\"use_sliding_window\": true", QN_ERR_UNSUPPORTED,
      "use_sliding_window" },
    { "qwen2", "config.json", "\"use_sliding_window\": false", "\"use_sliding_window\": 1", QN_ERR_FORMAT,
      "'use_sliding_window' is 1, expected true or false" },
    { "qwen2", "config.json", "\"use_sliding_window\": false", "\"mlp_bias\": \"true\"", QN_ERR_FORMAT,
      "'mlp_bias' is \"true\", expected true or false" },
    { "qwen2", "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": \"true\"", QN_ERR_FORMAT,
      "'tie_word_embeddings' is \"true\", expected true or false" },
    { "qwen2", "config.json", "\"full_attention\",", "\"sliding_attention\",", QN_ERR_UNSUPPORTED,
      "'layer_types': entry 0 is \"sliding_attention\", only \"full_attention\" is supported" },
    { "qwen2", "config.json", "\"hidden_size\": 64", "\"hidden_size\": 0", QN_ERR_FORMAT, "'hidden_size' is 0" },
    { "qwen2", "config.json", "\"hidden_size\": 64", "\"hidden_size\": 64.5", QN_ERR_FORMAT, "'hidden_size' is 64.5" },
    { "qwen2", "config.json", "\"hidden_size\": 64", "\"hidden_size\": \"64\"", QN_ERR_FORMAT,
      "'hidden_size' is \"64\", expected" },
    { "qwen2", "config.json", "\"hidden_size\": 64", "\"hidden_size\": 4294967360", QN_ERR_FORMAT, "'hidden_size'" },
    { "qwen2", "config.json", "\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"", QN_ERR_UNSUPPORTED,
      "longrope" },
    { "qwen3", "config.json", "\"factor\": 4.0", "\"factor\": 0", QN_ERR_FORMAT, "'factor' is 0" },
    { "qwen2", "config.json", NULL, "[]", QN_ERR_FORMAT, "config.json: the JSON value is not an object" },
    { "qwen35-text", "config.json", "\"linear_attention\"", "\"other_attention\"", QN_ERR_FORMAT,
      "entry 1 is \"other_attention\"" },
    { "qwen35", "config.json", "\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_layers\": 2", QN_ERR_FORMAT,
      "'mtp.layers.1.input_layernorm.weight'" },
    { "qwen35", "config.json", "\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_layers\": 0", QN_ERR_FORMAT,
      "'mtp.fc.weight' is unknown" },
    { "qwen2", "model.safetensors", "\"dtype\":\"F16\"", "\"dtype\":\"I16\"", QN_ERR_UNSUPPORTED,
      "dtype I16, expected F32" },
    { "llama", "model.safetensors.index.json", "model-00001", "../00001", QN_ERR_FORMAT,
      "expected a name without a folder" },
    { "llama", "model.safetensors.index.json", "\"lm_head.weight\": \"model-00003-of-00003",
      "\"lm_head.weight\": \"model-00001-of-00003", QN_ERR_FORMAT, "tensor 'lm_head.weight' is in" },
    { "llama", "model.safetensors.index.json", "\"lm_head.weight\"", "\"lm_tail.weight\"", QN_ERR_FORMAT,
      "is in no file" },
    { "llama", "model.safetensors.index.json", "model-00002-of-00003", "model-00004-of-00003", QN_ERR_IO,
      "model-00004-of-00003" },
    { "qwen2", "tokenizer.json", "\"type\":\"Digits\"", "\"type\":\"Dogits\"", QN_ERR_UNSUPPORTED,
      "quern has no such pre-tokeniser: ?Dogits" },
    { "qwen35", "tokenizer.json", "\"NFC\"", "\"NFKC\"", QN_ERR_UNSUPPORTED,
      "'NFKC' is not supported with the pre-tokeniser qwen35" },
    { "qwen2", "tokenizer.json", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", QN_ERR_UNSUPPORTED, "'Unigram'" },
    { "qwen2", "tokenizer.json", "\"A\":32", "\"A\":352", QN_ERR_FORMAT,
      "token 'A' has the id 352, expected 0 to 351" },
    { "qwen2", "tokenizer.json", "\"A\":32", "\"A\":33", QN_ERR_FORMAT, "id 33 has two tokens" },
    { "qwen2", "tokenizer.json", "\"merges\":[[", "\"merges\":[[],[", QN_ERR_FORMAT,
      "merge 0 does not have two parts" },
    { "qwen2", "tokenizer.json", NULL, "{", QN_ERR_FORMAT, "tokenizer.json: line 1" },
    { "qwen2", "generation_config.json", "\"top_k\": 20", "\"top_k\": 1e300", QN_ERR_FORMAT, "'top_k'" },
};

TEST(test_damage)
{
    for (size_t i = 0; i < COUNT(damages); i++) {
        const struct damage *d = &damages[i];
        label("%s: %s: %s", d->name, d->file, d->after);
        link_checkpoint(d->name);
        unlink(out);
        if (strcmp(d->file, "tokenizer.json") == 0)
            compact_json(d->file);
        edit(d->file, d->before, d->after);
        assert_fails(convert(copy, "f16", 2, false), d->status, d->text);
        assert_int_equal(access(out, F_OK), -1);
    }
}

TEST(test_missing_files)
{
    static const char *const files[] = { "config.json", "tokenizer.json", "model.safetensors" };
    for (size_t i = 0; i < COUNT(files); i++) {
        char path[8192];
        link_checkpoint("qwen2");
        snprintf(path, sizeof path, "%s/%s", copy, files[i]);
        unlink(path);
        assert_fails(convert(copy, NULL, 1, false), QN_ERR_IO, files[i]);
    }
}

/* Checkpoints of Qwen3.6 have a block that their configuration does not name. */
TEST(test_unnamed_mtp)
{
    char named[4096];
    link_checkpoint("qwen35");
    convert_copy();
    snprintf(named, sizeof named, "%s/named.gguf", work);
    assert_int_equal(rename(out, named), 0);
    edit("config.json", ",\n    \"mtp_num_hidden_layers\": 1", "");
    convert_copy();
    assert_contains(log_text, "config.json does not name the MTP block that the checkpoint has");
    assert_same_files(out, named);
}

/* transformers saves Qwen3.5 without its MTP block. */
TEST(test_left_out)
{
    link_checkpoint("qwen35-text");
    edit("config.json", "\"linear_num_key_heads\"", "\"mtp_num_hidden_layers\": 1,\n  \"linear_num_key_heads\"");
    convert_copy();
    assert_contains(log_text, "left out: the MTP block");
    qn_model *model = create_model(out, &CPU_MODEL(.n_threads = 1));
    assert_true(error_of_logits("qwen35-text", model) < MAX_ERROR);
    qn_model_free(model);
}

/* Gives the copy's tensor `from` the name `to`, too, or instead: then with its own data, of which the last byte is
 * changed by `flip`. */
static void name_tensor(const char *from, const char *to, bool keep, uint8_t flip)
{
    char path[8192];
    size_t size;
    uint64_t header_bytes;
    snprintf(path, sizeof path, "%s/model.safetensors", copy);
    char *file = read_file(path, &size);
    memcpy(&header_bytes, file, 8);
    json_t *header = json_loadb(file + 8, header_bytes, 0, NULL), *old = json_object_get(header, from),
           *entry = json_deep_copy(old), *range = json_object_get(entry, "data_offsets");
    const size_t data = 8 + header_bytes, n = size - data, begin = (size_t)json_integer_value(json_array_get(range, 0)),
                 bytes = (size_t)json_integer_value(json_array_get(range, 1)) - begin;
    char *more = malloc(n + bytes);
    assert_non_null(more);
    memcpy(more, file + data, n);
    memcpy(more + n, file + data + begin, bytes);
    more[n + bytes - 1] = (char)(more[n + bytes - 1] ^ flip);
    if (keep) {
        json_array_set_new(range, 0, json_integer((json_int_t)n));
        json_array_set_new(range, 1, json_integer((json_int_t)(n + bytes)));
    } else {
        json_object_del(header, from);
    }
    json_object_set_new(header, to, entry);
    char *text = json_dumps(header, 0);
    const uint64_t length = strlen(text);
    unlink(path);
    FILE *out_file = fopen(path, "wb");
    assert_non_null(out_file);
    assert_int_equal(fwrite(&length, 1, 8, out_file), 8);
    assert_int_equal(fwrite(text, 1, length, out_file), length);
    assert_int_equal(fwrite(more, 1, keep ? n + bytes : n, out_file), keep ? n + bytes : n);
    fclose(out_file);
    free(text);
    free(more);
    free(file);
    json_decref(header);
}

static void check_tied(const char *name, bool has_output, bool is_golden, const char *note)
{
    convert_copy();
    assert_int_equal(strstr(log_text, "lm_head.weight") != NULL, note != NULL);
    assert_true(!note || strstr(log_text, note));
    qn_gguf *file = open_out();
    assert_int_equal(qn_gguf_find_tensor(file, "output.weight") != NULL, has_output);
    qn_gguf_close(file);
    qn_model *model = create_model(out, &CPU_MODEL(.n_threads = 1));
    assert_int_equal(error_of_logits(name, model) < MAX_ERROR, is_golden);
    qn_model_free(model);
}

/* An output matrix that is stored although config.json says that it is the embedding: as transformers, by its
 * values. */
TEST(test_tied)
{
    label("other values");
    link_checkpoint("llama");
    edit("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    check_tied("llama", true, true, "lm_head.weight is used: its values are not those of the embedding");
    label("the same values");
    link_checkpoint("qwen2");
    name_tensor("model.embed_tokens.weight", "lm_head.weight", true, 0);
    check_tied("qwen2", false, true, "left out: lm_head.weight, which has the values of the embedding");
    label("the last weight has another sign");
    link_checkpoint("qwen2");
    name_tensor("model.embed_tokens.weight", "lm_head.weight", true, 0x80);
    check_tied("qwen2", true, false, "lm_head.weight is used");
    label("only the output matrix");
    link_checkpoint("qwen2");
    name_tensor("model.embed_tokens.weight", "lm_head.weight", false, 0);
    check_tied("qwen2", false, true, NULL);
}

/* A folder with one file and an index of others. */
TEST(test_both)
{
    static const char note[] = "the 3 files that the index lists are used, not model.safetensors";
    link_checkpoint("llama");
    convert_copy();
    assert_null(strstr(log_text, note));
    edit("model.safetensors", NULL, "anything");
    convert_copy();
    assert_contains(log_text, note);
}

static bool cancel(void *user, size_t done, size_t total)
{
    (void)user;
    return done < total / 2;
}

TEST(test_cancel)
{
    char folder[4096];
    const qn_convert_params params = { .size = sizeof(qn_convert_params), .n_threads = 2, .on_progress = cancel };
    checkpoint_path("qwen3", folder);
    write_text(out, "kept");
    assert_int_equal(qn_convert_checkpoint(folder, out, NULL, &params), QN_ERR_CANCELLED);
    assert_int_equal(qn_convert_checkpoint(folder, out, "q9_9", NULL), QN_ERR_INVALID);
    assert_file(out, "kept", 4);
    DIR *dir = opendir(work);
    size_t n = 0;
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] == '.';
    closedir(dir);
    assert_int_equal(n, 2); /* no temporary file */
}

TEST(test_names)
{
    static const struct {
        uint64_t n;
        const char *text;
    } sizes[] = {
        { 1720574976, "1.7B" }, { 27356728832, "27B" }, { 134515008, "135M" }, { 282, "0.28K" }, { 281664, "282K" }
    };
    char text[64];
    for (size_t i = 0; i < COUNT(sizes); i++) {
        qn_general_size_label(sizes[i].n, text, sizeof text);
        assert_string_equal(text, sizes[i].text);
    }
    qn_general_name("/no/such/Qwen3-8B-my-v1.5-2nd-fine_tune", text, sizeof text);
    assert_string_equal(text, "Qwen3 8B My v1.5 2nd Fine_Tune");
}

TEST_GROUP(make_folder, remove_folder)
