/* Helpers of the session tests: a temporary directory, a golden model with logits to compare, and greedy generation. */
#ifndef QN_TESTS_HELPER_SESSIONS_H
#define QN_TESTS_HELPER_SESSIONS_H

#include "helper_create.h"
#include "helper_sanitizers.h"

#include "engine/internal.h"
#include "engine/state_file.h"
#include "helper_request.h"
#include "helper_files.h"
#include "helper_folder.h"
#include "quern/quern.h"

#include <xxhash.h>

/* ---- The model of the current run of a test ---- */

enum { MAX_IDS = 400 };

static qn_model *model;
static qn_model_info info;
static qn_token ids[MAX_IDS];
static float *expected, *found; /* logits of the compared tokens */
static size_t logits_bytes;     /* size of each */

static inline qn_status load_golden(const char *name, qn_model_params params)
{
    char file[512];
    snprintf(file, sizeof file, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, name);
    return qn_model_load(file, &params, &model);
}

/* Loads a model, allocates the logits of n_compared tokens, and fills ids. */
static inline void open_model(const char *name, qn_model_params params, size_t n_compared)
{
    assert_ok(load_golden(name, params));
    info = *qn_model_get_info(model);
    for (uint32_t n = 0; n < MAX_IDS; n++)
        ids[n] = (qn_token)((n * n + n * 131u) % info.n_vocab);
    logits_bytes = n_compared * info.n_vocab * sizeof *expected;
    expected = malloc(logits_bytes);
    found = malloc(logits_bytes);
    assert_true(expected && found);
}

static inline void close_model(void)
{
    free(expected);
    free(found);
    qn_model_free(model);
}

static inline void assert_same_logits(void)
{
    assert_memory_equal(expected, found, logits_bytes);
}

/* ---- Drafted rows ---- */

enum { DRAFTED = 5, AFTER = 8, DRAFT_ROWS = 1 + DRAFTED + AFTER + 2 };

/* Evaluates a step of one token and `drafted` drafted ones, the first `accepted` of which are right, and drops the
 * others; then AFTER tokens in one step and two alone. `wrong` selects the wrong tokens. logits: of the rows that
 * stay. */
static inline void verify_drafts(const qn_session *base, size_t drafted, size_t accepted, qn_token wrong, float *logits)
{
    const uint32_t length = qn_session_length(base), kept = length + 1 + (uint32_t)accepted;
    float *all = malloc((1 + drafted) * info.n_vocab * sizeof *all);
    qn_token tokens[1 + DRAFTED];
    qn_session *session;
    assert_non_null(all);
    for (size_t i = 0; i <= drafted; i++)
        tokens[i] = i <= accepted ? ids[length + i] : (ids[length + i] + wrong) % (qn_token)info.n_vocab;
    assert_ok(qn_session_fork(base, &session));
    assert_ok(qn_session_eval(session, tokens, 1 + drafted, QN_LOGITS_ALL, all));
    memcpy(logits, all, (1 + accepted) * info.n_vocab * sizeof *all);
    logits += (1 + accepted) * info.n_vocab;
    assert_ok(qn_session_truncate(session, kept));
    assert_int_equal(qn_session_length(session), kept);
    assert_ok(qn_session_eval(session, ids + kept, AFTER, QN_LOGITS_ALL, logits));
    for (size_t i = AFTER; i < AFTER + 2; i++)
        assert_ok(qn_session_eval(session, ids + kept + i, 1, QN_LOGITS_LAST, logits + i * info.n_vocab));
    qn_session_free(session);
    free(all);
}

/* At all alignments to pages and chunks, for each number of accepted tokens: dropped drafts change no bit. same: nor
 * does it matter whether there were drafts; otherwise `compare` gets the logits and their number. Needs DRAFT_ROWS
 * compared rows. */
static inline void drafts_leave_nothing(const char *kv, bool same,
                                        void (*compare)(const float *x, const float *reference, size_t n))
{
    float *plain = malloc(DRAFT_ROWS * info.n_vocab * sizeof *plain);
    assert_non_null(plain);
    qn_session *base = create_session(model, &SESSION_PARAMS(.n_ctx = MAX_IDS, .kv = kv));
    append_tokens(base, ids, 55);
    for (uint32_t length = 55; length < 140; length++) {
        const size_t allowed = qn_sequence_max_drafted(base->memory->sequence, 1),
                     drafted = allowed < DRAFTED ? allowed : DRAFTED;
        const bool is_near = (length + 6) % 64 < 8;
        const size_t step = QN_TEST_SANITIZED && drafted ? drafted : 1; /* all or none of them */
        for (size_t accepted = 0; is_near && accepted <= drafted; accepted += step) {
            const size_t n = (1 + accepted + AFTER + 2) * info.n_vocab;
            label("%u tokens, %zu drafted, %zu accepted", (unsigned)length, drafted, accepted);
            verify_drafts(base, drafted, accepted, 1, found);
            verify_drafts(base, drafted, accepted, 7, expected);
            assert_memory_equal(found, expected, n * sizeof *found);
            verify_drafts(base, accepted, accepted, 0, plain);
            if (same)
                assert_memory_equal(found, plain, n * sizeof *found);
            else
                compare(found, plain, n);
        }
        append_tokens(base, ids + length, 1);
    }
    qn_session_free(base);
    free(plain);
}

/* ---- Files ---- */

/* Reads a session file. Returns its size, which is less than the capacity. */
static inline size_t read_state(const char *from, uint8_t *bytes, size_t capacity)
{
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, capacity, file);
    fclose(file);
    assert_true(size > sizeof(struct qn_state_header) && size < capacity);
    return size;
}

/* Writes a changed session file, with the checksums of what it now has, to other_path. */
static inline void write_forged(uint8_t *state, size_t size)
{
    struct qn_state_header header;
    memcpy(&header, state, sizeof header);
    header.checksum = XXH64(&header, offsetof(struct qn_state_header, checksum), 0);
    memcpy(state, &header, sizeof header);
    const uint64_t checksum = XXH64(state, size - sizeof checksum, 0);
    memcpy(state + size - sizeof checksum, &checksum, sizeof checksum);
    write_file(other_path, state, size);
}

/* ---- Generation ---- */

struct collected {
    qn_token tokens[64];
    size_t count;
};

static inline bool collect(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    struct collected *c = user;
    c->tokens[c->count++] = token;
    return true;
}

static inline void generate(qn_session *session, const qn_token *tokens, size_t n, int n_new, struct collected *c)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.sampling.temperature = 0;
    params.max_tokens = n_new;
    params.ignore_end = true;
    params.on_token = collect;
    params.user = c;
    assert_ok(generate_from(session, tokens, n, &params, NULL));
}

/* Checks that greedy tokens generated in three parts are those generated at once. The second part continues from a
 * saved file, the third from a fork. Both sessions must be empty, and are freed. */
static inline void generates_in_parts(qn_session *at_once, qn_session *session)
{
    struct collected whole = { .count = 0 }, parts = { .count = 0 };
    qn_token pending;
    assert_false(qn_session_pending(at_once, &pending));
    generate(at_once, ids, 50, 40, &whole);
    qn_session_free(at_once);
    generate(session, ids, 50, 15, &parts);
    for (int i = 0; i < 2; i++) {
        label("%s", i == 0 ? "from the file" : "from a fork");
        qn_session *next;
        assert_true(qn_session_pending(session, &pending));
        assert_int_equal(pending, parts.tokens[parts.count - 1]);
        if (i == 0) {
            assert_ok(qn_session_save(session, path));
            assert_ok(qn_session_restore(model, path, NULL, &next));
        } else {
            assert_ok(qn_session_fork(session, &next));
        }
        qn_session_free(session);
        session = next;
        assert_true(qn_session_pending(session, &pending));
        assert_int_equal(pending, parts.tokens[parts.count - 1]);
        generate(session, &pending, 1, i == 0 ? 10 : 15, &parts);
    }
    assert_int_equal(whole.count, parts.count);
    assert_memory_equal(whole.tokens, parts.tokens, whole.count * sizeof whole.tokens[0]);
    qn_session_free(session);
}

#endif
