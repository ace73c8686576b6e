/* Helpers of the session tests: a temporary directory, and greedy generation. */
#ifndef QN_TESTS_HELPER_SESSIONS_H
#define QN_TESTS_HELPER_SESSIONS_H

#include "helper_assert.h"

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

#endif
