/* Rope scaling in GGUF metadata: frequencies and attention factors as Hugging Face transformers computes them for the
 * same configurations (modeling_rope_utils.py, rope_theta 300, heads of 32, 256 positions), metadata without scaling,
 * and rejected metadata. test_golden_logits.c checks the logits of such models. */
#include "helper_assert.h"

#include "model/model.h"

#include <math.h>
#include <unistd.h>

#define MODEL QN_SOURCE_DIR "/tests/golden/llama-linear.bf16.gguf"
#define S "llama.rope.scaling."

enum { PAIRS = 16, MAX_KEYS = 8 };

/* A metadata key of the file: a string if text is given, u32 for context lengths, else f32. */
struct key {
    const char *name;
    double value;
    const char *text;
};

#define TYPE(name)                                                                                                     \
    {                                                                                                                  \
        S "type", 0, name                                                                                              \
    }

static char path[] = "/tmp/quern-rope-XXXXXX";

static bool begins_with(qn_string s, const char *start)
{
    return s.length >= strlen(start) && memcmp(s.data, start, strlen(start)) == 0;
}

static bool is_replaced(qn_string name, const struct key *keys)
{
    bool found = begins_with(name, S);
    for (size_t i = 0; i < MAX_KEYS && keys[i].name; i++)
        found = found || qn_string_equals(name, keys[i].name);
    return found;
}

static void write_key(qn_gguf_writer *writer, const struct key *key)
{
    if (key->text)
        assert_ok(qn_gguf_writer_add_string(writer, key->name, key->text));
    else if (strstr(key->name, "context_length"))
        assert_ok(qn_gguf_writer_add_u32(writer, key->name, (uint32_t)key->value));
    else
        assert_ok(qn_gguf_writer_add_f32(writer, key->name, (float)key->value));
}

/* Write the golden model with these keys instead of its scaling. */
static void write_model(const struct key *keys)
{
    qn_gguf *file;
    qn_gguf_writer *writer;
    assert_ok(qn_gguf_open(MODEL, &file));
    assert_ok(qn_gguf_writer_create(path, &writer));
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++)
        if (!is_replaced(qn_gguf_kv_at(file, i)->key, keys))
            assert_ok(qn_gguf_writer_copy(writer, qn_gguf_kv_at(file, i)));
    for (size_t i = 0; i < MAX_KEYS && keys[i].name; i++)
        write_key(writer, &keys[i]);
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
        assert_ok(qn_gguf_writer_add_tensor(writer, t->name, t->type, t->n_dims, t->dims, t->bytes));
    }
    assert_ok(qn_gguf_writer_begin_data(writer));
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++)
        assert_ok(qn_gguf_writer_data(writer, qn_gguf_tensor_at(file, i)->data, qn_gguf_tensor_at(file, i)->bytes));
    assert_ok(qn_gguf_writer_finish(writer));
    qn_gguf_writer_free(writer);
    qn_gguf_close(file);
}

static qn_status build(const struct key *keys, double frequencies[PAIRS], double *attn_factor)
{
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan;
    write_model(keys);
    assert_ok(qn_gguf_open(path, &file));
    const qn_status status = qn_model_build(file, &hparams, &plan);
    if (status == QN_OK) {
        assert_int_equal(plan.heads.n_rot, 2 * PAIRS);
        memcpy(frequencies, plan.frequencies, PAIRS * sizeof *frequencies);
        *attn_factor = plan.attn_factor;
        qn_plan_free(&plan);
    }
    qn_gguf_close(file);
    return status;
}

/* transformers computes in f32: an error of a few 2^-24 relative. */
static void check(const struct key *keys, const double *expected, double expected_factor)
{
    double found[PAIRS], factor;
    assert_ok(build(keys, found, &factor));
    for (size_t i = 0; i < PAIRS; i++)
        if (!(fabs(found[i] - expected[i]) <= 2e-6 * expected[i]))
            fail_msg("frequency %zu is %.9g, expected %.9g", i, found[i], expected[i]);
    if (!(fabs(factor - expected_factor) <= 1e-6))
        fail_msg("the attention factor is %.9g, expected %.9g", factor, expected_factor);
}

/* ---- YaRN ---- */

static const double from_1024[PAIRS] = { 1,           0.70013195,  0.49018481,   0.34319407,   0.24028115,
                                         0.15675838,  0.10172096,  0.065595612,  0.041989107,  0.026641862,
                                         0.016723219, 0.010357484, 0.0063057444, 0.0037526255, 0.0021636859,
                                         0.0011902518 };
static const double from_256[PAIRS] = {
    1,           0.65239567,  0.42334145,   0.27299529,   0.17474993,   0.11087789,   0.069598556,  0.043105688,
    0.026243191, 0.015617644, 0.0090048099, 0.0049535795, 0.0034681596, 0.0024281694, 0.0017000391, 0.0011902518
};
static const double from_32[PAIRS] = {
    1,           0.59511214,  0.34312937,   0.18875673,   0.09611246,   0.04205713,   0.029445542,  0.020615764,
    0.014433756, 0.010105534, 0.0070752082, 0.0049535795, 0.0034681596, 0.0024281694, 0.0017000391, 0.0011902518
};
static const double betas[PAIRS] = {
    1,           0.70013195,   0.43274128,   0.26275799,   0.15580732,   0.089371406,   0.048769176,   0.02448122,
    0.010374262, 0.0025263836, 0.0017688021, 0.0012383949, 0.0008670399, 0.00060704234, 0.00042500978, 0.00029756295
};
static const double narrower[PAIRS] = { 1,           0.84015834,  0.68625873,  0.54911053,  0.43250605,  0.33645704,
                                        0.23556434,  0.16492611,  0.11547004,  0.080844276, 0.056601666, 0.039628636,
                                        0.027745277, 0.019425355, 0.013600313, 0.0095220143 };

TEST(yarn)
{
    static const struct {
        struct key keys[MAX_KEYS];
        const double *frequencies;
        double attn_factor;
    } cases[] = {
        { { TYPE("yarn"), { S "factor", 4, NULL }, { S "original_context_length", 1024, NULL } },
          from_1024,
          1.13862944 },
        { { TYPE("yarn"), { S "factor", 4, NULL } }, from_256, 1.13862944 }, /* of the file's context_length */
        { { TYPE("yarn"), { S "factor", 4, NULL }, { S "yarn_ext_factor", -1, NULL } }, from_256, 1.13862944 },
        { { TYPE("yarn"),
            { S "factor", 16, NULL },
            { S "original_context_length", 32, NULL },
            { S "yarn_beta_fast", 3, NULL },
            { S "yarn_beta_slow", 0.25, NULL } },
          betas,
          1.27725887 },
        { { TYPE("yarn"),
            { S "factor", 4, NULL },
            { S "original_context_length", 32, NULL },
            { S "yarn_log_multiplier", 0.7, NULL } },
          from_32,
          1.03791002 },
        { { TYPE("yarn"),
            { S "factor", 4, NULL },
            { S "original_context_length", 32, NULL },
            { S "yarn_attn_factor", 1.3, NULL } },
          from_32,
          1.3 },
        { { TYPE("yarn"), { S "factor", 0.5, NULL }, { S "original_context_length", 32, NULL } }, narrower, 1 },
        /* Not in transformers: attn_factor is an additional factor. */
        { { TYPE("yarn"),
            { S "factor", 4, NULL },
            { S "original_context_length", 32, NULL },
            { S "attn_factor", 1.5, NULL } },
          from_32,
          1.5 * 1.13862944 },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        check(cases[i].keys, cases[i].frequencies, cases[i].attn_factor);
}

/* ---- Equal scaling of all pairs ---- */

TEST(all_pairs_alike)
{
    static const struct {
        struct key keys[MAX_KEYS];
        double divisor, attn_factor;
    } cases[] = {
        { { { NULL, 0, NULL } }, 1, 1 },
        { { TYPE("none"), { S "factor", 4, NULL } }, 1, 1 },
        { { TYPE("linear") }, 1, 1 },
        { { TYPE("linear"), { S "factor", 1, NULL } }, 1, 1 },
        { { TYPE("yarn") }, 1, 1 },
        { { TYPE("yarn"), { S "factor", 1, NULL }, { S "original_context_length", 32, NULL } }, 1, 1 },
        { { TYPE("linear"), { S "factor", 4, NULL } }, 4, 1 },
        { { TYPE("linear"), { S "factor", 4, NULL }, { S "attn_factor", 0.9, NULL } }, 4, 0.9 },
        { { { S "factor", 2.5, NULL } }, 2.5, 1 },
        { { { S "factor", 0, NULL } }, 1, 1 },
        { { { "llama.rope.scale_linear", 2, NULL } }, 2, 1 },
        { { { "llama.rope.scale_linear", 2, NULL }, { S "factor", 4, NULL } }, 4, 1 },
        { { TYPE("yarn"), { S "factor", 4, NULL }, { S "yarn_ext_factor", 0, NULL } }, 4, 1 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        double expected[PAIRS];
        for (size_t p = 0; p < PAIRS; p++)
            expected[p] = pow(300, -2.0 * (double)p / (2.0 * PAIRS)) / cases[i].divisor;
        check(cases[i].keys, expected, cases[i].attn_factor);
    }
}

/* ---- Rejected metadata ---- */

#define YARN4                                                                                                          \
    TYPE("yarn"),                                                                                                      \
    {                                                                                                                  \
        S "factor", 4, NULL                                                                                            \
    }

TEST(refusals)
{
    static const struct {
        struct key keys[MAX_KEYS];
        qn_status status;
        const char *text;
    } cases[] = {
        { { TYPE("dynamic"), { S "factor", 4, NULL } },
          QN_ERR_UNSUPPORTED,
          "llama.rope.scaling.type is 'dynamic', expected none, linear or yarn" },
        { { TYPE("longrope") }, QN_ERR_UNSUPPORTED, "is 'longrope'" },
        { { TYPE("llama3") }, QN_ERR_UNSUPPORTED, "is 'llama3'" },
        { { TYPE("linear"), { S "factor", 0, NULL } },
          QN_ERR_FORMAT,
          "'llama.rope.scaling.factor' is 0, expected 1e-06 to 1e+06" },
        { { TYPE("yarn"), { S "factor", -4, NULL } }, QN_ERR_FORMAT, "'llama.rope.scaling.factor' is -4, expected" },
        { { TYPE("yarn"), { S "factor", 1e9, NULL } }, QN_ERR_FORMAT, "'llama.rope.scaling.factor' is 1e+09" },
        { { TYPE("yarn"), { S "factor", NAN, NULL } }, QN_ERR_FORMAT, "llama.rope.scaling.factor" },
        { { { "llama.rope.scale_linear", -2, NULL } }, QN_ERR_FORMAT, "'llama.rope.scale_linear' is -2" },
        { { TYPE("none"), { S "attn_factor", 0, NULL } },
          QN_ERR_FORMAT,
          "scaling.attn_factor' is 0, expected 0.01 to 100" },
        { { YARN4, { S "attn_factor", INFINITY, NULL } }, QN_ERR_FORMAT, "scaling.attn_factor" },
        { { YARN4, { S "original_context_length", 0, NULL } }, QN_ERR_FORMAT, "original_context_length is 0" },
        { { YARN4, { S "yarn_ext_factor", 2, NULL } }, QN_ERR_FORMAT, "yarn_ext_factor' is 2, expected 0 to 1" },
        { { YARN4, { S "yarn_ext_factor", -2, NULL } }, QN_ERR_FORMAT, "yarn_ext_factor' is -2" },
        { { YARN4, { S "yarn_log_multiplier", -0.1, NULL } },
          QN_ERR_FORMAT,
          "yarn_log_multiplier' is -0.1, expected 0 to 100" },
        { { YARN4, { S "yarn_attn_factor", 0, NULL } }, QN_ERR_FORMAT, "yarn_attn_factor' is 0, expected 0.01 to 100" },
        { { YARN4, { S "yarn_beta_fast", 0, NULL } }, QN_ERR_FORMAT, "yarn_beta_fast' is 0, expected 0.001 to 1e+06" },
        { { YARN4, { S "yarn_beta_slow", NAN, NULL } }, QN_ERR_FORMAT, "yarn_beta_slow" },
        { { YARN4, { S "yarn_beta_slow", 64, NULL } },
          QN_ERR_FORMAT,
          "yarn_beta_fast' is 32, expected at least yarn_beta_slow, 64" },
        { { YARN4, { "llama.rope.freq_base", 1, NULL } }, QN_ERR_FORMAT, "rope.freq_base is 1, expected more than 1" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        double frequencies[PAIRS], factor;
        const qn_status status = build(cases[i].keys, frequencies, &factor);
        if (status != cases[i].status || !strstr(qn_error_text(), cases[i].text))
            fail_msg("case %zu: %s, '%s', expected '%s'", i, qn_status_name(status), qn_error_text(), cases[i].text);
    }
}

/* A base just above 1, or a context of few positions, gives a ramp of length 0. */
TEST(ramps_stay_finite)
{
    static const struct key cases[][MAX_KEYS] = {
        { YARN4, { "llama.rope.freq_base", 1.0000001, NULL } },
        { YARN4, { S "original_context_length", 1, NULL } },
        { YARN4, { S "original_context_length", 1 << 30, NULL } },
        { YARN4, { S "yarn_beta_fast", 1, NULL } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        double frequencies[PAIRS], factor;
        assert_ok(build(cases[i], frequencies, &factor));
        for (size_t p = 0; p < PAIRS; p++)
            assert_true(frequencies[p] > 0 && frequencies[p] <= 1);
    }
}

static int set_up(void)
{
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int tear_down(void)
{
    return unlink(path);
}

TEST_GROUP(set_up, tear_down)
