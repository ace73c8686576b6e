/* Sessions that are saved, restored, forked and rolled back, for models with and without recurrent layers, continue
 * with the same bits as sessions that are not. Session files that are damaged, foreign or forged are rejected. */
#include "helper_sessions.h"

#include "cpu/recurrent_layout.h"
#include "engine/state_file.h"
#include "kernels/deltanet/deltanet.h"
#include "quern/quern.h"

#include <unistd.h>
#include <xxhash.h>

enum { CHUNK = QN_GDN_CHUNK, N_IDS = 300, N_MORE = 70, FILE_MAX = 1 << 24 };

/* Every kind of model: dense, recurrent and attention layers mixed, rotated weights, ignored layers. With sanitizers,
 * which are tens of times slower, one dense and one mixed. */
static const char *const names[] = {
    "llama.q1_0",      "qwen35.f16",
#if !QN_TEST_SANITIZED
    "qwen3.f16",       "qwen35-rotated.ptq1_0",
    "qwen35-mtp.bf16",
#endif
};

static uint8_t *bytes; /* [FILE_MAX] contents of a session file */

static int set_up(void)
{
    bytes = malloc(FILE_MAX);
    return bytes == NULL || make_folder();
}

static int tear_down(void)
{
    free(bytes);
    return remove_folder();
}

static bool is_recurrent(void)
{
    return info.recurrent_bytes > 0;
}

/* Runs the test for every model that is present. */
static void for_each_model(void (*test)(void))
{
    size_t n_run = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        char file[512];
        snprintf(file, sizeof file, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, names[i]);
        if (access(file, R_OK) != 0)
            continue;
        label("%s", names[i]);
        open_model(names[i], CPU_MODEL(.n_threads = 1), N_MORE);
        for (int n = 0; n < N_IDS; n++)
            ids[n] = (qn_token)((uint32_t)n * 131u % info.n_vocab);
        test();
        close_model();
        n_run++;
    }
    assert_true(n_run > 0);
}

/* TEST_MODELS - a test whose body runs for every model that is present. */
#define TEST_MODELS(name)                                                                                              \
    static void name##_of_a_model(void);                                                                               \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        for_each_model(name##_of_a_model);                                                                             \
    }                                                                                                                  \
    static void name##_of_a_model(void)

static qn_session *new_session(uint32_t n_ctx, uint32_t n_batch, size_t n_tokens)
{
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = n_ctx, .n_batch = n_batch));
    append_tokens(session, ids, n_tokens);
    return session;
}

/* Logits of the next N_MORE tokens. */
static void eval_more(qn_session *session, float *logits)
{
    const uint32_t length = qn_session_length(session);
    assert_ok(qn_session_eval(session, ids + length, N_MORE, QN_LOGITS_ALL, logits));
}

/* ---- Drafted rows ---- */

TEST_MODELS(drafted_rows_leave_nothing)
{
    drafts_leave_nothing("f16", true, NULL);
    drafts_leave_nothing("aura4", true, NULL);
}

/* ---- Memory ---- */

/* A page that a fork shares is not changed by saving the fork, whose last tile has unused rows. */
TEST_MODELS(saving_a_fork_leaves_shared_pages)
{
    qn_session *whole = new_session(300, 0, 200), *session = new_session(300, 0, 200), *fork;
    eval_more(whole, expected);
    assert_ok(qn_session_fork(session, &fork));
    assert_ok(qn_session_truncate(fork, is_recurrent() ? 195 : 100));
    assert_ok(qn_session_save(fork, path));
    eval_more(session, found);
    assert_same_logits();
    qn_session_free(fork);
    qn_session_free(session);
    qn_session_free(whole);
}

/* Appends until there is no memory left; returns how many tokens were appended. */
static uint32_t fill_memory(qn_session *session)
{
    qn_status status = QN_OK;
    uint32_t before = 0;
    while (status == QN_OK) {
        before = qn_session_length(session);
        status = qn_session_eval(session, ids, 50, QN_LOGITS_NONE, NULL);
    }
    assert_int_equal(status, QN_ERR_MEMORY);
    assert_int_equal(qn_session_length(session), before);
    return before;
}

TEST(a_full_pool_changes_nothing)
{
    static const char *const kinds[] = { "f16", "aura4" };
    static const uint64_t memory[] = { 2, 4, 6, 8 };            /* MiB: the least, one granule for each kind of item */
    for (size_t i = 0; i < 4; i += QN_TEST_SANITIZED ? 2 : 1) { /* codes take a quarter of the memory: many more
                                                                   positions */
        qn_session *session, *fork;
        label("%s, %s", i / 2 ? "qwen35.f16" : "qwen3.f16", kinds[i % 2]);
        open_model(i / 2 ? "qwen35.f16" : "qwen3.f16", CPU_MODEL(.n_threads = 1, .memory = memory[i] << 20), N_MORE);
        session = create_session(model, &SESSION_PARAMS(.n_ctx = 1 << 20, .kv = kinds[i % 2]));
        eval_more(session, expected);
        assert_ok(qn_session_truncate(session, 0));
        const uint32_t held = fill_memory(session);
        assert_true(held > 100);
        assert_ok(qn_session_save(session, path));
        assert_int_equal(qn_session_eval(session, ids, 50, QN_LOGITS_NONE, NULL), QN_ERR_MEMORY);
        /* What is given back can be used again, by this session and by others. */
        assert_ok(qn_session_truncate(session, 0));
        eval_more(session, found);
        assert_ok(qn_session_checkpoint(session));
        fill_memory(session);
        assert_ok(qn_session_truncate(session, 0));
        assert_int_equal(fill_memory(session), held);
        assert_ok(qn_session_truncate(session, 0));
        eval_more(session, found);
        assert_same_logits();
        assert_ok(qn_session_fork(session, &fork));
        qn_session_free(session);
        fill_memory(fork);
        qn_session_free(fork);
        assert_ok(qn_session_restore(model, path, NULL, &session));
        assert_int_equal(qn_session_length(session), held);
        qn_session_free(session);
        close_model();
    }
}

/* ---- Continuing ---- */

/* Lengths on both sides of multiples of 16 (tiles of keys) and 64 (chunks). */
static const uint32_t lengths[] = { 1, 16, 17, 63, 64, 65, 128, 197 };

TEST_MODELS(restored_sessions_continue)
{
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("%u tokens", (unsigned)lengths[i]);
        qn_session *session = new_session(280, 0, lengths[i]), *restored;
        assert_ok(qn_session_save(session, path));
        eval_more(session, expected);
        qn_session_free(session);
        static const qn_session_params params_list[] = {
            { .size = sizeof(qn_session_params), .n_ctx = 0 },
            { .size = sizeof(qn_session_params), .n_ctx = 2000, .n_batch = 9 },
            { .size = sizeof(qn_session_params), .n_ctx = 267, .kv = "f16" }
        };
        for (size_t r = 0; r < 3; r++) {
            label("context of %u", (unsigned)params_list[r].n_ctx);
            assert_ok(qn_session_restore(model, path, &params_list[r], &restored));
            assert_int_equal(qn_session_capacity(restored), params_list[r].n_ctx ? params_list[r].n_ctx : 280);
            assert_int_equal(qn_session_length(restored), lengths[i]);
            assert_memory_equal(qn_session_tokens(restored), ids, lengths[i] * sizeof *ids);
            eval_more(restored, found);
            assert_same_logits();
            qn_session_free(restored);
        }
    }
}

TEST_MODELS(forks_continue)
{
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("%u tokens", (unsigned)lengths[i]);
        qn_session *whole = new_session(300, 0, lengths[i]), *session = new_session(300, 5, lengths[i]), *fork;
        eval_more(whole, expected);
        assert_ok(qn_session_fork(session, &fork));
        assert_int_equal(qn_session_capacity(fork), 300);
        const qn_token detour[] = { 3, 2, 1 };
        append_tokens(session, detour, 3);
        eval_more(fork, found);
        assert_same_logits();
        qn_session_free(fork);
        qn_session_free(session);
        qn_session_free(whole);
    }
}

/* A session's file depends on its tokens alone, not on the steps or rollbacks that produced them. */
TEST_MODELS(the_same_tokens_give_the_same_file)
{
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("%u tokens", (unsigned)lengths[i]);
        qn_session *session = new_session(300, 0, lengths[i]);
        assert_ok(qn_session_save(session, path));
        qn_session_free(session);
        const size_t size = read_state(path, bytes, FILE_MAX);
        uint8_t *first = malloc(size);
        assert_non_null(first);
        memcpy(first, bytes, size);
        session = new_session(300, 7, lengths[i]);
        assert_ok(qn_session_checkpoint(session));
        const qn_token detour[] = { 9, 8, 7, 6, 5, 4, 3, 2, 1 };
        append_tokens(session, detour, 9);
        assert_ok(qn_session_truncate(session, lengths[i]));
        assert_ok(qn_session_save(session, path));
        qn_session_free(session);
        assert_int_equal(read_state(path, bytes, FILE_MAX), size);
        assert_memory_equal(first, bytes, size);
        free(first);
    }
}

TEST_MODELS(generation_continues)
{
    qn_session *at_once = new_session(200, 0, 0);
    generates_in_parts(at_once, new_session(200, 0, 0));
}

/* ---- Rolling back ---- */

/* Truncates the session to a length and continues: the logits are those of a new session of that length. */
static void assert_rewind(qn_session *session, uint32_t length)
{
    qn_session *whole = new_session(300, 0, length);
    eval_more(whole, expected);
    qn_session_free(whole);
    assert_ok(qn_session_truncate(session, length));
    eval_more(session, found);
    assert_same_logits();
}

static void assert_rejected(qn_session *session, uint32_t length, const char *text)
{
    const uint32_t before = qn_session_length(session);
    assert_fails(qn_session_truncate(session, length), QN_ERR_UNSUPPORTED, text);
    assert_int_equal(qn_session_length(session), before);
}

TEST_MODELS(truncation_within_the_open_chunk)
{
    const uint32_t held[] = { 1, 40, 64, 65, 128, 150, 192 };
    for (size_t i = 0; i < COUNT(held); i++) {
        label("%u tokens", (unsigned)held[i]);
        const uint32_t start = (held[i] - 1) / CHUNK * CHUNK;
        const uint32_t targets[] = { start + 1, start + (held[i] - start + 1) / 2, held[i] };
        for (size_t t = 0; t < 3; t++) {
            label("to %u", (unsigned)targets[t]);
            qn_session *session = new_session(300, 33, held[i]);
            assert_int_equal(qn_session_reach(session, targets[t]), targets[t]);
            assert_rewind(session, targets[t]);
            qn_session_free(session);
        }
        qn_session *session = new_session(300, 0, held[i]);
        if (start && is_recurrent()) {
            char text[64];
            snprintf(text, sizeof text, "possible are %u to %u, and 0", (unsigned)start + 1, (unsigned)held[i]);
            assert_int_equal(qn_session_reach(session, start), 0);
            assert_rejected(session, start, text);
            assert_rejected(session, 1, text);
            /* A rejected truncation changes nothing. */
            eval_more(session, found);
            qn_session *whole = new_session(300, 0, held[i]);
            eval_more(whole, expected);
            assert_same_logits();
            qn_session_free(whole);
        } else if (start) {
            assert_rewind(session, start);
            assert_rewind(session, 1);
        }
        assert_int_equal(qn_session_truncate(session, qn_session_length(session) + 1), QN_ERR_INVALID);
        qn_session_free(session);
    }
}

TEST_MODELS(truncation_to_checkpoints)
{
    qn_session *session = new_session(300, 0, 0);
    static const uint32_t checkpoint_lengths[] = { 20, 70, 100, 140, 200 }; /* one more than a session stores */
    for (size_t i = 0, done = 0; i < 5; done = checkpoint_lengths[i++]) {
        assert_ok(qn_session_checkpoint(session));
        append_tokens(session, ids + done, checkpoint_lengths[i] - done);
    }
    assert_ok(qn_session_checkpoint(session));
    assert_ok(qn_session_checkpoint(session)); /* a second checkpoint at the same length is not stored */
    append_tokens(session, ids + 200, 30);
    assert_int_equal(qn_session_reach(session, 1000), 230);
    assert_int_equal(qn_session_reach(session, 100), 100);
    if (is_recurrent()) {
        /* The open chunks at 230 and 200 begin after 192, at 140 after 128, at 100 and 70 after 64; 20 was the oldest
         * checkpoint and is dropped. */
        assert_int_equal(qn_session_reach(session, 192), 140);
        assert_int_equal(qn_session_reach(session, 128), 100);
        assert_int_equal(qn_session_reach(session, 64), 0);
        assert_rejected(session, 20, "possible are 193 to 230, 193 to 200, 129 to 140, 65 to 100, 65 to 70, and 0");
        assert_rejected(session, 128, "folded");
    }
    qn_session *fork;
    assert_ok(qn_session_fork(session, &fork));
    assert_rewind(session, 135); /* from the checkpoint at 140, which is dropped */
    assert_int_equal(qn_session_reach(session, 100), 100);
    assert_rewind(session, 70); /* the checkpoint itself */
    assert_rewind(session, 70); /* it is still stored */
    if (is_recurrent())
        assert_rejected(session, 100, "possible are 129 to 140, 65 to 70, and 0");
    assert_ok(qn_session_truncate(session, 0));
    assert_int_equal(qn_session_length(session), 0);
    eval_more(session, found); /* from nothing */
    qn_session *whole = new_session(300, 0, 0);
    eval_more(whole, expected);
    assert_same_logits();
    qn_session_free(whole);
    qn_session_free(session);
    assert_rewind(fork, 65); /* a fork has its own copies of the checkpoints */
    qn_session_free(fork);
}

/* Rolling back a failed turn restores the token that was pending before it. */
static void restores_the_pending_token(void)
{
    struct collected c = { .count = 0 };
    qn_session *session = new_session(200, 0, 0);
    qn_token pending, again;
    generate(session, ids, 80, 20, &c);
    assert_true(qn_session_pending(session, &pending));
    assert_ok(qn_session_checkpoint(session));
    append_tokens(session, ids, 90);
    assert_false(qn_session_pending(session, &again));
    assert_ok(qn_session_truncate(session, 99));
    assert_true(qn_session_pending(session, &again));
    assert_int_equal(again, pending);
    assert_ok(qn_session_truncate(session, 98));
    assert_false(qn_session_pending(session, &again));
    qn_session_free(session);
}

TEST(checkpoints_keep_the_pending_token)
{
    for_each_model(restores_the_pending_token);
    qn_session *session;
    model = create_model(QN_SOURCE_DIR "/tests/golden/llama.q1_0.gguf", &CPU_MODEL());
    assert_fails(qn_session_create(model, &SESSION_PARAMS(.n_checkpoints = 65), &session), QN_ERR_INVALID,
                 "65, at most 64");
    qn_model_free(model);
}

/* ---- Invalid files ---- */

static void assert_restore(qn_status status, const char *text)
{
    qn_session *session;
    const qn_status got = qn_session_restore(model, other_path, NULL, &session);
    if (got != status)
        fail_msg("status %d, expected %d: %s", (int)got, (int)status, got ? qn_error_text() : text);
    assert_null(session);
    assert_text(text);
}

TEST_MODELS(corrupt_files_are_rejected)
{
    qn_session *session = new_session(100, 0, 70);
    assert_ok(qn_session_save(session, path));
    qn_session_free(session);
    const size_t size = read_state(path, bytes, FILE_MAX);
    /* Every byte of the header and a few hundred after it, one bit each. */
    const size_t stride = size / (QN_TEST_SANITIZED ? 49 : 199);
    for (size_t at = 0; at < size; at += at < sizeof(struct qn_state_header) ? 1 : stride) {
        bytes[at] ^= (uint8_t)(1u << at % 8);
        write_file(other_path, bytes, size);
        bytes[at] ^= (uint8_t)(1u << at % 8);
        qn_session *restored;
        const qn_status status = qn_session_restore(model, other_path, NULL, &restored);
        if (status != QN_ERR_FORMAT && !(status == QN_ERR_UNSUPPORTED && at >= 8 && at < 12)) /* the version */
            fail_msg("byte %zu: status %d", at, (int)status);
        assert_null(restored);
        assert_text(other_path);
    }
    for (size_t cut = 0; cut < size; cut += cut < 80 ? 1 : stride) {
        write_file(other_path, bytes, cut);
        assert_restore(QN_ERR_FORMAT, other_path);
    }
    write_file(other_path, bytes, size + 1);
    assert_restore(QN_ERR_FORMAT, "expected");
}

/* Inconsistent contents with correct checksums are rejected. */
TEST_MODELS(forged_files_are_rejected)
{
    qn_session *session = new_session(100, 0, 70);
    assert_ok(qn_session_save(session, path));
    qn_session_free(session);
    const size_t size = read_state(path, bytes, FILE_MAX);
    uint8_t *copy = malloc(size);
    assert_non_null(copy);
    const bool with_head = model->plan.head.draft;
    struct qn_state_header header;
    memcpy(&header, bytes, sizeof header);
    struct {
        struct qn_state_header header;
        qn_status status;
        const char *text;
    } cases[24];
    size_t n = 0;
#define CASE(field, value, expected_status, expected_text)                                                             \
    cases[n].header = header, cases[n].header.field = (value), cases[n].status = (expected_status),                    \
    cases[n++].text = (expected_text)
    CASE(length, 71, QN_ERR_FORMAT, with_head ? "the draft head has" : "71 tokens need");
    CASE(length, 69, QN_ERR_FORMAT, with_head ? "the draft head has" : "69 tokens need");
    CASE(length, 0, QN_ERR_FORMAT, is_recurrent() ? "not possible with 0 tokens" : "0 tokens need");
    CASE(length, 101, QN_ERR_FORMAT, "101 tokens in a context of 100");
    CASE(length, UINT32_MAX, QN_ERR_FORMAT, "4294967295 tokens");
    CASE(capacity, UINT32_MAX, QN_ERR_FORMAT, "in a context of 4294967295");
    CASE(pending, (int32_t)info.n_vocab, QN_ERR_FORMAT, "outside the vocabulary");
    CASE(pending, -2, QN_ERR_FORMAT, "outside the vocabulary");
    CASE(file_bytes, UINT64_MAX, QN_ERR_FORMAT, "expected 18446744073709551615");
    CASE(fingerprint, header.fingerprint + 1, QN_ERR_INVALID, "another model");
    CASE(kv[0], 'g', QN_ERR_UNSUPPORTED, "cache format 'g16'");
    CASE(version, 3, QN_ERR_UNSUPPORTED, "version 3, expected 4 to 6");
    CASE(state_position, 32, QN_ERR_FORMAT, "a state at 32");
    CASE(state_position, 128, QN_ERR_FORMAT, "a state at 128");
    CASE(shortest, 71, QN_ERR_FORMAT, "truncation to 71");
    CASE(shortest, is_recurrent() ? 64 : 1, QN_ERR_FORMAT, "not possible with 70 tokens");
    CASE(has_last_page, 1, QN_ERR_FORMAT, "1 pages are not possible");
    CASE(n_rows, 1, QN_ERR_FORMAT, with_head ? "the draft head has" : "a list of 1 rows are not possible in version 4");
    CASE(version, 5, QN_ERR_FORMAT, "a list of 0 rows are not possible in version 5");
    CASE(version, with_head ? 4 : 6, QN_ERR_FORMAT, "70 tokens need");
    CASE(version, 7, QN_ERR_UNSUPPORTED, "version 7, expected 4 to 6");
#undef CASE
    for (size_t i = 0; i < n; i++) {
        label("case %zu", i);
        memcpy(copy, bytes, size);
        memcpy(copy, &cases[i].header, sizeof header);
        write_forged(copy, size);
        assert_restore(cases[i].status, cases[i].text);
    }
    /* A name that is not zero-terminated, and a token outside the vocabulary. */
    memcpy(copy, bytes, size);
    memset(copy + offsetof(struct qn_state_header, kv), 'x', sizeof header.kv);
    write_forged(copy, size);
    assert_restore(QN_ERR_UNSUPPORTED, "'xxxxxxxxxxxxxxx'");
    for (int i = 0; i < 2; i++) {
        const qn_token bad = i ? -1 : (qn_token)info.n_vocab;
        memcpy(copy, bytes, size);
        memcpy(copy + sizeof header + 69 * sizeof bad, &bad, sizeof bad);
        write_forged(copy, size);
        assert_restore(QN_ERR_FORMAT, "outside the vocabulary");
    }
    /* The unmodified file is accepted, so none of the above was rejected for another reason. */
    memcpy(copy, bytes, size);
    write_forged(copy, size);
    assert_ok(qn_session_restore(model, other_path, NULL, &session));
    qn_session_free(session);
    free(copy);
}

/* The part of a draft head is read if it is of the model's head and has its size; that of another head is skipped,
 * whatever its size. Without the part a file is one of an earlier version. */
TEST_MODELS(parts_of_draft_heads)
{
    qn_session *session = new_session(100, 0, 70);
    const qn_attention_shape *h = &model->plan.head.heads;
    assert_ok(qn_session_save(session, path));
    qn_session_free(session);
    const size_t size = read_state(path, bytes, FILE_MAX - 64);
    struct qn_state_header header;
    memcpy(&header, bytes, sizeof header);
    assert_int_equal(header.version, model->plan.head.draft ? QN_STATE_VERSION_HEAD : QN_STATE_VERSION);
    if (!model->plan.head.draft)
        return;
    /* Keys of 80 positions, values of 70, and a hidden state. */
    const size_t part = (80 + 70) * h->n_kv_heads * h->head_dim * sizeof(uint16_t) + info.n_embd * sizeof(float),
                 begin = size - sizeof(uint64_t) - part - sizeof(struct qn_state_head);
    uint8_t *copy = calloc(1, size + 64);
    assert_non_null(copy);
    for (int other = 0; other < 2; other++)
        for (int change = -3; change <= 3; change++) {
            memcpy(copy, bytes, size);
            copy[begin] = (uint8_t)(copy[begin] + other);
            const size_t changed = change == -3 ? begin + sizeof(struct qn_state_head) + sizeof(uint64_t)
                                                : (size_t)((long)size + 7 * change);
            const struct qn_state_head head = { .bytes = changed - begin - sizeof head - sizeof(uint64_t) };
            memcpy(copy + begin + sizeof head.fingerprint, &head.bytes, sizeof head.bytes);
            header.file_bytes = changed;
            memcpy(copy, &header, sizeof header);
            write_forged(copy, changed);
            label("another head %d, change %d", other, change);
            if (other || !change) {
                assert_ok(qn_session_restore(model, other_path, NULL, &session));
                qn_session_free(session);
            } else {
                assert_restore(QN_ERR_FORMAT, "the draft head has");
            }
        }
    copy[begin + sizeof(uint64_t)]++; /* not the bytes that follow */
    write_forged(copy, header.file_bytes);
    assert_restore(QN_ERR_FORMAT, "of which the file has");
    header.version = QN_STATE_VERSION;
    header.file_bytes = begin + sizeof(uint64_t);
    memcpy(copy, &header, sizeof header);
    write_forged(copy, begin + sizeof(uint64_t));
    assert_ok(qn_session_restore(model, other_path, NULL, &session));
    qn_session_free(session);
    free(copy);
}

static qn_status restore_from(const char *file, const qn_session_params *params)
{
    qn_session *session;
    const qn_status status = qn_session_restore(model, file, params, &session);
    qn_session_free(session);
    return status;
}

TEST(foreign_files_are_rejected)
{
    const char *const ours = QN_SOURCE_DIR "/tests/golden/qwen3.q1_0.gguf";
    const char *const others[] = { QN_SOURCE_DIR "/tests/golden/qwen3.q2_0.gguf",
                                   QN_SOURCE_DIR "/tests/golden/llama.q1_0.gguf" };
    model = create_model(ours, &CPU_MODEL());
    info = *qn_model_get_info(model);
    for (int n = 0; n < N_IDS; n++)
        ids[n] = n;
    qn_session *session = new_session(100, 0, 70);
    assert_ok(qn_session_save(session, path));
    const qn_session_params small = SESSION_PARAMS(.n_ctx = 69), exact = SESSION_PARAMS(.n_ctx = 70),
                            other_kv = SESSION_PARAMS(.kv = "aura4");
    assert_ok(restore_from(path, &exact));
    assert_fails(restore_from(path, &small), QN_ERR_CONTEXT, "its 70 tokens do not fit in a context of 69");
    assert_int_equal(restore_from(path, &other_kv), QN_ERR_UNSUPPORTED);
    assert_fails(restore_from(ours, NULL), QN_ERR_FORMAT, "is not a saved session");
    assert_fails(restore_from(folder, NULL), QN_ERR_IO, "is not a regular file");
    assert_fails(restore_from("/nowhere/state", NULL), QN_ERR_IO, "No such file");
    /* A failed save keeps the old file and leaves no temporary file (the directory is removed at the end, which needs
     * it empty). */
    assert_int_equal(qn_session_save(session, "/nowhere/state"), QN_ERR_IO);
    assert_int_equal(qn_session_save(session, folder), QN_ERR_IO);
    assert_ok(restore_from(path, NULL));
    qn_session_free(session);
    qn_model_free(model);
    for (size_t i = 0; i < COUNT(others); i++) {
        model = create_model(others[i], &CPU_MODEL());
        assert_fails(restore_from(path, NULL), QN_ERR_INVALID, "another model");
        qn_model_free(model);
    }
}

/* ---- Memory ---- */

TEST_MODELS(cache_bytes_are_reported)
{
    qn_session *session = new_session(100, 0, 3);
    const uint64_t fixed = qn_session_cache_bytes(session, 0);
    assert_int_equal(qn_session_cache_bytes(session, 10), fixed + 10 * info.cache_bytes_per_position);
    assert_true(is_recurrent() ? fixed > info.recurrent_bytes : fixed == 0);
    assert_ok(qn_session_save(session, path));
    /* Keys are stored in full tiles of 16 positions: half of a position's bytes for each of the 13 unused positions. */
    const uint64_t per_position = info.cache_bytes_per_position;
    const bool with_head = model->plan.head.draft; /* and a hidden state */
    assert_int_equal(read_state(path, bytes, FILE_MAX),
                     sizeof(struct qn_state_header) + 3 * sizeof(qn_token) + sizeof(uint64_t) + fixed +
                         3 * per_position + 13 * per_position / 2 +
                         (with_head ? sizeof(struct qn_state_head) + info.n_embd * sizeof(float) : 0));
    qn_session_free(session);
}

TEST(recurrent_memory)
{
    const qn_recurrent_shape shape = { .n_k_heads = 2, .n_v_heads = 4, .head_k = 16, .head_v = 32, .taps = 4 };
    bool layers[] = { true, false, true };
    qn_recurrent_layout layout;
    size_t total = 0, count;
    assert_ok(qn_recurrent_layout_create(&shape, layers, 3, &layout));
    assert_int_equal(layout.n_layers, 2);
    const qn_plan plan = { .n_layers = 3, .recurrent = shape, .is_recurrent = layers };
    assert_int_equal(qn_plan_state_bytes(&plan), 2 * 4 * 16 * 32 * sizeof(float));
    const size_t state_bytes = qn_recurrent_state_item_bytes(&layout),
                 chunk_bytes = qn_recurrent_chunk_item_bytes(&layout);
    float *state = calloc(1, state_bytes), *open_chunk = calloc(1, chunk_bytes);
    assert_true(state && open_chunk);
    const qn_recurrent_view view = { &layout, state, NULL, open_chunk, 64 };
    for (size_t i = 0; i < 2 * QN_SAVED_ARRAYS; i++, total += count) {
        float *data = qn_recurrent_array(&view, i / QN_SAVED_ARRAYS, (qn_saved_array)(i % QN_SAVED_ARRAYS), &count);
        for (size_t k = 0; k < count; k++) {
            assert_true(data[k] == 0); /* arrays do not overlap */
            data[k] = (float)(total + k + 1);
        }
    }
    assert_int_equal(2 * qn_saved_layer_bytes(&shape), total * sizeof(float));
    assert_true(state_bytes + chunk_bytes >= total * sizeof(float));
    /* Of 64 + 5 tokens, 5 are in the open chunk. */
    qn_recurrent_zero_tail(&view, 69);
    size_t kept = 0, at = 0;
    for (size_t i = 0; i < 2 * QN_SAVED_ARRAYS; i++) {
        const float *data =
            qn_recurrent_array(&view, i / QN_SAVED_ARRAYS, (qn_saved_array)(i % QN_SAVED_ARRAYS), &count);
        for (size_t k = 0; k < count; k++, at++) {
            assert_true(data[k] == (float)(at + 1) || data[k] == 0);
            kept += data[k] != 0;
        }
    }
    assert_int_equal(kept, 2 * (4 * 16 * 32 + 5 * 4 * 32 + 5 * 2 * 16 + 5 * 4 + (3 + 5) * (2 * 2 * 16 + 4 * 32)));
    const qn_recurrent_view empty = { &layout, NULL, NULL, open_chunk, 0 };
    assert_null(qn_recurrent_array(&empty, 0, QN_SAVED_STATE, &count));
    assert_int_equal(count, 4 * 16 * 32);
    free(state);
    free(open_chunk);
    qn_recurrent_layout_free(&layout);
    const qn_recurrent_shape huge = {
        .n_k_heads = 1, .n_v_heads = SIZE_MAX / 64, .head_k = 16, .head_v = 16, .taps = 4
    };
    assert_int_equal(qn_recurrent_layout_create(&huge, layers, 3, &layout), QN_ERR_MEMORY);
    qn_recurrent_layout_free(&layout);
}

TEST_GROUP(set_up, tear_down)
