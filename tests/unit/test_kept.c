/* Kept prefixes of a scheduler: every way to take memory evicts them; what is spilled to host memory is copied back for requests that
 * begin alike, and for sequences that were set aside. The CPU has one memory: here its items are copied as a GPU's. */
#include "helper_sanitizers.h"
#include "helper_scheduler.h"

#include <unistd.h>

enum { VOCAB = 400 };

static void make_tokens(uint64_t seed, qn_token *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)(qn_splitmix(&seed) % VOCAB);
}

static qn_request_params prompt_of(const qn_token *tokens, size_t n, int64_t max_tokens, struct answer *a)
{
    qn_request_params params = qn_request_defaults();
    memset(a, 0, sizeof *a);
    params.tokens = tokens;
    params.n_tokens = n;
    params.max_tokens = max_tokens;
    params.sampling.temperature = 0;
    params.ignore_end = true;
    collect_answer(&params, a);
    return params;
}

/* ---- Eviction ---- */

/* Items that take all memory that kept prefixes leave. */
struct ballast {
    qn_pool_class *classes[3];
    uint32_t items[3][4096];
    size_t counts[3];
};

static void take_all(struct ballast *b, const qn_cache *cache)
{
    qn_pool_class *const classes[3] = { cache->states, cache->open_chunks, cache->pages };
    memcpy(b->classes, classes, sizeof classes);
    for (size_t k = 0; k < 3; k++)
        while (qn_pool_try_take(classes[k], &b->items[k][b->counts[k]]) == QN_OK)
            assert_in_range(++b->counts[k], 1, 4095);
}

static void drop_all(struct ballast *b)
{
    for (size_t k = 0; k < 3; k++)
        while (b->counts[k])
            qn_pool_drop(b->classes[k], b->items[k][--b->counts[k]]);
}

/* New prompts whose prefixes are kept. */
static void keep_prefixes(qn_scheduler *scheduler, int n)
{
    enum { LENGTH = QN_TEST_SANITIZED ? 140 : 300 };
    static qn_token tokens[LENGTH];
    static struct answer a;
    static uint64_t seed = 1000;
    for (int i = 0; i < n; i++) {
        make_tokens(seed++, tokens, LENGTH);
        const qn_request_params params = prompt_of(tokens, LENGTH, 2, &a);
        assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
        qn_scheduler_wait(scheduler);
        assert_int_equal(a.result.finish, QN_FINISH_LENGTH);
    }
}

#define EVICTS(call)                                                                                                           \
    do {                                                                                                                       \
        label("%s", #call);                                                                                                    \
        drop_all(&ballast);                                                                                                    \
        keep_prefixes(scheduler, QN_TEST_SANITIZED ? 2 : 3);                                                                   \
        take_all(&ballast, scheduler->cache);                                                                                  \
        const size_t n_pages = qn_kept_counts(scheduler->kept).pages;                                                          \
        assert_ok(call);                                                                                                       \
        assert_true(qn_kept_counts(scheduler->kept).pages < n_pages);                                                          \
    } while (0)

static void every_call_evicts(void **unused)
{
    (void)unused;
    enum { LENGTH = QN_TEST_SANITIZED ? 140 : 300 };
    static struct ballast ballast;
    static qn_token tokens[1000];
    char file[] = "/tmp/quern-kept-XXXXXX";
    const qn_session_params session_params = { .n_ctx = 1000 };
    qn_model *model;
    qn_scheduler *scheduler;
    qn_session *session, *fork, *restored;
    const int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    make_tokens(77, tokens, 1000);
    load_model("models/quern-demo.gguf", 64 << 20, 1, &model);
    assert_ok(qn_scheduler_create(model, NULL, &scheduler));
    keep_prefixes(scheduler, QN_TEST_SANITIZED ? 6 : 18);
    EVICTS(qn_session_create(model, &session_params, &session));
    EVICTS(qn_session_eval(session, tokens, LENGTH, QN_LOGITS_NONE, NULL));
    assert_ok(qn_session_save(session, file));
    EVICTS(qn_session_checkpoint(session));
    EVICTS(qn_session_fork(session, &fork));
    EVICTS(qn_session_eval(session, tokens, 100, QN_LOGITS_NONE, NULL));
    assert_ok(qn_session_truncate(session, LENGTH));
    EVICTS(qn_session_restore(model, file, &session_params, &restored));
    /* What nothing can be evicted for fails, and says why. */
    while (qn_kept_evict(&model->kept))
        ;
    take_all(&ballast, scheduler->cache);
    qn_session *none;
    assert_int_equal(qn_session_create(model, &session_params, &none), QN_ERR_MEMORY);
    assert_text("open chunk: ");
    drop_all(&ballast);
    qn_session_free(session);
    qn_session_free(fork);
    qn_session_free(restored);
    const qn_cache *cache = scheduler->cache;
    qn_scheduler_free(scheduler);
    assert_int_equal(items_held(cache), 0);
    qn_model_free(model);
    unlink(file);
}

/* ---- Admission ---- */

/* A request that is submitted while a step of another is computed, when there is memory for what both still need and a few pages. */
static struct {
    qn_scheduler *scheduler;
    struct ballast ballast;
    struct answer answer;
    qn_token tokens[100];
} late;

static qn_status launch_and_submit(qn_device *device, const qn_step *step)
{
    enum { SPARE_PAGES = 6 };
    const qn_cache *cache = late.scheduler->cache;
    const size_t page = qn_pool_stride(cache->pages);
    /* Pages of its tokens and the next one, and one for the next token of the other; states; the open chunk of its sequence. */
    const size_t needed = (2 + 1 + SPARE_PAGES) * page + 2 * qn_pool_stride(cache->states) +
                          qn_pool_granules(cache->open_chunks, 1) * qn_pool_get_usage(qn_pool_of(cache->pages)).granule;
    struct ballast *b = &late.ballast;
    const qn_request_params params = prompt_of(late.tokens, 100, 4, &late.answer);
    if (!b->counts[2]) {
        b->classes[2] = cache->pages;
        while (qn_pool_available(cache->pages) * page > needed)
            assert_ok(qn_pool_try_take(cache->pages, &b->items[2][b->counts[2]++]));
        assert_ok(qn_scheduler_submit(late.scheduler, &params, NULL));
    }
    return launch_step(device, step);
}

/* Pages that are reserved for the step are not needed once more. */
static void admission_counts_reserved_pages_once(void **unused)
{
    (void)unused;
    enum { N = 700 };
    static qn_token tokens[N];
    static struct answer first;
    const qn_scheduler_params scheduler_params = { .no_thread = true, .max_rows = 1024, .no_prefix_cache = true };
    qn_model *model;
    bool idle;
    make_tokens(3, tokens, N);
    make_tokens(4, late.tokens, 100);
    load_model("models/quern-demo.gguf", 64 << 20, 1, &model);
    let_overlap(model);
    qn_device_vtable vtable = *model->device->vtable;
    vtable.launch = launch_and_submit;
    model->device->vtable = &vtable;
    assert_ok(qn_scheduler_create(model, &scheduler_params, &late.scheduler));
    const qn_request_params params = prompt_of(tokens, N, 4, &first);
    assert_ok(qn_scheduler_submit(late.scheduler, &params, NULL));
    assert_ok(qn_scheduler_step(late.scheduler, &idle));
    assert_int_equal(late.scheduler->n_running, 2);
    drop_all(&late.ballast);
    qn_scheduler_wait(late.scheduler);
    assert_int_equal(first.n_tokens, 4);
    assert_int_equal(late.answer.n_tokens, 4);
    qn_scheduler_free(late.scheduler);
    model->device->vtable = vtable_without_launch;
    qn_model_free(model);
}

/* ---- Spilling ---- */

static size_t n_out, n_in, n_beside,
    most_out; /* n_beside: of n_in, while a step is computed; most_out: copies to host memory after that many fail */

static qn_status copy_out(void *context, void *to, uint64_t from, size_t bytes)
{
    (void)context;
    if (n_out == most_out)
        return qn_fail(QN_ERR_IO, "copy to host memory: broken");
    n_out++;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return QN_OK;
}

static qn_status copy_in(void *context, uint64_t to, const void *from, size_t bytes)
{
    (void)context;
    n_in++;
    n_beside += step_in_flight != NULL;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return QN_OK;
}

/* A model whose sequences are copied as a GPU's are. */
static void load_spilling(uint64_t memory, qn_model **model)
{
    qn_session *session;
    load_model("models/quern-demo.gguf", memory, 1, model);
    assert_ok(qn_session_create(*model, NULL, &session));
    qn_cache *cache = (qn_cache *)session->memory->sequence->cache;
    cache->copy_out = copy_out;
    cache->copy_in = copy_in;
    qn_session_free(session);
    n_out = n_in = n_beside = 0;
    most_out = SIZE_MAX;
}

/* A page whose copy fails stays if the page after it is in host memory. Who then gets no memory is told so, not of the copy. */
static void failing_copies_are_not_reported(void **unused)
{
    (void)unused;
    static struct ballast ballast;
    qn_model *model;
    qn_scheduler *scheduler;
    qn_session *none;
    load_spilling(64 << 20, &model);
    assert_ok(qn_scheduler_create(model, &(qn_scheduler_params){ .prefix_host = 256 << 20 }, &scheduler));
    keep_prefixes(scheduler, 1);
    most_out = 1;
    while (qn_kept_evict(&model->kept))
        ;
    assert_text("broken");
    assert_int_equal(n_out, 1);
    assert_true(items_held(scheduler->cache) > 0);
    take_all(&ballast, scheduler->cache);
    assert_int_equal(qn_session_create(model, NULL, &none), QN_ERR_MEMORY);
    assert_text("open chunk: ");
    drop_all(&ballast);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
}

/* A second turn, after prompts that need all memory, evaluates its own tokens alone. */
static void a_spilled_prefix_is_reused(void **unused)
{
    (void)unused;
    enum { N = QN_TEST_SANITIZED ? 260 : 500, MORE = 100, REUSED = (N - 1) / QN_PAGE * QN_PAGE };
    static qn_token tokens[N + MORE];
    static struct answer found, expected;
    qn_model *model;
    qn_scheduler *scheduler;
    make_tokens(5, tokens, N + MORE);
    for (int spills = 0; spills < 2; spills++) {
        load_spilling(32 << 20, &model);
        assert_ok(qn_scheduler_create(model, &(qn_scheduler_params){ .prefix_host = 256 << 20, .no_prefix_host = !spills },
                                      &scheduler));
        qn_request_params params = prompt_of(tokens, N, 2, &found);
        assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
        qn_scheduler_wait(scheduler);
        if (QN_TEST_SANITIZED) {
            while (qn_kept_evict(&model->kept))
                ;
        } else {
            keep_prefixes(scheduler, 10);
            assert_int_equal(qn_scheduler_get_counters(scheduler).prefix_host_bytes > 0, spills);
        }
        assert_int_equal(qn_kept_counts(scheduler->kept).host_bytes > 0, spills);
        params = prompt_of(tokens, N + MORE, 20, &found);
        assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
        qn_scheduler_wait(scheduler);
        assert_int_equal(found.result.n_reused, spills ? REUSED : 0);
        assert_int_equal(n_in > 0, spills);
        memset(&expected, 0, sizeof expected);
        params.user = &expected;
        qn_scheduler_free(scheduler);
        answer_alone(model, NULL, 2048, &params, &expected);
        assert_same_answer(&found, &expected);
        qn_model_free(model);
    }
}

/* A step of others does not wait for the copies. */
static void spilled_prefixes_are_copied_beside_steps(void **unused)
{
    (void)unused;
    enum { N = 260, MORE = 40 };
    static qn_token tokens[N + MORE];
    static struct answer first, other, second;
    qn_model *model;
    qn_scheduler *scheduler;
    bool idle = false;
    make_tokens(6, tokens, N + MORE);
    load_spilling(64 << 20, &model);
    let_overlap(model);
    assert_ok(qn_scheduler_create(model, &(qn_scheduler_params){ .prefix_host = 256 << 20, .no_thread = true }, &scheduler));
    qn_request_params params = prompt_of(tokens, N, 2, &first);
    assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
    qn_scheduler_wait(scheduler);
    while (qn_kept_evict(&model->kept))
        ;
    params = prompt_of(tokens + N, MORE, 20, &other);
    assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
    for (int i = 0; i < 3; i++)
        assert_ok(qn_scheduler_step(scheduler, &idle));
    params = prompt_of(tokens, N + MORE, 4, &second);
    assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
    assert_ok(qn_scheduler_step(scheduler, &idle));
    assert_int_equal(scheduler->n_running, 2);
    assert_true(n_in > 0);
    assert_int_equal(n_beside, n_in);
    qn_scheduler_wait(scheduler);
    assert_int_equal(second.result.n_reused, N / QN_PAGE * QN_PAGE);
    assert_int_equal(second.n_tokens, 4);
    /* Without others there is no step beside which it could be copied. */
    while (qn_kept_evict(&model->kept))
        ;
    n_in = 0;
    assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
    assert_ok(qn_scheduler_step(scheduler, &idle));
    assert_true(n_in > 0);
    qn_scheduler_free(scheduler);
    model->device->vtable = vtable_without_launch;
    qn_model_free(model);
}

/* A sequence that was set aside, and needs no memory of the pool then, evaluates less than two chunks again. */
static void a_sequence_set_aside_is_spilled(void **unused)
{
    (void)unused;
    enum { PROMPT = QN_TEST_SANITIZED ? 300 : 700, ANSWER = QN_TEST_SANITIZED ? 20 : 60 };
    static qn_token tokens[PROMPT];
    static struct answer found, expected;
    make_tokens(9, tokens, PROMPT);
    for (int spills = 0; spills < 2; spills++) {
        qn_model *model;
        qn_scheduler *scheduler;
        bool idle = false;
        label("%d", spills);
        load_spilling(64 << 20, &model);
        const qn_scheduler_params scheduler_params = { .prefix_host = 256 << 20, .no_prefix_host = !spills, .no_thread = true };
        assert_ok(qn_scheduler_create(model, &scheduler_params, &scheduler));
        qn_request_params params = prompt_of(tokens, PROMPT, ANSWER, &found);
        assert_ok(qn_scheduler_submit(scheduler, &params, NULL));
        while (found.n_tokens < ANSWER / 2)
            assert_ok(qn_scheduler_step(scheduler, &idle));
        const uint64_t rows = qn_scheduler_get_counters(scheduler).rows;
        qn_scheduler_set_aside(scheduler, scheduler->running[0]);
        while (qn_kept_evict(&model->kept))
            ;
        assert_int_equal(items_held(scheduler->cache), 0);
        qn_scheduler_wait(scheduler);
        assert_int_equal(found.result.n_set_aside, 1);
        assert_int_equal(n_in > 0, spills);
        const uint64_t later = qn_scheduler_get_counters(scheduler).rows - rows - ANSWER / 2;
        assert_true(spills ? later < 2 * QN_PAGE : later >= PROMPT);
        const qn_cache *cache = scheduler->cache;
        qn_scheduler_free(scheduler);
        assert_int_equal(items_held(cache), 0);
        memset(&expected, 0, sizeof expected);
        params.user = &expected;
        answer_alone(model, NULL, 2048, &params, &expected);
        assert_same_answer(&found, &expected);
        qn_model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_evicts),
        cmocka_unit_test(admission_counts_reserved_pages_once),
        cmocka_unit_test(failing_copies_are_not_reported),
        cmocka_unit_test(a_spilled_prefix_is_reused),
        cmocka_unit_test(spilled_prefixes_are_copied_beside_steps),
        cmocka_unit_test(a_sequence_set_aside_is_spilled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
