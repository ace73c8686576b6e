/* What the files of a checkpoint say besides shapes and weights: rope blocks, tied matrices, end tokens, flags of the
 * tokeniser. What transformers and tokenizers act on is in the file, or the checkpoint is refused with the name of what
 * is not. */
#include "helper_checkpoint.h"
#include "helper_create.h"

#include "gguf/gguf.h"
#include "helper_request.h"
#include "model/model.h"

#include <math.h>

/* ---- Rope ---- */

#define YARN                                                                                                           \
    "\"factor\": 4.0,\n    \"original_max_position_embeddings\": 128,\n    \"rope_theta\": 1000000.0,\n    "           \
    "\"rope_type\": "                                                                                                  \
    "\"yarn\""

enum { PAIRS = 16 };

/* From transformers 5.24: _compute_yarn_parameters in float64, heads of 32 elements. */
static const double rounded[PAIRS] = { 1,
                                       0.342628409,
                                       0.111142463,
                                       0.0328078717,
                                       0.00790569415,
                                       0.00333380358,
                                       0.00140585331,
                                       0.000592843426,
                                       0.00025,
                                       0.000105424126,
                                       4.44569853e-05,
                                       1.87473552e-05,
                                       7.90569415e-06,
                                       3.33380358e-06,
                                       1.40585331e-06,
                                       5.92843426e-07 };
static const double exact[PAIRS] = { 1,
                                     0.331093437,
                                     0.101413948,
                                     0.0266541505,
                                     0.00790569415,
                                     0.00333380358,
                                     0.00140585331,
                                     0.000592843426,
                                     0.00025,
                                     0.000105424126,
                                     4.44569853e-05,
                                     1.87473552e-05,
                                     7.90569415e-06,
                                     3.33380358e-06,
                                     1.40585331e-06,
                                     5.92843426e-07 };
static const double betas[PAIRS] = { 1,
                                     0.421696503,
                                     0.144485202,
                                     0.0468683881,
                                     0.0138349648,
                                     0.00333380358,
                                     0.00140585331,
                                     0.000592843426,
                                     0.00025,
                                     0.000105424126,
                                     4.44569853e-05,
                                     1.87473552e-05,
                                     7.90569415e-06,
                                     3.33380358e-06,
                                     1.40585331e-06,
                                     5.92843426e-07 };
static const double exact_betas[PAIRS] = { 1,
                                           0.421696503,
                                           0.139719118,
                                           0.0414035541,
                                           0.010073505,
                                           0.00333380358,
                                           0.00140585331,
                                           0.000592843426,
                                           0.00025,
                                           0.000105424126,
                                           4.44569853e-05,
                                           1.87473552e-05,
                                           7.90569415e-06,
                                           3.33380358e-06,
                                           1.40585331e-06,
                                           5.92843426e-07 };
static const double narrower[PAIRS] = { 1,
                                        0.527120629,
                                        0.266741912,
                                        0.131231487,
                                        0.0632455532,
                                        0.0266704286,
                                        0.0112468265,
                                        0.00474274741,
                                        0.002,
                                        0.000843393007,
                                        0.000355655882,
                                        0.000149978842,
                                        6.32455532e-05,
                                        2.66704286e-05,
                                        1.12468265e-05,
                                        4.74274741e-06 };
static const double shorter[PAIRS] = { 1,
                                       0.316272378,
                                       0.0889139705,
                                       0.0187473552,
                                       0.00790569415,
                                       0.00333380358,
                                       0.00140585331,
                                       0.000592843426,
                                       0.00025,
                                       0.000105424126,
                                       4.44569853e-05,
                                       1.87473552e-05,
                                       7.90569415e-06,
                                       3.33380358e-06,
                                       1.40585331e-06,
                                       5.92843426e-07 };

static void check_rope(const double *frequencies, double attn_factor)
{
    qn_hparams hparams;
    qn_plan plan;
    convert_copy();
    qn_gguf *file = open_out();
    assert_ok(qn_model_build(file, &hparams, &plan));
    assert_int_equal(plan.heads.n_rot, 2 * PAIRS);
    for (size_t i = 0; i < PAIRS; i++)
        if (!(fabs(plan.frequencies[i] - frequencies[i]) <= 1e-6 * frequencies[i]))
            fail_msg("frequency %zu is %.9g, expected %.9g", i, plan.frequencies[i], frequencies[i]);
    if (!(fabs(plan.attn_factor - attn_factor) <= 1e-6))
        fail_msg("the attention factor is %.9g, expected %.9g", plan.attn_factor, attn_factor);
    qn_plan_free(&plan);
    qn_gguf_close(file);
}

TEST(test_yarn)
{
    static const struct {
        const char *more;
        const double *frequencies;
        double attn_factor;
    } cases[] = {
        { "", rounded, 1.13862944 },
        { ", \"truncate\": true", rounded, 1.13862944 },
        { ", \"truncate\": false", exact, 1.13862944 },
        { ", \"truncate\": null", exact, 1.13862944 },
        { ", \"mscale\": 0.707, \"mscale_all_dim\": 1.0", rounded, 0.964326915 },
        { ", \"mscale\": 1, \"mscale_all_dim\": 0.4", rounded, 1.07880764 },
        { ", \"mscale\": 2.0", rounded, 1.13862944 },
        { ", \"mscale_all_dim\": 2.0", rounded, 1.13862944 },
        { ", \"mscale\": 2.0, \"mscale_all_dim\": 0", rounded, 1.13862944 },
        { ", \"mscale\": 2.0, \"mscale_all_dim\": null", rounded, 1.13862944 },
        { ", \"attention_factor\": 1.3", rounded, 1.3 },
        { ", \"attention_factor\": null", rounded, 1.13862944 },
        { ", \"attention_factor\": 1.3, \"mscale\": 0.7, \"mscale_all_dim\": 1.0", rounded, 1.3 },
        { ", \"truncate\": false, \"mscale\": 0.707, \"mscale_all_dim\": 1.0", exact, 0.964326915 },
        { ", \"beta_fast\": 0, \"beta_slow\": 0", rounded, 1.13862944 },
        { ", \"beta_fast\": 8, \"beta_slow\": 0.5", betas, 1.13862944 },
        { ", \"beta_fast\": 8, \"beta_slow\": 0.5, \"truncate\": false", exact_betas, 1.13862944 },
        { ", \"factor\": 0.5, \"mscale\": 2, \"mscale_all_dim\": 0.5", narrower, 1 },
        { ", \"extrapolation_factor\": 1, \"attn_factor\": 1.0, \"short_factor\": null", rounded, 1.13862944 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char block[512];
        const char *old = strstr(cases[i].more, "\"factor\"") ? &YARN[strlen("\"factor\": 4.0,")] : YARN; /* a key is
                                                                                                             there once
                                                                                                           */
        label("%s", cases[i].more);
        snprintf(block, sizeof block, "%s%s", old, cases[i].more);
        link_checkpoint("qwen3");
        edit("config.json", YARN, block);
        check_rope(cases[i].frequencies, cases[i].attn_factor);
    }
}

/* The places where transformers looks, in its order. */
TEST(test_rope_places)
{
    label("rope_scaling counts more than rope_parameters");
    link_checkpoint("qwen3");
    edit("config.json", "\"rope_parameters\": {",
         "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"rope_theta\": 1e6, "
         "\"original_max_position_embeddings\": "
         "64},\n"
         "  \"rope_parameters\": {");
    check_rope(shorter, 1.13862944);
    label("an empty rope_scaling does not");
    link_checkpoint("qwen3");
    edit("config.json", "\"rope_parameters\": {", "\"rope_scaling\": {},\n  \"rope_parameters\": {");
    check_rope(rounded, 1.13862944);
    label("an original context outside of the block counts more than that inside");
    link_checkpoint("qwen3");
    edit("config.json", "\"rope_parameters\": {",
         "\"original_max_position_embeddings\": 64,\n  \"rope_parameters\": {");
    check_rope(shorter, 1.13862944);
    label("a key that the type does not read");
    link_checkpoint("qwen3");
    edit("config.json", "\"rope_type\": \"yarn\"", "\"rope_type\": \"yarn\", \"low_freq_factor\": 3");
    check_rope(rounded, 1.13862944);
    assert_contains(log_text, "'low_freq_factor' has no effect with this rope_type");
}

TEST(test_rope_refused)
{
    static const struct {
        const char *name, *before, *after, *text;
    } cases[] = {
        { "qwen3", YARN, YARN ", \"frobnicate\": 3", "'rope_parameters' has the unknown key 'frobnicate'" },
        { "qwen3", YARN, YARN ", \"finetuned\": true", "unknown key 'finetuned'" },
        { "qwen3", YARN, YARN ", \"extrapolation_factor\": 0.5",
          "'extrapolation_factor' of 'rope_parameters' is not 1" },
        { "qwen3", YARN, YARN ", \"attn_factor\": \"1\"", "'attn_factor' of 'rope_parameters' is not 1" },
        { "qwen3", YARN, "\"full_attention\": {\"rope_type\": \"default\"}", "unknown key 'full_attention'" },
        { "qwen3", YARN, YARN ", \"truncate\": 0", "'truncate' is 0, expected true or false" },
        { "qwen3", YARN, YARN ", \"mscale\": \"0.7\"", "'mscale'" },
        { "qwen3", YARN, YARN ", \"mscale\": -1", "'mscale'" },
        { "qwen3", YARN, YARN ", \"beta_fast\": 0.5", "'beta_fast' is 0.5, expected at least 'beta_slow', 1" },
        { "qwen3", YARN, YARN ", \"attention_factor\": 0", "'attention_factor'" },
        { "qwen3", YARN, YARN ", \"partial_rotary_factor\": 0.5", "'partial_rotary_factor' is 0.5" },
        { "qwen3", "\"rope_type\": \"yarn\"", "\"rope_type\": 3", "rope_type is 3, expected a string" },
        { "qwen3", "\"factor\": 4.0,", "", "'factor', which is missing" },
        { "qwen3", "\"rope_theta\": 1000000.0", "\"rope_theta\": 1", "'rope_theta' is 1" },
        { "qwen2", "\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"truncated\": false",
          "unknown key 'truncated'" },
        { "qwen2", "\"rope_parameters\"", "\"partial_rotary_factor\": 0.5, \"rope_parameters\"",
          "'partial_rotary_factor' is 0.5" },
        { "qwen2", "\"rope_parameters\"", "\"rope_scaling\": 3, \"_\"", "'rope_scaling' is 3, expected an object" },
        { "llama", "\"low_freq_factor\"", "\"low_freq_factors\"", "unknown key 'low_freq_factors'" },
        { "qwen35", "\"mrope_section\"", "\"mrope_sections\"", "unknown key 'mrope_sections'" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s: %s", cases[i].name, cases[i].after);
        link_checkpoint(cases[i].name);
        edit("config.json", cases[i].before, cases[i].after);
        assert_int_not_equal(convert(copy, NULL, 1, false), QN_OK);
        assert_text(cases[i].text);
    }
}

/* ---- End tokens ---- */

enum { END_OF_TEXT = 320, IM_END = 322, N_VOCAB = 352, MAX_ENDS = 8 };

static void check_ends(uint32_t first, const int *expected)
{
    uint32_t eos;
    convert_copy();
    qn_gguf *file = open_out();
    assert_ok(qn_gguf_get_u32(file, "tokenizer.ggml.eos_token_id", true, &eos));
    assert_int_equal(eos, first);
    qn_gguf_close(file);
    qn_model *model = create_model(out, &CPU_MODEL(.vocab_only = true));
    for (qn_token token = 0; token < N_VOCAB; token++) {
        bool is_expected = token == END_OF_TEXT || token == IM_END; /* by their names */
        for (int i = 0; i < MAX_ENDS && expected[i]; i++)
            is_expected |= expected[i] == token;
        if (qn_token_is_end(model, token) != is_expected)
            fail_msg("token %d ends generation: %d, expected %d", token, !is_expected, is_expected);
    }
    qn_model_free(model);
}

TEST(test_ends)
{
    static const struct {
        const char *generation, *config; /* values of eos_token_id; NULL: no such key; "": no such file */
        bool named;                      /* tokenizer_config.json names <|im_end|> */
        uint32_t first;
        int expected[MAX_ENDS];
    } cases[] = {
        { NULL, "null", true, IM_END, { 0 } },
        { "[5, 7, 322]", "null", true, IM_END, { 5, 7 } },
        { "5", "null", true, IM_END, { 5 } },
        { "null", "null", true, IM_END, { 0 } },
        { "[]", "[7]", true, IM_END, { 7 } },
        { NULL, "[5, 6, 5]", true, IM_END, { 5, 6 } },
        { "[5]", "[6, 7]", true, IM_END, { 5, 6, 7 } },
        { NULL, "5", true, IM_END, { 0 } }, /* what LlamaConfig has by default is of another tokeniser */
        { "", "5", true, IM_END, { 5 } },
        { NULL, "5", false, 5, { 5 } },
        { "6", "5", false, 6, { 6 } },
        { "[7, 6]", "[5]", false, 7, { 7, 6, 5 } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char value[128], path[8192];
        const char *generation = cases[i].generation;
        label("%s in generation_config.json, %s in config.json", generation ? generation : "none", cases[i].config);
        link_checkpoint("qwen2");
        snprintf(path, sizeof path, "%s/generation_config.json", copy);
        if (generation && !*generation)
            unlink(path);
        snprintf(value, sizeof value, "{ \"eos_token_id\": %s,", generation ? generation : "");
        if (generation && *generation)
            edit("generation_config.json", "{", value);
        snprintf(value, sizeof value, "\"eos_token_id\": %s", cases[i].config);
        edit("config.json", "\"eos_token_id\": null", value);
        if (!cases[i].named)
            edit("tokenizer_config.json", "\"eos_token\"", "\"other_token\"");
        check_ends(cases[i].first, cases[i].expected);
    }
}

TEST(test_bad_ends)
{
    static const struct {
        const char *file, *before, *after, *text;
    } cases[] = {
        { "generation_config.json", "{", "{ \"eos_token_id\": [5, 352],",
          "generation_config.json: 'eos_token_id' is 352, expected 0 to 351" },
        { "generation_config.json", "{", "{ \"eos_token_id\": -1,", "'eos_token_id' is -1" },
        { "generation_config.json", "{", "{ \"eos_token_id\": \"</s>\",",
          "generation_config.json: 'eos_token_id' is not an id" },
        { "generation_config.json", "{", "{ \"eos_token_id\": [[5]],", "'eos_token_id' is not an id" },
        { "config.json", "\"eos_token_id\": null", "\"eos_token_id\": [5, 6.5]",
          "config.json: 'eos_token_id' is not an id" },
        { "config.json", "\"bos_token_id\": null", "\"bos_token_id\": [5, 6]", "'bos_token_id' is not an id" },
        { "config.json", "\"eos_token_id\": null",
          "\"eos_token_id\": "
          "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,"
          "39,"
          "40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63]",
          "too many ids, at most 64" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s: %.60s", cases[i].file, cases[i].after);
        link_checkpoint("qwen2");
        edit(cases[i].file, cases[i].before, cases[i].after);
        assert_int_not_equal(convert(copy, NULL, 1, false), QN_OK);
        assert_text(cases[i].text);
    }
}

/* A file with a list that no converter writes. */
TEST(test_hostile_ends)
{
    static const int32_t outside[] = { 5, N_VOCAB }, negative[] = { -1 }, many[65] = { 0 };
    static const struct {
        const int32_t *ids;
        size_t n;
        const char *text;
    } cases[] = { { outside, 2, "'quern.tokenizer.eos_token_ids' has 352" },
                  { negative, 1, "'quern.tokenizer.eos_token_ids' has -1" },
                  { many, 65, "is not an array of at most 64 ids" },
                  { NULL, 0, "is not an array of at most 64 ids" } };
    link_checkpoint("qwen2");
    convert_copy();
    for (size_t i = 0; i < COUNT(cases); i++) {
        static const char key[] = "quern.tokenizer.eos_token_ids";
        char path[8192];
        qn_gguf_writer *w;
        qn_model *model;
        label("%s", cases[i].text);
        snprintf(path, sizeof path, "%s/bad.gguf", work);
        qn_gguf *file = open_out();
        assert_ok(qn_gguf_writer_create(path, &w));
        for (size_t k = 0; k < qn_gguf_n_kv(file); k++)
            assert_ok(qn_gguf_writer_copy(w, qn_gguf_kv_at(file, k)));
        assert_ok(cases[i].ids ? qn_gguf_writer_add_i32s(w, key, cases[i].ids, cases[i].n)
                               : qn_gguf_writer_add_string(w, key, "5"));
        assert_ok(qn_gguf_writer_begin_data(w));
        assert_ok(qn_gguf_writer_finish(w));
        qn_gguf_writer_free(w);
        qn_gguf_close(file);
        assert_fails(qn_model_load(path, &CPU_MODEL(.vocab_only = true), &model), QN_ERR_FORMAT, cases[i].text);
    }
}

static bool keep_first(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    *(qn_token *)user = *(qn_token *)user < 0 ? token : *(qn_token *)user;
    return true;
}

/* The first greedy token, and whether generation ended with it. */
static qn_token generate_first(bool ignore_end, bool ends)
{
    static const qn_token ids[] = { 40, 41, 42 };
    qn_request_params request = QN_REQUEST_PARAMS_INIT;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    qn_token first = -1;
    request.sampling.temperature = 0;
    request.max_tokens = 1;
    request.ignore_end = ignore_end;
    request.on_token = keep_first;
    request.user = &first;
    qn_model *model = create_model(out, &CPU_MODEL(.n_threads = 1));
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 16));
    assert_ok(generate_from(session, ids, 3, &request, &result));
    assert_int_equal(result.finish == QN_FINISH_STOP, ends);
    qn_session_free(session);
    qn_model_free(model);
    return first;
}

TEST(test_ends_are_honoured)
{
    char value[64];
    link_checkpoint("qwen2");
    convert_copy();
    const qn_token first = generate_first(false, false);
    snprintf(value, sizeof value, "{ \"eos_token_id\": [350, %d],", first);
    edit("generation_config.json", "{", value);
    convert_copy();
    assert_int_equal(generate_first(false, true), first);
    assert_int_equal(generate_first(true, false), first);
}

/* ---- The tokeniser's flags ---- */

/* tokenizer.json without its white space, with another text in the place of each of two. */
static void edit_tokenizer(const char *name, const char *before, const char *after)
{
    link_checkpoint(name);
    compact_json("tokenizer.json");
    edit("tokenizer.json", before, after);
}

static void check_tokens(const char *text, const qn_token *expected)
{
    qn_token *tokens;
    size_t n;
    label("%s", text);
    qn_model *model = create_model(out, &CPU_MODEL(.vocab_only = true));
    assert_ok(qn_tokenize(model, text, strlen(text), true, false, &tokens, &n));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tokens[i], expected[i]);
    assert_int_equal(expected[n], 0);
    qn_free_tokens(tokens);
    qn_model_free(model);
}

#define ADDED(content, special, flags)                                                                                 \
    "\"content\":\"" content "\",\"single_word\":false," flags ",\"normalized\":false,\"special\":" special

/* As tokenizers 0.23 gives the ids. */
TEST(test_strips)
{
    enum { TOOL = 324, START = 321 };
    static const char plain[] = "\"lstrip\":false,\"rstrip\":false";
    static const struct {
        const char *flags;
        struct {
            const char *text;
            qn_token ids[16];
        } texts[8];
    } cases[] = {
        { "\"lstrip\":true,\"rstrip\":false",
          { { "a  <tool_call>  b", { 64, TOOL, 220, 284 } },
            { "<tool_call>\n\n x", { TOOL, 311, 220, 87 } },
            { " \u00a0\u3000<tool_call>\u2003\t<tool_call> ", { TOOL, TOOL, 220 } },
            { "a\u200b <tool_call> \u200bb", { 64, 262, 233, TOOL, 220, 262, 233, 65 } },
            { "x <|im_start|> <tool_call> y", { 87, START, TOOL, 220, 88 } },
            { "  <|im_end|>  <tool_call>  <|im_end|>  ", { 257, 322, TOOL, 257, 322, 257 } },
            { " <tool_call>\u1680\u180e", { TOOL, 157, 248, 222, 157, 254, 236 } } } },
        { "\"lstrip\":false,\"rstrip\":true",
          { { "a  <tool_call>  b", { 64, 257, TOOL, 65 } },
            { "<tool_call>\n\n x", { TOOL, 87 } },
            { " \u00a0\u3000<tool_call>\u2003\t<tool_call> ", { 220, 126, 254, 274, 222, TOOL, TOOL } },
            { "a\u200b <tool_call> \u200bb", { 64, 262, 233, 220, TOOL, 262, 233, 65 } },
            { "x <|im_start|> <tool_call> y", { 87, 220, START, TOOL, 88 } },
            { "  <|im_end|>  <tool_call>  <|im_end|>  ", { 257, 322, 257, TOOL, 322, 257 } },
            { " <tool_call>\u1680\u180e", { 220, TOOL, 157, 254, 236 } } } },
        { "\"lstrip\":true,\"rstrip\":true",
          { { "a  <tool_call>  b", { 64, TOOL, 65 } },
            { "<tool_call>\n\n x", { TOOL, 87 } },
            { " \u00a0\u3000<tool_call>\u2003\t<tool_call> ", { TOOL, TOOL } },
            { "a\u200b <tool_call> \u200bb", { 64, 262, 233, TOOL, 262, 233, 65 } },
            { "x <|im_start|> <tool_call> y", { 87, START, TOOL, 88 } },
            { "  <|im_end|>  <tool_call>  <|im_end|>  ", { 257, 322, TOOL, 322, 257 } },
            { " <tool_call>\u1680\u180e", { TOOL, 157, 254, 236 } } } },
    };
    char before[256], after[256];
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(before, sizeof before, ADDED("<|im_start|>", "true", "%s"), plain);
        snprintf(after, sizeof after, ADDED("<|im_start|>", "true", "%s"), cases[i].flags);
        edit_tokenizer("qwen2", before, after);
        snprintf(before, sizeof before, ADDED("<tool_call>", "false", "%s"), plain);
        snprintf(after, sizeof after, ADDED("<tool_call>", "false", "%s"), cases[i].flags);
        edit("tokenizer.json", before, after);
        convert_copy();
        assert_contains(log_text,
                        "flags lstrip and rstrip of added tokens are stored in keys that llama.cpp does not read");
        for (size_t t = 0; t < 8 && cases[i].texts[t].text; t++)
            check_tokens(cases[i].texts[t].text, cases[i].texts[t].ids);
    }
    /* tokenizer_config.json replaces them. */
    edit("tokenizer_config.json", "{",
         "{ \"added_tokens_decoder\": { \"324\": { \"content\": \"<tool_call>\", \"lstrip\": false },"
         " \"321\": { \"content\": \"<|im_start|>\", \"lstrip\": true } },");
    convert_copy();
    check_tokens("a  <tool_call>  b", (qn_token[]){ 64, 257, TOOL, 220, 284, 0 });
    check_tokens("x <|im_start|> <tool_call> y", (qn_token[]){ 87, START, 220, TOOL, 220, 88, 0 });
}

/* Normalisers that the pre-tokeniser's name does not say. */
TEST(test_normalizers)
{
    static const struct {
        const char *name, *before, *after;
        qn_token ids[16];
    } cases[] = {
        { "qwen3", "{\"type\":\"NFC\"}", "null", { 68, 306, 220, 66, 64, 69, 127, 102, 299, 226, 103 } },
        { "qwen3",
          "{\"type\":\"NFC\"}",
          "{\"type\":\"Sequence\",\"normalizers\":[]}",
          { 68, 306, 220, 66, 64, 69, 127, 102, 299, 226, 103 } },
        { "qwen3",
          "{\"type\":\"NFC\"}",
          "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
          { 127, 102, 220, 66, 64, 69, 127, 102, 220, 42 } },
        { "llama",
          "\"normalizer\":null",
          "\"normalizer\":{\"type\":\"NFC\"}",
          { 127, 102, 220, 66, 64, 69, 127, 102, 220, 42 } },
        { "llama",
          "\"normalizer\":null",
          "\"normalizer\":null",
          { 68, 310, 220, 66, 64, 69, 127, 102, 275, 226, 103 } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        edit_tokenizer(cases[i].name, cases[i].before, cases[i].after);
        convert_copy();
        check_tokens("e\u0301 caf\u00e9 \u212a", cases[i].ids);
    }
}

/* Pre-tokenisers are known by their patterns. */
TEST(test_pretokenizers)
{
    static const char llama3[] =
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r"
        "\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\"
        "s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}";
    static const struct {
        const char *name, *steps;
    } cases[] = {
        { "tekken", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{"
                    "Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+|[^\\\\r\\\\n\\\\p{L}"
                    "\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p"
                    "{M}]*|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)"
                    "|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}" },
        { "gpt-4o", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{"
                    "Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+(?i:'s|'t|'re|'"
                    "ve|'m|'ll|'d)?|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{"
                    "M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\\\p{N}"
                    "{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}"
                    ",\"behavior\":\"Isolated\",\"invert\":false}" },
        { "deepseek-v3",
          "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":\"Isolated"
          "\",\"invert\":false},{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[一-龥぀-ゟ゠-ヿ]+\"},\""
          "behavior\":\"Isolated\",\"invert\":false},{\"type\":\"Split\",\"pattern\":{\"Regex"
          "\":\"[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\"
          "\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+"
          "(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_string name;
        label("%s", cases[i].name);
        edit_tokenizer("llama", llama3, cases[i].steps);
        convert_copy();
        qn_gguf *file = open_out();
        assert_ok(qn_gguf_get_string(file, "tokenizer.ggml.pre", true, &name));
        assert_true(qn_string_equals(name, cases[i].name));
        qn_gguf_close(file);
    }
}

TEST(test_ignored_merges)
{
    static const struct {
        const char *name, *before, *after;
        bool has_key, value;
    } cases[] = { { "llama", "\"ignore_merges\":true", "\"ignore_merges\":true", false, false },
                  { "llama", "\"ignore_merges\":true", "\"ignore_merges\":false", true, false },
                  { "llama", "\"ignore_merges\":true", "\"version\":1", true, false },
                  { "qwen2", "\"ignore_merges\":false", "\"ignore_merges\":true", true, true },
                  { "qwen2", "\"ignore_merges\":false", "\"ignore_merges\":false", false, false } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        bool value = false;
        label("%s: %s", cases[i].name, cases[i].after);
        edit_tokenizer(cases[i].name, cases[i].before, cases[i].after);
        convert_copy();
        qn_gguf *file = open_out();
        assert_int_equal(qn_gguf_find(file, "quern.tokenizer.ignore_merges") != NULL, cases[i].has_key);
        assert_ok(qn_gguf_get_bool(file, "quern.tokenizer.ignore_merges", false, &value));
        assert_int_equal(value, cases[i].value);
        qn_gguf_close(file);
    }
}

TEST(test_tokenizers_refused)
{
    static const char plain[] =
        "\"content\":\"<tool_call>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false";
    static const struct {
        const char *name, *file, *before, *after, *text;
    } cases[] = {
        { "qwen2", "tokenizer.json", plain, "\"content\":\"<tool_call>\",\"single_word\":true",
          "the added token '<tool_call>' has the flag 'single_word'" },
        { "qwen2", "tokenizer.json", plain, "\"content\":\"<tool_call>\",\"case_sensitive\":true",
          "the added token '<tool_call>' has the flag 'case_sensitive'" },
        { "qwen3", "tokenizer.json", plain, "\"content\":\"caf\u00e9\",\"normalized\":true",
          "the added token 'caf\u00e9' has the flag 'normalized'" },
        { "qwen2", "tokenizer.json", plain, "\"content\":\"<tool_call>\",\"lstrip\":1",
          "'lstrip' of the added token '<tool_call>' is 1, expected true or false" },
        { "qwen2", "tokenizer.json", plain, "\"content\":\"<tool_call>\",\"normalized\":\"yes\"",
          "'normalized' of the added token '<tool_call>' is \"yes\"" },
        { "qwen2", "tokenizer_config.json", "{",
          "{ \"added_tokens_decoder\": { \"324\": { \"content\": \"<call>\" } },",
          "id 324 has two tokens, '<tool_call>' and '<call>'" },
        { "qwen2", "tokenizer_config.json", "{",
          "{ \"added_tokens_decoder\": { \"324\": { \"content\": \"<tool_call>\", \"single_word\": true } },",
          "tokenizer_config.json: the added token '<tool_call>' has the flag 'single_word'" },
        { "qwen2", "tokenizer_config.json", "{", "{ \"add_prefix_space\": true,", "'add_prefix_space' is true" },
        { "qwen2", "tokenizer_config.json", "{", "{ \"split_special_tokens\": true,",
          "'split_special_tokens' is true" },
        { "qwen2", "tokenizer.json", "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}",
          "the normaliser 'Lowercase'" },
        { "qwen3", "tokenizer.json", "{\"type\":\"NFC\"}",
          "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Strip\"}]}",
          "the normaliser 'Strip'" },
        { "qwen2", "tokenizer.json", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"",
          "the decoder 'Metaspace'" },
        { "qwen2", "tokenizer.json", "\"post_processor\":{\"type\":\"ByteLevel\"",
          "\"post_processor\":{\"type\":\"RobertaProcessing\"", "the post-processor 'RobertaProcessing'" },
        { "llama", "tokenizer.json", "\"single\":[",
          "\"single\":[{\"SpecialToken\":{\"id\":\"<|im_end|>\",\"type_id\":0}},",
          "adds 2 tokens before a text and 0 after it" },
        { "llama", "tokenizer.json", "\"single\":[{\"SpecialToken\":{\"id\":\"<|endoftext|>\"",
          "\"single\":[{\"SpecialToken\":{\"id\":\"<|im_start|>\"",
          "the post-processor adds '<|im_start|>' to texts, which is not the bos_token, '<|endoftext|>'" },
        { "qwen2", "tokenizer.json", "\"dropout\":null", "\"dropout\":0.1", "'dropout' is not 0" },
        { "qwen2", "tokenizer.json", "\"add_prefix_space\":false", "\"add_prefix_space\":true",
          "quern has no such pre-tokeniser" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s: %s", cases[i].file, cases[i].after);
        link_checkpoint(cases[i].name);
        if (strcmp(cases[i].file, "tokenizer.json") == 0)
            compact_json("tokenizer.json");
        edit(cases[i].file, cases[i].before, cases[i].after);
        const qn_status status = convert(copy, NULL, 1, false);
        assert_true(status == QN_ERR_UNSUPPORTED || status == QN_ERR_FORMAT);
        assert_text(cases[i].text);
    }
    label("%s", "an end token is added");
    edit_tokenizer(
        "llama", "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]",
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"<|im_end|>\",\"type_id\":0}}]");
    convert_copy();
    assert_contains(log_text, "the tokeniser adds an end token to each text; quern does not");
    label("%s", "ASCII, and a text that is not normalised");
    edit_tokenizer("qwen3", plain, "\"content\":\"<tool_call>\",\"normalized\":true");
    convert_copy();
    edit_tokenizer("qwen2", plain, "\"content\":\"caf\u00e9\",\"normalized\":true");
    convert_copy();
}

TEST_GROUP(make_folder, remove_folder)
