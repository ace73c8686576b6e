/* Biases of queries, keys and values with caches of AURA codes. The norms of biases are those of their definition, by a
 * sum over positions. Whatever the biases, the error of a cache of codes is at most twice that without biases: a model
 * whose biases are too large has an fp16 cache, and says so. Session files of such a model in codes are evaluated
 * again. */
#include "helper_golden.h"
#include "helper_random.h"
#include "helper_sessions.h"

#include "engine/internal.h"
#include "engine/state_file.h"
#include "model/kv_bias.h"
#include "quern/scheduler.h"

#include <math.h>
#include <xxhash.h>

enum { DIM = 64, PAIRS = DIM / 2, N_LAYERS = 2, N_HEADS = 4, N_IDS = 330, N_LAST = 60, FILE_MAX = 1 << 20 };

/* ---- The norms ---- */

enum { WIDTH = 96, KV_HEADS = 2, ROWS = KV_HEADS * DIM };

struct projection {
    float weights[ROWS * WIDTH], norm[WIDTH], bias[ROWS];
    qn_matrix matrix;
    double expected; /* the norm of a head without bias; the same for all heads */
};

/* All weights have the same magnitude, so that any rows are like all. */
static void fill_projection(struct projection *p)
{
    p->expected = 0;
    for (size_t i = 0; i < WIDTH; i++) {
        p->norm[i] = 0.5f + (float)(i % 7) / 4;
        p->expected += DIM * 0.25 * 0.25 * (double)p->norm[i] * (double)p->norm[i];
    }
    p->expected = sqrt(p->expected);
    for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++)
        p->weights[i] = i * 7 % 3 ? 0.25f : -0.25f;
    memset(p->bias, 0, sizeof p->bias);
    p->matrix = (qn_matrix){ .type = qn_type_find(QN_TYPE_F32),
                             .data = (const uint8_t *)p->weights,
                             .n_rows = ROWS,
                             .n_cols = WIDTH,
                             .row_bytes = WIDTH * sizeof(float) };
}

static void make_plan(qn_plan *plan, double *frequencies, size_t n_rot, qn_rope_type rope)
{
    *plan = (qn_plan){
        .frequencies = frequencies,
        .heads = { .n_heads = KV_HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .n_rot = n_rot, .rope = rope }
    };
    qn_rope_frequencies(1e4, NULL, NULL, n_rot, frequencies);
}

static qn_kv_bias ratios_of(const qn_plan *plan, const struct projection *p, uint32_t n_ctx, bool rotated)
{
    const qn_biased_projection one = { &p->matrix, p->norm, rotated, p->bias, KV_HEADS };
    qn_kv_bias ratios;
    assert_ok(qn_kv_bias_find(plan, (const qn_biased_projection[]){ one, one, one }, n_ctx, &ratios));
    return ratios;
}

/* The root of the mean square of a pair of norm 1 at positions 0 to n_ctx - 1, less its mean at positions 0 to 63. */
static double left_of(double frequency, uint32_t n_ctx)
{
    double x = 0, y = 0, sum = 0;
    for (int p = 0; p < 64; p++) {
        x += cos(p * frequency) / 64;
        y += sin(p * frequency) / 64;
    }
    for (uint32_t p = 0; p < n_ctx; p++)
        sum += pow(cos(p * frequency) - x, 2) + pow(sin(p * frequency) - y, 2);
    return sqrt(sum / n_ctx);
}

TEST(norms_are_those_of_positions)
{
    static struct projection p;
    static const uint32_t contexts[] = { 1, 64, 65, 256, 4096, 131072 };
    double frequencies[PAIRS];
    qn_plan plan;
    fill_projection(&p);
    for (int rope = 0; rope < 2; rope++) {
        make_plan(&plan, frequencies, 48, rope ? QN_ROPE_TYPE_NORM : QN_ROPE_TYPE_NEOX);
        for (size_t c = 0; c < COUNT(contexts); c++)
            for (size_t pair = 0; pair < 24; pair += 5) {
                label("rope %d, %u positions, pair %zu", rope, (unsigned)contexts[c], pair);
                float *head = p.bias + DIM; /* the largest of the heads counts */
                memset(p.bias, 0, sizeof p.bias);
                p.bias[0] = 1e-3f;
                head[rope ? 2 * pair : pair] = 30;
                head[rope ? 2 * pair + 1 : pair + 24] = 40;
                const qn_kv_bias ratios = ratios_of(&plan, &p, contexts[c], false),
                                 turned = ratios_of(&plan, &p, contexts[c], true);
                const double keys = 50 * left_of(frequencies[pair], contexts[c]) / p.expected;
                assert_true(fabs((double)ratios.ratios[0] - 50 / p.expected) < 1e-5 * 50 / p.expected);
                assert_true(fabs((double)ratios.ratios[1] - keys) < 1e-3 * keys + 2e-5);
                assert_true(fabs((double)ratios.ratios[2] - 50 / p.expected) < 1e-5 * 50 / p.expected);
                assert_memory_equal(&ratios, &turned, sizeof ratios); /* the weights are alike in all columns */
            }
    }
}

/* What rope does not rotate is in the mean. Nothing is 0 / 0. */
TEST(edges_of_the_norms)
{
    static struct projection p;
    double frequencies[PAIRS];
    qn_plan plan;
    fill_projection(&p);
    make_plan(&plan, frequencies, 32, QN_ROPE_TYPE_NEOX);
    p.bias[40] = 1000;
    assert_true(ratios_of(&plan, &p, 4096, false).ratios[1] == 0);
    assert_true(ratios_of(&plan, &p, 4096, false).ratios[0] > 10);
    memset(p.bias, 0, sizeof p.bias);
    memset(p.weights, 0, sizeof p.weights);
    qn_kv_bias ratios = ratios_of(&plan, &p, 4096, false);
    assert_false(qn_kv_bias_is_large(&ratios)); /* no bias, whatever the weights */
    p.bias[3] = 1e-3f;
    ratios = ratios_of(&plan, &p, 4096, false);
    assert_true(qn_kv_bias_is_large(&ratios));
    p.weights[0] = NAN;
    ratios = ratios_of(&plan, &p, 4096, false);
    assert_true(qn_kv_bias_is_large(&ratios));
}

static void describes(const qn_kv_bias *layers, size_t n, const char *text)
{
    char described[160];
    const qn_plan plan = { .kv_bias = (qn_kv_bias *)layers, .n_layers = n };
    qn_plan_describe_kv_bias(&plan, described, sizeof described);
    assert_string_equal(described, text);
    assert_int_equal(qn_plan_has_large_kv_bias(&plan), *text != 0);
}

TEST(texts_name_layers)
{
    const qn_kv_bias small = { { 0.4f, 0.8f, 1.5f } }, key = { { 1, 88.44f, 0 } }, value = { { 3, 0, 2 } },
                     query = { { 1.3f, 0, 0 } }, both = { { 1, 0.9f, 0 } };
    describes(NULL, 4, "");
    describes((const qn_kv_bias[]){ small, small }, 2, "");
    describes((const qn_kv_bias[]){ small, key }, 2,
              "biases of queries, keys and values are up to 1, 88.4 and 0 times the norm without them (layer 1 of 2)");
    describes((const qn_kv_bias[]){ key, small, value, key, both, small, query }, 7,
              "biases of queries, keys and values are up to 3, 88.4 and 2 times the norm without them (layers 0, 2-4, "
              "6 of 7)");
    describes(
        (const qn_kv_bias[]){ key, { { 0, NAN, 0 } } }, 2,
        "biases of queries, keys and values are up to 1, nan and 0 times the norm without them (layers 0-1 of 2)");
}

/* ---- Models with biases ---- */

static char model_path[80];

struct bias {
    const char *name, *tensor; /* NULL: queries, keys and values */
    size_t first, end;         /* rope pairs */
    float norm;                /* of each head */
    int layer;                 /* -1: all */
};

static const struct bias no_bias = { "no bias", "attn_k.bias", 0, 0, 0, -1 };

/* Both values of a pair: NEOX. */
static void fill_bias(const struct bias *b, float *to, size_t count)
{
    memset(to, 0, count * sizeof *to);
    for (size_t head = 0; head < count / DIM; head++, to += DIM) {
        double square = 0;
        for (size_t i = 0; i < DIM; i++) {
            to[i] = i % PAIRS >= b->first && i % PAIRS < b->end ? random_float() : 0;
            square += (double)to[i] * (double)to[i];
        }
        for (size_t i = 0; i < DIM && square > 0; i++)
            to[i] *= b->norm / (float)sqrt(square);
    }
}

/* The bytes of a tensor of the mapped file in a copy of the file. */
static float *floats_of(const qn_gguf *file, uint8_t *bytes, size_t size, int layer, const char *name, size_t *count)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    const qn_gguf_tensor *tensor = qn_gguf_find_tensor(file, full);
    assert_non_null(tensor);
    *count = tensor->bytes / sizeof(float);
    for (size_t at = 0; at + tensor->bytes <= size; at += sizeof(float))
        if (memcmp(bytes + at, tensor->data, tensor->bytes) == 0)
            return (float *)(void *)(bytes + at);
    fail_msg("%s: not in the file", full);
    return NULL;
}

/* The golden model with all its biases zero but one, of a context of n_ctx. */
static void write_model(const struct bias *b, uint32_t n_ctx)
{
    static const char *const tensors[] = { "attn_q.bias", "attn_k.bias", "attn_v.bias" };
    static const char key[] = "qwen2.context_length";
    char name[512];
    qn_gguf *file;
    snprintf(name, sizeof name, "%s/tests/golden/qwen2.q1_0.gguf", QN_SOURCE_DIR);
    size_t size;
    uint8_t *golden = read_file(name, &size), *bytes = read_file(name, &size);
    assert_ok(qn_gguf_open(name, &file));
    for (int layer = 0; layer < N_LAYERS; layer++)
        for (size_t i = 0; i < 3; i++) {
            size_t count;
            const size_t at = (size_t)((uint8_t *)floats_of(file, golden, size, layer, tensors[i], &count) - golden);
            const bool is_there =
                (!b->tensor || strcmp(tensors[i], b->tensor) == 0) && (b->layer < 0 || b->layer == layer);
            fill_bias(is_there ? b : &no_bias, (float *)(void *)(bytes + at), count);
        }
    qn_gguf_close(file);
    uint8_t *at = bytes;
    while (memcmp(at, key, sizeof key - 1) != 0)
        at++;
    memcpy(at + sizeof key - 1 + 4, &n_ctx, sizeof n_ctx); /* after the value's type */
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    write_file(model_path, bytes, size);
    free(golden);
    free(bytes);
}

static void open_biased(const struct bias *b, uint32_t n_ctx)
{
    write_model(b, n_ctx);
    model = create_model(model_path, &CPU_MODEL(.n_threads = 2));
    info = *qn_model_get_info(model);
    for (uint32_t n = 0; n < MAX_IDS; n++)
        ids[n] = (qn_token)((n * n + n * 131u) % info.n_vocab);
    logits_bytes = N_LAST * info.n_vocab * sizeof *expected;
    expected = malloc(logits_bytes);
    found = malloc(logits_bytes);
    assert_true(expected && found);
}

static void close_biased(void)
{
    close_model();
    unlink(model_path);
}

static char log_text[512];
static int log_lines;

static void take_line(void *user, const char *line)
{
    assert_ptr_equal(user, &log_lines);
    snprintf(log_text, sizeof log_text, "%s", line);
    log_lines++;
}

static qn_session *new_session(const char *kv)
{
    log_lines = 0;
    return create_session(model, &SESSION_PARAMS(.n_ctx = N_IDS, .kv = kv, .on_log = take_line, .user = &log_lines));
}

static void eval(qn_session *session, float *logits)
{
    append_tokens(session, ids + qn_session_length(session), N_IDS - N_LAST - qn_session_length(session));
    assert_ok(qn_session_eval(session, ids + N_IDS - N_LAST, N_LAST, QN_LOGITS_ALL, logits));
}

/* Against the same model with an f16 cache. */
static double error_of(const char *kv, bool *is_f16)
{
    qn_session *reference = new_session("f16"), *session = new_session(kv);
    eval(reference, expected);
    eval(session, found);
    *is_f16 = strcmp(qn_session_kv(session), "f16") == 0;
    assert_int_equal(log_lines, *is_f16);
    qn_session_free(reference);
    qn_session_free(session);
    return mean_relative_error(found, expected, N_LAST, info.n_vocab);
}

static const char *const formats[] = { "aura8", "aura4" };

enum { FAST, MIDDLE, SLOW, ALL, N_PLACES };
static const struct bias places[N_PLACES] = { { "fast", "attn_k.bias", 0, 8, 0, -1 },
                                              { "middle", "attn_k.bias", 12, 20, 0, -1 },
                                              { "slow", "attn_k.bias", 24, PAIRS, 0, -1 },
                                              { "all", "attn_k.bias", 0, PAIRS, 0, -1 } };

/* Errors of both formats, against twice those without bias. */
static void compare_errors(const struct bias *b, uint32_t n_ctx, const double *without, bool *is_f16)
{
    open_biased(b, n_ctx);
    for (size_t f = 0; f < 2; f++) {
        label("%s %s, norm %g, layer %d, context %u, %s", b->tensor ? b->tensor : "all biases,", b->name,
              (double)b->norm, b->layer, (unsigned)n_ctx, formats[f]);
        const double error = error_of(formats[f], is_f16);
        if (error > 2 * without[f])
            fail_msg("%g, without bias %g", error, without[f]);
    }
    close_biased();
}

TEST(errors_are_at_most_twice_those_without_biases)
{
    static const float norms[] = { 4, 8, 16, 32, 100, 750 };
    static const uint32_t contexts[] = { 256, 4096 };
    double without[2];
    bool is_f16;
    random_state = 7;
    open_biased(&no_bias, 256);
    for (size_t f = 0; f < 2; f++) {
        without[f] = error_of(formats[f], &is_f16);
        assert_false(is_f16);
        assert_true(without[f] > 1e-3);
    }
    close_biased();
    for (size_t place = 0; place < N_PLACES; place++)
        for (size_t n = 0; n < COUNT(norms); n++)
            for (size_t c = 0; c < 2; c++) {
                struct bias b = places[place];
                b.norm = norms[n];
                b.layer = n == 4 ? 1 : -1;
                compare_errors(&b, contexts[c], without, &is_f16);
                /* Codes are not given up without need: small biases, and slow pairs in short contexts. */
                if (b.norm < 8 || (place == SLOW && b.norm <= 100 && contexts[c] == 256))
                    assert_false(is_f16);
                if (b.norm == 750 && (place != SLOW || contexts[c] == 4096))
                    assert_true(is_f16);
            }
}

TEST(errors_with_biases_of_values_and_queries)
{
    static const char *const tensors[] = { "attn_v.bias", "attn_q.bias", NULL };
    static const float norms[] = { 4, 8, 12, 16, 32, 100, 750 };
    double without[2];
    bool is_f16;
    random_state = 8;
    open_biased(&no_bias, 256);
    for (size_t f = 0; f < 2; f++)
        without[f] = error_of(formats[f], &is_f16);
    close_biased();
    for (size_t t = 0; t < COUNT(tensors); t++)
        for (size_t n = 0; n < COUNT(norms); n++) {
            const struct bias b = { "all", tensors[t], 0, PAIRS, norms[n], -1 };
            compare_errors(&b, 256, without, &is_f16);
            assert_true(norms[n] > 4 || !is_f16);
            assert_true(norms[n] < 100 || is_f16);
        }
    /* A query bias in a few pairs makes the errors of these pairs count. */
    for (size_t place = 0; place < N_PLACES; place++)
        for (float norm = 12; norm < 40; norm += 2) {
            const struct bias b = {
                places[place].name, "attn_q.bias", places[place].first, places[place].end, norm, -1
            };
            compare_errors(&b, 256, without, &is_f16);
        }
}

/* ---- What is said, and what it takes ---- */

static const struct bias large = { "fast", "attn_k.bias", 0, 8, 750, 1 };

TEST(the_reason_is_logged)
{
    open_biased(&large, 256);
    qn_session *session = new_session("aura4");
    assert_int_equal(log_lines, 1);
    assert_contains(log_text, "cache: all layers are stored as f16, not as aura4, which would be inaccurate: biases of "
                              "queries, keys and values are up to 0, 8");
    assert_contains(log_text, " and 0 times the norm without them (layer 1 of 2)");
    qn_session_free(session);
    qn_session_free(new_session("f16"));
    assert_int_equal(log_lines, 0);
    qn_session_free(new_session(NULL));
    assert_int_equal(log_lines, 0);
    const char *const kv[] = { "aura8", "f16" };
    for (int i = 0; i < 2; i++) {
        const qn_scheduler_params params =
            SCHEDULER_PARAMS(.kv = kv[i], .n_ctx = 256, .on_log = take_line, .user = &log_lines);
        log_lines = 0;
        qn_scheduler *scheduler = create_scheduler(model, &params);
        assert_int_equal(log_lines, !i);
        qn_scheduler_free(scheduler);
    }
    assert_contains(log_text, "not as aura8");
    close_biased();
}

/* Everything that counts memory counts that of an f16 cache. */
TEST(memory_is_that_of_f16)
{
    const char *const kv[] = { "f16", "aura4" };
    qn_capacity capacities[2] = { QN_CAPACITY_INIT, QN_CAPACITY_INIT };
    uint64_t bytes[2];
    open_biased(&large, 256);
    for (int i = 0; i < 2; i++) {
        qn_session *session = new_session(kv[i]);
        append_tokens(session, ids, 200);
        bytes[i] = qn_session_cache_bytes(session, 200);
        assert_ok(qn_model_get_capacity(model, kv[i], 2, &capacities[i]));
        qn_session_free(session);
    }
    assert_int_equal(bytes[0], 200 * info.cache_bytes_per_position);
    assert_int_equal(bytes[1], bytes[0]);
    assert_int_equal(capacities[0].bytes_per_position, info.cache_bytes_per_position);
    assert_int_equal(capacities[1].bytes_per_position, capacities[0].bytes_per_position);
    assert_int_equal(capacities[1].bytes_per_sequence, capacities[0].bytes_per_sequence);
    close_biased();
}

/* ---- Session files ---- */

TEST(sessions_go_on)
{
    open_biased(&large, 256);
    qn_session *session = new_session("aura4"), *restored, *fork;
    append_tokens(session, ids, 130);
    assert_ok(qn_session_save(session, path));
    assert_ok(qn_session_fork(session, &fork));
    eval(session, expected);
    eval(fork, found);
    assert_same_logits();
    const char *const kv[] = { NULL, "f16", "aura4", "aura2" };
    for (size_t i = 0; i < COUNT(kv); i++) {
        assert_ok(qn_session_restore(model, path, &SESSION_PARAMS(.n_ctx = N_IDS, .kv = kv[i]), &restored));
        assert_string_equal(qn_session_kv(restored), "f16");
        eval(restored, found);
        assert_same_logits();
        qn_session_free(restored);
    }
    qn_session_free(fork);
    qn_session_free(session);
    close_biased();
}

/* A file in codes, as such a model had it in earlier versions: that of a model without bias, with the other's
 * fingerprint. embedding: of the row after `length` tokens, or NULL. */
static size_t make_old_file(uint8_t *bytes, uint32_t length, const float *embedding)
{
    struct qn_state_header *h = (struct qn_state_header *)(void *)bytes;
    uint64_t fingerprint, checksum;
    open_biased(&no_bias, 256);
    qn_session *session = new_session("aura4");
    append_tokens(session, ids, length);
    qn_rows rows = QN_ROWS_INIT;
    rows.n = embedding ? 1 : 0;
    rows.n_embd = info.n_embd;
    rows.embeddings = &embedding;
    assert_ok(qn_session_eval_rows(session, &rows));
    assert_ok(qn_session_save(session, path));
    qn_session_free(session);
    close_biased();
    open_biased(&large, 256);
    const size_t size = read_state(path, bytes, FILE_MAX);
    assert_ok(qn_model_fingerprint(model, &fingerprint));
    h->fingerprint = fingerprint;
    h->checksum = XXH64(h, offsetof(struct qn_state_header, checksum), 0);
    checksum = XXH64(bytes, size - sizeof checksum, 0);
    memcpy(bytes + size - sizeof checksum, &checksum, sizeof checksum);
    return size;
}

TEST(files_in_codes_are_evaluated_again)
{
    static _Alignas(16) uint8_t bytes[FILE_MAX];
    static const uint32_t lengths[] = { 0, 1, 64, 200 };
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("%u tokens", (unsigned)lengths[i]);
        const size_t size = make_old_file(bytes, lengths[i], NULL);
        write_file(path, bytes, size);
        qn_session *plain = new_session("f16"), *restored;
        eval(plain, expected);
        const qn_session_params params = SESSION_PARAMS(.on_log = take_line, .user = &log_lines),
                                f16 = SESSION_PARAMS(.kv = "f16");
        log_lines = 0;
        assert_ok(qn_session_restore(model, path, &params, &restored));
        assert_int_equal(log_lines, 2);
        assert_contains(log_text, "its cache format 'aura4' is not used with this model: ");
        assert_string_equal(qn_session_kv(restored), "f16");
        assert_int_equal(qn_session_length(restored), lengths[i]);
        eval(restored, found);
        assert_same_logits();
        qn_session_free(restored);
        assert_ok(qn_session_restore(model, path, &f16, &restored));
        qn_session_free(restored);
        /* Contents that are not used are checked all the same. */
        bytes[size - 9] ^= 1;
        write_file(path, bytes, size);
        assert_int_equal(qn_session_restore(model, path, &params, &restored), QN_ERR_FORMAT);
        assert_null(restored);
        write_file(path, bytes, size - 8);
        assert_int_equal(qn_session_restore(model, path, &params, &restored), QN_ERR_FORMAT);
        qn_session_free(plain);
        close_biased();
    }
}

/* Embeddings are not in the file. */
TEST(files_with_embeddings_are_not_evaluated_again)
{
    static _Alignas(16) uint8_t bytes[FILE_MAX];
    static const float embedding[4096];
    qn_session *restored;
    const size_t size = make_old_file(bytes, 3, embedding);
    assert_in_range(info.n_embd, 1, COUNT(embedding));
    write_file(path, bytes, size);
    assert_fails(qn_session_restore(model, path, NULL, &restored), QN_ERR_UNSUPPORTED,
                 "its embeddings cannot be evaluated again");
    close_biased();
}

TEST_GROUP(make_folder, remove_folder)
