/* Requests of a step that are prepared on several threads: each once, and only those that ask for it. */
#include "helper_assert.h"
#include "helper_test.h"

#include "gpu/requests.h"

enum { N_REQUESTS = 7, N_THREADS = 3 };

static void count_prepared(void *user, qn_sample_request *request)
{
    ++*(size_t *)user;
    request->token = 40;
}

static const struct wanted {
    const char *name;
    bool prepares[N_REQUESTS];
} wanted[] = {
    { "none", { false } },
    { "one", { false, true } },
    { "all", { true, true, true, true, true, true, true } },
    { "some", { true, false, true, false, false, true, true } },
};

TEST_EACH(those_that_ask_are_prepared_once, struct wanted, w, wanted)
{
    size_t counts[N_REQUESTS] = { 0 };
    qn_sample_request requests[N_REQUESTS] = { 0 };
    qn_team *team;
    assert_ok(qn_team_create(N_THREADS, &team));
    for (size_t i = 0; i < N_REQUESTS; i++) {
        requests[i].prepare = w->prepares[i] ? count_prepared : NULL;
        requests[i].user = &counts[i];
    }
    qn_gpu_prepare_requests(team, requests, N_REQUESTS);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(counts[i], w->prepares[i]);
        assert_int_equal(requests[i].token, w->prepares[i] ? 40 : 0);
    }
    qn_team_free(team);
}
