/* Helpers of the session tests: a temporary directory, a golden model with logits that are compared, and greedy generation. */
#ifndef QN_TESTS_HELPER_SESSIONS_H
#define QN_TESTS_HELPER_SESSIONS_H

#include "helper_assert.h"

#include "engine/state_file.h"
#include "quern/quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/quern-sessions-XXXXXX";
static char path[64], other_path[64]; /* in the temporary directory */

static inline int make_folder(void **unused)
{
    (void)unused;
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/state", folder);
    snprintf(other_path, sizeof other_path, "%s/other", folder);
    return 0;
}

static inline int remove_folder(void **unused)
{
    (void)unused;
    unlink(path);
    unlink(other_path);
    return rmdir(folder) != 0; /* fails if a temporary file was not removed */
}

/* ---- The model of the current run of a test ---- */

enum { MAX_IDS = 400 };

static qn_model *model;
static qn_model_info info;
static qn_token ids[MAX_IDS];
static float *expected, *found; /* logits of the tokens that are compared */
static size_t logits_bytes;     /* of each */

static inline qn_status load_golden(const char *name, qn_model_params params)
{
    char file[512];
    snprintf(file, sizeof file, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, name);
    return qn_model_load(file, &params, &model);
}

/* Loads a model, with memory for the logits of n_compared tokens, and fills ids. */
static inline void open_model(const char *name, qn_model_params params, size_t n_compared)
{
    assert_ok(load_golden(name, params));
    info = qn_model_get_info(model);
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

/* ---- Files ---- */

/* The contents of a session file; returns its size, which is less than the capacity. */
static inline size_t read_file(const char *from, uint8_t *bytes, size_t capacity)
{
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, capacity, file);
    fclose(file);
    assert_true(size > sizeof(struct qn_state_header) && size < capacity);
    return size;
}

/* ---- Generation ---- */

struct collected {
    qn_token tokens[64];
    size_t count;
};

static inline bool collect(void *user, qn_token token)
{
    struct collected *c = user;
    c->tokens[c->count++] = token;
    return true;
}

static inline void generate(qn_session *session, const qn_token *tokens, size_t n, int n_new, struct collected *c)
{
    qn_generate_params params = qn_generate_defaults();
    params.sampling.temperature = 0;
    params.max_tokens = n_new;
    params.ignore_end = true;
    params.on_token = collect;
    params.user = c;
    assert_ok(qn_generate(session, tokens, n, &params, NULL));
}

/* Greedy tokens generated in three parts are those generated at once. The second part follows from a saved file, the third
 * from a fork. Both sessions are empty, and freed. */
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
