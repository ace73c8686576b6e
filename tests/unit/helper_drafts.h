/* Requests of tests of drafts, and their answers without drafts. */
#ifndef QN_TESTS_HELPER_DRAFTS_H
#define QN_TESTS_HELPER_DRAFTS_H

#include "helper_drafted.h"
#include "helper_demo.h"

enum { N_CTX = 400, MAX_REQUESTS = 6, KINDS = QN_TEST_SANITIZED ? 5 : 12 };

/* Five tokens are much likelier than others, so that the text repeats itself. */
static const qn_logit_bias likely[] = { { 100, 9 }, { 101, 9 }, { 102, 9 }, { 103, 9 }, { 104, 9 } };

static inline qn_request_params request_of(unsigned kind, struct answer *a)
{
    qn_request_params params = prompt_of(prompt, COUNT(prompt), 120, a);
    qn_sampling *p = &params.sampling;
    *p = SAMPLING(.temperature = kind % 3 ? 0.4f : 0, .top_k = kind % 4 ? 30 : 0, .top_p = kind % 5 ? 0.9f : 1,
                  .min_p = kind % 7 == 1 ? 0.1f : 0, .repeat_penalty = kind % 6 == 2 ? 1.2f : 1, .repeat_last_n = 16,
                  .frequency_penalty = kind % 6 == 3 ? 0.3f : 0, .presence_penalty = kind % 6 == 4 ? 0.2f : 0,
                  .dry_multiplier = kind % 6 == 5 ? 0.5f : 0, .dry_base = 1.75f, .dry_penalty_last_n = -1,
                  .xtc_probability = kind % 8 == 7 ? 0.5f : 0, .xtc_threshold = 0.1f,
                  .typical_p = kind % 8 == 6 ? 0.8f : 1, .seed = kind);
    params.n_logprobs = kind % 2 ? QN_MAX_LOGPROBS : -1;
    params.logprobs_after = kind % 4 == 3;
    params.min_tokens = kind % 3 * 20;
    params.scope = "one";
    params.bias = likely;
    params.n_bias = kind % 5 < 3 || kind % 8 == 5 ? COUNT(likely) : 0;
    /* One of the likely tokens ends the answer, after min_tokens. */
    params.stop_tokens = &likely[4].token;
    params.n_stop_tokens = kind % 8 == 5;
    return params;
}

static inline void answer_slowly(const qn_request_params *params, const char *kv, struct answer *a)
{
    answer_without_drafts(model, N_CTX, params, kv, a);
}

static inline bool same_files(const char *a, const char *b)
{
    char left[4096], right[4096];
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    bool is_same = x && y;
    for (size_t n = 1; is_same && n;) {
        n = fread(left, 1, sizeof left, x);
        is_same = fread(right, 1, sizeof right, y) == n && !memcmp(left, right, n);
    }
    if (x)
        fclose(x);
    if (y)
        fclose(y);
    return is_same;
}

/* Whether session file b has what is in a, but for header and checksum, and then the part of a draft head. */
static inline bool begins_like(const char *a, const char *b)
{
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    bool is_same = x && y && !fseek(x, 0, SEEK_END) && !fseek(y, 0, SEEK_END);
    const long size = is_same ? ftell(x) : 0, head = is_same ? ftell(y) - size : 0,
               header = sizeof(struct qn_state_header);
    is_same = is_same && head > (long)sizeof(uint64_t) && !fseek(x, header, SEEK_SET) && !fseek(y, header, SEEK_SET);
    for (long at = header; is_same && at < size - (long)sizeof(uint64_t); at++)
        is_same = fgetc(x) == fgetc(y);
    if (x)
        fclose(x);
    if (y)
        fclose(y);
    return is_same;
}

#endif
