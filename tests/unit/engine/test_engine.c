/* Models and sessions through the public header: errors, rewinding, several sessions, cancelling, generation; and valid
 * GGUF files that do not match their architecture. */
#include "helper_create.h"
#include "helper_sanitizers.h"
#include "helper_vocab.h"

#include "gguf/gguf.h"
#include "helper_request.h"
#include "quant/quant.h"
#include "quern/quern.h"

#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#define MODEL QN_SOURCE_DIR "/tests/golden/llama.q1_0.gguf"
enum { VOCAB = 320, N_IDS = 40 };

static qn_model *model;
static qn_token ids[N_IDS];

static int load_model(void)
{
    for (int i = 0; i < N_IDS; i++)
        ids[i] = i * 61 % VOCAB;
    return qn_model_load(MODEL, &CPU_MODEL(.n_threads = 2), &model) != QN_OK;
}

static int free_model(void)
{
    qn_model_free(model);
    return 0;
}

static qn_session *new_session(uint32_t n_ctx, uint32_t n_batch)
{
    return create_session(model, &SESSION_PARAMS(.n_ctx = n_ctx, .n_batch = n_batch));
}

TEST(evaluation_rejects_bad_arguments)
{
    qn_session *session = new_session(10, 4);
    float logits[VOCAB];
    qn_token bad[] = { 1, VOCAB, 2 };
    assert_fails(qn_session_eval(session, ids, 11, QN_LOGITS_LAST, logits), QN_ERR_CONTEXT,
                 "11 tokens do not fit after 0, its capacity is 10");
    assert_fails(qn_session_eval(session, bad, 3, QN_LOGITS_LAST, logits), QN_ERR_INVALID, "token 1: id 320");
    bad[1] = -1;
    assert_int_equal(qn_session_eval(session, bad, 3, QN_LOGITS_LAST, logits), QN_ERR_INVALID);
    assert_int_equal(qn_session_eval(session, ids, 3, QN_LOGITS_LAST, NULL), QN_ERR_INVALID);
    assert_int_equal(qn_session_length(session), 0);
    append_tokens(session, ids, 10);
    assert_int_equal(qn_session_length(session), 10);
    append_tokens(session, ids, 0);
    assert_int_equal(qn_session_eval(session, ids, 1, QN_LOGITS_NONE, NULL), QN_ERR_CONTEXT);
    assert_int_equal(qn_session_truncate(session, 11), QN_ERR_INVALID);
    qn_session_free(session);
    static const qn_session_params refused[] = { { .size = sizeof(qn_session_params), .n_ctx = UINT32_MAX },
                                                 { .size = sizeof(qn_session_params), .n_batch = 5000 },
                                                 { .size = sizeof(qn_session_params), .kv = "q4_0" } };
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(qn_session_create(model, &refused[i], &session), i == 2 ? QN_ERR_UNSUPPORTED : QN_ERR_INVALID);
        assert_null(session);
    }
}

TEST(rewinding_truncates)
{
    qn_session *a = new_session(64, 16), *b = new_session(64, 16);
    float first[VOCAB], second[VOCAB];
    const qn_token other[] = { 5, 6, 7, 8, 9 };
    assert_ok(qn_session_eval(a, ids, 30, QN_LOGITS_LAST, first));
    append_tokens(b, ids, 20);
    append_tokens(b, other, 5);
    assert_ok(qn_session_truncate(b, 20));
    assert_ok(qn_session_eval(b, ids + 20, 10, QN_LOGITS_LAST, second));
    assert_memory_equal(first, second, sizeof first);
    qn_session_free(a);
    qn_session_free(b);
}

/* Positions beyond one block of keys, where partial results are combined. */
TEST(long_contexts_do_not_depend_on_the_split)
{
    enum { LONG = 700 };
    qn_token tokens[LONG];
    float first[VOCAB], second[VOCAB];
    qn_session *a = new_session(LONG, 0), *b = new_session(LONG + 300, 3);
    for (int i = 0; i < LONG; i++)
        tokens[i] = i * 131 % VOCAB;
    assert_ok(qn_session_eval(a, tokens, LONG, QN_LOGITS_LAST, first));
    append_tokens(b, tokens, LONG - 1);
    assert_ok(qn_session_eval(b, tokens + LONG - 1, 1, QN_LOGITS_LAST, second));
    assert_memory_equal(first, second, sizeof first);
    qn_session_free(a);
    qn_session_free(b);
}

struct side {
    qn_session *session;
    float logits[VOCAB];
    qn_status status;
};

static void *evaluate_side(void *context)
{
    struct side *side = context;
    for (int i = 0; i < N_IDS && side->status == QN_OK; i++)
        side->status = qn_session_eval(side->session, ids + i, 1, QN_LOGITS_LAST, side->logits);
    return NULL;
}

TEST(sessions_take_turns)
{
    struct side sides[2] = { { .session = new_session(64, 0) }, { .session = new_session(64, 0) } };
    pthread_t threads[2];
    float alone[VOCAB];
    qn_session *session = new_session(64, 0);
    assert_ok(qn_session_eval(session, ids, N_IDS, QN_LOGITS_LAST, alone));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, evaluate_side, &sides[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_ok(sides[i].status);
        assert_memory_equal(sides[i].logits, alone, sizeof alone);
        qn_session_free(sides[i].session);
    }
    qn_session_free(session);
}

static bool stop_after_two(void *user, size_t done, size_t total)
{
    (void)total;
    ++*(int *)user;
    return done < 8;
}

static void *cancel_soon(void *context)
{
    usleep(20000);
    qn_session_cancel(context);
    return NULL;
}

TEST(cancelling)
{
    int calls = 0;
    qn_session *session = new_session(1 << 20, 4);
    qn_session_on_progress(session, stop_after_two, &calls);
    assert_int_equal(qn_session_eval(session, ids, N_IDS, QN_LOGITS_NONE, NULL), QN_ERR_CANCELLED);
    assert_int_equal(calls, 2);
    assert_int_equal(qn_session_length(session), 8);
    qn_session_on_progress(session, NULL, NULL);
    /* From another thread, during a generation without limit. */
    pthread_t thread;
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    params.ignore_end = true;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, session), 0);
    assert_ok(generate_from(session, ids, 5, &params, &result));
    pthread_join(thread, NULL);
    assert_int_equal(result.finish, QN_FINISH_CANCELLED);
    /* The request is cleared after it has been executed. */
    append_tokens(session, ids, 1);
    qn_session_free(session);
}

/* For a request at any time, the last generated token is pending and all tokens before it are in the session. */
TEST(cancelled_sessions_can_continue)
{
    for (int i = 0; i < 10; i++) {
        qn_session *session = new_session(1 << 20, 4);
        pthread_t thread;
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        qn_request_result result = QN_REQUEST_RESULT_INIT;
        qn_token pending;
        params.ignore_end = true;
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, session), 0);
        assert_ok(generate_from(session, ids, 5, &params, &result));
        pthread_join(thread, NULL);
        assert_int_equal(result.finish, QN_FINISH_CANCELLED);
        assert_int_equal(qn_session_pending(session, &pending), result.n_generated > 0);
        assert_int_equal(qn_session_length(session), result.n_prompt + result.n_generated - (result.n_generated > 0));
        qn_session_free(session);
    }
}

static bool cancel_at_third(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    static int tokens;
    (void)token;
    if (++tokens == 3)
        qn_session_cancel(user);
    return true;
}

/* A request during the callback of the last token is too late for this generation and does not stop the next one. */
TEST(a_late_cancel_is_forgotten)
{
    qn_session *session = new_session(64, 4);
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    params.max_tokens = 3;
    params.ignore_end = true;
    params.on_token = cancel_at_third;
    params.user = session;
    assert_ok(generate_from(session, ids, 5, &params, &result));
    assert_int_equal(result.finish, QN_FINISH_LENGTH);
    assert_ok(generate_from(session, ids, 1, &params, &result));
    assert_int_equal(result.n_generated, 3);
    /* A request before it stops the generation; n_prompt has the tokens evaluated. */
    qn_session_cancel(session);
    assert_ok(generate_from(session, ids, 20, &params, &result));
    assert_int_equal(result.finish, QN_FINISH_CANCELLED);
    assert_int_equal(result.n_prompt, 0);
    qn_session_free(session);
}

#if !QN_TEST_SANITIZED
/* A session whose creation fails for lack of memory does not affect existing sessions. */
TEST(failing_sessions_leave_others_alone)
{
    qn_session *session = new_session(64, 8), *other;
    float before[VOCAB], after[VOCAB];
    struct rlimit limit, low;
    int failed = 0;
    assert_ok(qn_session_eval(session, ids, 20, QN_LOGITS_LAST, before));
    assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
    for (rlim_t headroom = 1 << 20; headroom < 64 << 20; headroom += 1 << 20) {
        unsigned long pages = 0;
        FILE *statm = fopen("/proc/self/statm", "r");
        assert_non_null(statm);
        assert_int_equal(fscanf(statm, "%lu", &pages), 1);
        fclose(statm);
        low = limit;
        low.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + headroom;
        assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
        const qn_status status = qn_session_create(model, &SESSION_PARAMS(.n_ctx = 4096, .n_batch = 4096), &other);
        assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
        failed += status == QN_ERR_MEMORY;
        qn_session_free(other);
        assert_ok(qn_session_truncate(session, 0));
        assert_ok(qn_session_eval(session, ids, 20, QN_LOGITS_LAST, after));
        assert_memory_equal(before, after, sizeof before);
        if (status == QN_OK)
            break;
    }
    assert_true(failed > 0);
    qn_session_free(session);
}
#endif

static bool count_tokens(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    (void)token;
    return ++*(int *)user < 7;
}

TEST(generation_stops)
{
    qn_session *session = new_session(20, 0);
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    int tokens = 0;
    params.max_tokens = 4;
    assert_ok(generate_from(session, ids, 5, &params, &result));
    assert_int_equal(result.finish, QN_FINISH_LENGTH);
    assert_int_equal(result.n_prompt, 5);
    assert_int_equal(result.n_generated, 4);
    assert_int_equal(qn_session_length(session), 8); /* the last token was not evaluated */
    params.max_tokens = 0;
    assert_ok(generate_from(session, ids, 2, &params, &result));
    assert_int_equal(result.n_generated, 0);
    assert_int_equal(qn_session_length(session), 10);
    params.max_tokens = -1;
    params.on_token = count_tokens;
    params.user = &tokens;
    assert_ok(generate_from(session, ids, 1, &params, &result));
    assert_int_equal(result.finish, QN_FINISH_CALLBACK);
    assert_int_equal(tokens, 7);
    params.on_token = NULL;
    assert_ok(generate_from(session, ids, 1, &params, &result));
    assert_int_equal(result.finish, QN_FINISH_CONTEXT);
    assert_int_equal(qn_session_length(session), 20);
    assert_int_equal(generate_from(session, ids, 1, &params, &result), QN_ERR_CONTEXT);
    assert_int_equal(generate_from(session, ids, 0, &params, &result), QN_ERR_INVALID);
    assert_int_equal(generate_text(session, "text", &params, &result), QN_ERR_UNSUPPORTED); /* the file has no tokeniser
                                                                                             */
    qn_session_free(session);
}

/* ---- Valid files that do not match their architecture ---- */

/* A copy of the model in which one key has another value, one tensor is missing or has fewer rows, or the scale of one
 * block is NaN. */
struct change {
    const char *key; /* becomes `value` */
    uint32_t value;
    const char *architecture;
    const char *drop, *shorten, *poison;
};

static void write_tensors(qn_gguf_writer *writer, const qn_gguf *file, const struct change *change)
{
    for (int data = 0; data < 2; data++) {
        for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
            const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
            uint64_t dims[4];
            size_t bytes = t->bytes;
            memcpy(dims, t->dims, sizeof dims);
            if (change->drop && qn_string_equals(t->name, change->drop))
                continue;
            if (change->shorten && qn_string_equals(t->name, change->shorten)) {
                bytes -= bytes / dims[1];
                dims[1]--;
            }
            if (!data) {
                assert_ok(qn_gguf_writer_add_tensor(writer, t->name, t->type, t->n_dims, dims, bytes));
                continue;
            }
            uint8_t *copy = malloc(bytes);
            assert_non_null(copy);
            memcpy(copy, t->data, bytes);
            if (change->poison && qn_string_equals(t->name, change->poison))
                memset(copy + (t->type == QN_TYPE_F32 ? 4 : 18) * 3, 0xff, 4);
            assert_ok(qn_gguf_writer_data(writer, copy, bytes));
            free(copy);
        }
        if (!data)
            assert_ok(qn_gguf_writer_begin_data(writer));
    }
}

static void write_changed(const char *path, const struct change *change)
{
    qn_gguf *file;
    qn_gguf_writer *writer;
    assert_ok(qn_gguf_open(MODEL, &file));
    assert_ok(qn_gguf_writer_create(path, &writer));
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(file, i);
        if (change->architecture && qn_string_equals(kv->key, "general.architecture"))
            assert_ok(qn_gguf_writer_add_string(writer, "general.architecture", change->architecture));
        else if (!change->key || !qn_string_equals(kv->key, change->key))
            assert_ok(qn_gguf_writer_copy(writer, kv));
    }
    if (change->key)
        assert_ok(qn_gguf_writer_add_u32(writer, change->key, change->value));
    write_tensors(writer, file, change);
    assert_ok(qn_gguf_writer_finish(writer));
    qn_gguf_writer_free(writer);
    qn_gguf_close(file);
}

TEST(wrong_models_are_rejected)
{
    static const struct {
        struct change change;
        qn_status status;
        const char *text;
    } cases[] = {
        { { .architecture = "mamba9" }, QN_ERR_UNSUPPORTED, "architecture 'mamba9'" },
        { { .drop = "blk.1.ffn_up.weight" }, QN_ERR_FORMAT, "'blk.1.ffn_up.weight' is missing" },
        { { .drop = "token_embd.weight" }, QN_ERR_FORMAT, "'token_embd.weight' is missing" },
        { { .key = "llama.block_count", .value = 2 }, QN_ERR_UNSUPPORTED, "tensor 'blk.2." },
        { { .drop = "output_norm.weight" }, QN_ERR_FORMAT, "'output_norm.weight' is missing" },
        { { .shorten = "blk.0.attn_k.weight" }, QN_ERR_FORMAT, "'blk.0.attn_k.weight' is [" },
        { { .poison = "blk.2.attn_q.weight" }, QN_ERR_FORMAT, "'blk.2.attn_q.weight': block 3" },
        { { .poison = "blk.0.attn_norm.weight" }, QN_ERR_FORMAT, "'blk.0.attn_norm.weight': block 3" },
        { { .key = "llama.block_count", .value = 99 }, QN_ERR_FORMAT, "'blk.3.attn_norm.weight' is missing" },
        { { .key = "llama.block_count", .value = 0 }, QN_ERR_FORMAT, "block_count is 0" },
        { { .key = "llama.attention.head_count", .value = 0 }, QN_ERR_FORMAT, "head_count is 0" },
        { { .key = "llama.attention.head_count_kv", .value = 3 }, QN_ERR_FORMAT, "not a multiple of" },
        { { .key = "llama.attention.key_length", .value = 40 }, QN_ERR_UNSUPPORTED, "multiples of 16" },
        { { .key = "llama.embedding_length", .value = 128 }, QN_ERR_FORMAT, "expected [128" },
        { { .key = "llama.rope.dimension_count", .value = 7 }, QN_ERR_FORMAT, "dimension_count is 7" },
        { { .key = "llama.attention.sliding_window", .value = 2 }, QN_ERR_UNSUPPORTED, "sliding_window" },
        { { .key = "llama.expert_count", .value = 8 }, QN_ERR_UNSUPPORTED, "8 experts" },
        { { .key = "prism.hadamard.version", .value = 3 }, QN_ERR_UNSUPPORTED, "prism.hadamard.version" },
        { { .key = "llama.attention.layer_norm_rms_epsilon", .value = 1 }, QN_ERR_FORMAT, "layer_norm_rms_epsilon" },
    };
    char path[] = "/tmp/quern-test-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_model *wrong;
        write_changed(path, &cases[i].change);
        const qn_status status = qn_model_load(path, &CPU_MODEL(), &wrong);
        if (status != cases[i].status)
            fail_msg("case %zu: status %d, '%s'", i, (int)status, status == QN_OK ? "" : qn_error_text());
        assert_null(wrong);
        assert_text(cases[i].text);
    }
    write_changed(path, &(struct change){ 0 });
    qn_model *right = create_model(path, &CPU_MODEL());
    qn_model_free(right);
    unlink(path);
}

static void keep_line(void *user, const char *line)
{
    snprintf(user, 160, "%s", line);
}

/* Two tokens with the same text are not an error, and are logged. */
TEST(repeated_tokens_are_logged)
{
    char path[] = "/tmp/quern-test-XXXXXX", line[160] = "";
    const struct vocab_spec spec = { .model = "gpt2", .duplicate_token = "a" };
    struct file_bytes bytes = make_vocab(&spec);
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes.data, bytes.n), bytes.n);
    close(fd);
    qn_model *vocabulary = create_model(path, &CPU_MODEL(.vocab_only = true, .on_log = keep_line, .user = line));
    assert_string_equal(line, "tokens 97 and 256 are both 'a': the first is used");
    qn_model_free(vocabulary);
    free(bytes.data);
    unlink(path);
}

TEST(information)
{
    const qn_model_info info = *qn_model_get_info(model);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.quantisation, "q1_0");
    assert_int_equal(info.n_vocab, VOCAB);
    assert_int_equal(info.n_threads, 2);
    assert_string_equal(info.tokeniser, "");
    assert_true(info.bytes_per_token > 0 && info.bytes_per_token < info.file_bytes);
}

TEST_GROUP(load_model, free_model)
