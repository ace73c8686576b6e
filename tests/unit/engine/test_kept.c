/* Kept prefixes of a scheduler: every way to take memory evicts them; what is spilled to host memory is copied back for
 * requests that begin alike, and for sequences that were set aside. The CPU has one memory: here its items are copied
 * as a GPU's. */
#include "helper_sanitizers.h"
#include "helper_spill.h"

#include <unistd.h>

enum { VOCAB = 400 };

static void make_tokens(uint64_t seed, qn_token *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)(qn_splitmix(&seed) % VOCAB);
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
    enum { LENGTH = 300 };
    static qn_token tokens[LENGTH];
    static struct answer a;
    static uint64_t seed = 1000;
    for (int i = 0; i < n; i++) {
        make_tokens(seed++, tokens, LENGTH);
        const qn_request_params params = prompt_of(tokens, LENGTH, 2, &a);
        submit_and_wait(scheduler, &params);
        assert_int_equal(a.result.finish, QN_FINISH_LENGTH);
    }
}

#define EVICTS(call)                                                                                                   \
    do {                                                                                                               \
        label("%s", #call);                                                                                            \
        drop_all(&ballast);                                                                                            \
        keep_prefixes(scheduler, 3);                                                                                   \
        take_all(&ballast, scheduler->cache);                                                                          \
        const size_t n_pages = qn_kept_counts(scheduler->kept).pages;                                                  \
        assert_ok(call);                                                                                               \
        assert_true(qn_kept_counts(scheduler->kept).pages < n_pages);                                                  \
    } while (0)

TEST(every_call_evicts)
{
    enum { LENGTH = 300 };
    static struct ballast ballast;
    static qn_token tokens[1000];
    char file[] = "/tmp/quern-kept-XXXXXX";
    const qn_session_params session_params = SESSION_PARAMS(.n_ctx = 1000);
    qn_model *model;
    qn_scheduler *scheduler;
    qn_session *session, *fork, *restored;
    const int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    make_tokens(77, tokens, 1000);
    load_model("tests/golden/scheduler.gguf", 21 << 20, 1, &model);
    scheduler = create_scheduler(model, NULL);
    keep_prefixes(scheduler, 18);
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
    assert_fails(qn_session_create(model, &session_params, &none), QN_ERR_MEMORY, "open chunk: ");
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

/* A request that is submitted while a step of another is computed, when there is memory for what both still need and a
 * few pages. */
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
    /* Pages of its tokens and the next one, and one for the next token of the other; states; the open chunk of its
     * sequence. */
    const size_t needed = (2 + 1 + SPARE_PAGES) * page + 2 * qn_pool_stride(cache->states) +
                          qn_pool_granules(cache->open_chunks, 1) * qn_pool_get_usage(qn_pool_of(cache->pages)).granule;
    struct ballast *b = &late.ballast;
    const qn_request_params params = prompt_of(late.tokens, 100, 4, &late.answer);
    if (!b->counts[2]) {
        b->classes[2] = cache->pages;
        while (qn_pool_available(cache->pages) * page > needed)
            assert_ok(qn_pool_try_take(cache->pages, &b->items[2][b->counts[2]++]));
        submit_request(late.scheduler, &params);
    }
    return launch_step(device, step);
}

/* Pages that are reserved for the step are not needed once more. */
TEST(admission_counts_reserved_pages_once)
{
    enum { N = 700 };
    static qn_token tokens[N];
    static struct answer first;
    const qn_scheduler_params scheduler_params =
        SCHEDULER_PARAMS(.no_thread = true, .max_rows = 1024, .no_prefix_cache = true);
    qn_model *model;
    bool idle;
    make_tokens(3, tokens, N);
    make_tokens(4, late.tokens, 100);
    load_model("tests/golden/scheduler.gguf", 21 << 20, 1, &model);
    let_overlap(model, 0);
    qn_device_vtable vtable = *model->device->vtable;
    vtable.launch = launch_and_submit;
    model->device->vtable = &vtable;
    late.scheduler = create_scheduler(model, &scheduler_params);
    const qn_request_params params = prompt_of(tokens, N, 4, &first);
    submit_request(late.scheduler, &params);
    assert_ok(qn_scheduler_step(late.scheduler, &idle));
    assert_int_equal(late.scheduler->n_running, 2);
    drop_all(&late.ballast);
    qn_scheduler_wait(late.scheduler);
    assert_int_equal(first.n_tokens, 4);
    assert_int_equal(late.answer.n_tokens, 4);
    qn_scheduler_free(late.scheduler);
    stop_overlap(model);
    qn_model_free(model);
}

/* ---- Spilling ---- */

/* A page whose copy fails is dropped with those after it. Who then gets no memory is told so, not of the copy. */
TEST(failing_copies_are_not_reported)
{
    static struct ballast ballast;
    qn_model *model;
    qn_session *none;
    load_spilling(21 << 20, &model);
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.prefix_host = 256 << 20));
    keep_prefixes(scheduler, 1);
    const size_t n_pages = qn_kept_counts(scheduler->kept).pages;
    copies.most_out = 2; /* the last page and its state are copied */
    while (qn_kept_evict(&model->kept))
        ;
    assert_int_equal(qn_kept_counts(scheduler->kept).pages, n_pages - 2);
    assert_int_equal(qn_kept_counts(scheduler->kept).states, 0);
    assert_int_equal(items_held(scheduler->cache), 0);
    take_all(&ballast, scheduler->cache);
    assert_fails(qn_session_create(model, NULL, &none), QN_ERR_MEMORY, "open chunk: ");
    drop_all(&ballast);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
}

/* A second turn, after prompts that need all memory, evaluates its own tokens alone. */
TEST(a_spilled_prefix_is_reused)
{
    enum {
        N = QN_TEST_SANITIZED ? 140 : 500,
        MORE = QN_TEST_SANITIZED ? 20 : 100,
        REUSED = (N - 1) / QN_PAGE * QN_PAGE
    };
    static qn_token tokens[N + MORE];
    static struct answer found, expected;
    qn_model *model;
    qn_scheduler *scheduler;
    make_tokens(5, tokens, N + MORE);
    for (int spills = 0; spills < 2; spills++) {
        load_spilling(11 << 20, &model);
        scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.prefix_host = 256 << 20, .no_prefix_host = !spills));
        qn_request_params params = prompt_of(tokens, N, 2, &found);
        submit_and_wait(scheduler, &params);
        if (QN_TEST_SANITIZED) {
            while (qn_kept_evict(&model->kept))
                ;
        } else {
            keep_prefixes(scheduler, 10);
            assert_int_equal(counters_of(scheduler).prefix_host_bytes > 0, spills);
        }
        assert_int_equal(qn_kept_counts(scheduler->kept).host_bytes > 0, spills);
        params = prompt_of(tokens, N + MORE, 20, &found);
        submit_and_wait(scheduler, &params);
        assert_int_equal(found.result.n_reused, spills ? REUSED : 0);
        assert_int_equal(copies.n_in > 0, spills);
        memset(&expected, 0, sizeof expected);
        params.user = &expected;
        qn_scheduler_free(scheduler);
        answer_alone(model, NULL, 2048, &params, &expected);
        assert_same_answer(&found, &expected);
        qn_model_free(model);
    }
}

/* A step of others does not wait for the copies. */
TEST(spilled_prefixes_are_copied_beside_steps)
{
    enum { N = QN_TEST_SANITIZED ? 140 : 260, MORE = 40 };
    static qn_token tokens[N + MORE];
    static struct answer first, other, second;
    qn_model *model;
    bool idle = false;
    make_tokens(6, tokens, N + MORE);
    load_spilling(21 << 20, &model);
    let_overlap(model, 0);
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.prefix_host = 256 << 20, .no_thread = true));
    qn_request_params params = prompt_of(tokens, N, 2, &first);
    submit_and_wait(scheduler, &params);
    while (qn_kept_evict(&model->kept))
        ;
    params = prompt_of(tokens + N, MORE, 20, &other);
    submit_request(scheduler, &params);
    for (int i = 0; i < 3; i++)
        assert_ok(qn_scheduler_step(scheduler, &idle));
    params = prompt_of(tokens, N + MORE, 4, &second);
    submit_request(scheduler, &params);
    assert_ok(qn_scheduler_step(scheduler, &idle));
    assert_int_equal(scheduler->n_running, 2);
    assert_true(copies.n_in > 0);
    assert_int_equal(copies.n_beside, copies.n_in);
    qn_scheduler_wait(scheduler);
    assert_int_equal(second.result.n_reused, N / QN_PAGE * QN_PAGE);
    assert_int_equal(second.n_tokens, 4);
    /* Without others there is no step beside which it could be copied. */
    while (qn_kept_evict(&model->kept))
        ;
    copies.n_in = 0;
    submit_request(scheduler, &params);
    assert_ok(qn_scheduler_step(scheduler, &idle));
    assert_true(copies.n_in > 0);
    qn_scheduler_free(scheduler);
    stop_overlap(model);
    qn_model_free(model);
}

/* A sequence that was set aside, and needs no memory of the pool then, evaluates less than two chunks again. */
TEST(a_sequence_set_aside_is_spilled)
{
    enum { PROMPT = QN_TEST_SANITIZED ? 170 : 700, ANSWER = QN_TEST_SANITIZED ? 20 : 60 };
    static qn_token tokens[PROMPT];
    static struct answer found, expected;
    make_tokens(9, tokens, PROMPT);
    for (int spills = 0; spills < 2; spills++) {
        qn_model *model;
        bool idle = false;
        label("%d", spills);
        load_spilling(21 << 20, &model);
        const qn_scheduler_params scheduler_params =
            SCHEDULER_PARAMS(.prefix_host = 256 << 20, .no_prefix_host = !spills, .no_thread = true);
        qn_scheduler *scheduler = create_scheduler(model, &scheduler_params);
        qn_request_params params = prompt_of(tokens, PROMPT, ANSWER, &found);
        submit_request(scheduler, &params);
        while (found.n_tokens < ANSWER / 2)
            assert_ok(qn_scheduler_step(scheduler, &idle));
        const uint64_t rows = counters_of(scheduler).rows;
        qn_scheduler_set_aside(scheduler, scheduler->running[0]);
        while (qn_kept_evict(&model->kept))
            ;
        assert_int_equal(items_held(scheduler->cache), 0);
        qn_scheduler_wait(scheduler);
        assert_int_equal(found.result.n_set_aside, 1);
        assert_int_equal(copies.n_in > 0, spills);
        const uint64_t later = counters_of(scheduler).rows - rows - ANSWER / 2;
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

/* A second request beside which a state goes beyond the budget of states. */
static struct {
    qn_token tokens[600];
    struct answer first, second;
} busy;

static void begin_copy(qn_model *model, qn_scheduler *scheduler)
{
    static bool idle;
    make_tokens(12, busy.tokens, 600);
    hold_copies(true);
    for (size_t i = 0; i < 2; i++) {
        struct answer *a = i ? &busy.second : &busy.first;
        const qn_request_params params = prompt_of(busy.tokens + 300 * i, 300, 10, a);
        submit_request(scheduler, &params);
        while (a->n_tokens < 10)
            assert_ok(qn_scheduler_step(scheduler, &idle));
    }
    assert_ok(qn_scheduler_step(scheduler, &idle));
    await_copies(1);
    assert_int_equal(model->kept.first == scheduler->kept, true);
}

static const qn_scheduler_params one_state = {
    .size = sizeof(qn_scheduler_params), .prefix_states = 1, .prefix_host = 256 << 20, .no_thread = true
};

static void create_for_one_state(qn_model *model, qn_scheduler **scheduler)
{
    qn_scheduler_params params = one_state;
    qn_session *session = create_session(model, NULL);
    params.prefix_states = qn_pool_stride(session->memory->sequence->cache->states);
    qn_session_free(session);
    assert_ok(qn_scheduler_create(model, &params, scheduler));
}

/* Steps and requests go on while a state is copied that is not within the budget any more. */
TEST(steps_do_not_wait_for_copies)
{
    qn_model *model;
    qn_scheduler *scheduler;
    struct answer again;
    load_spilling(21 << 20, &model);
    let_overlap(model, 0);
    create_for_one_state(model, &scheduler);
    begin_copy(model, scheduler);
    assert_int_equal(qn_kept_counts(scheduler->kept).states, 2);
    /* What is being copied is served from the pool. The copy is not used. */
    const qn_request_params params = prompt_of(busy.tokens, 300, 10, &again);
    submit_and_wait(scheduler, &params);
    assert_int_equal(again.result.n_reused, 256);
    assert_same_answer(&again, &busy.first);
    assert_int_equal(copies.n_out, 0);
    assert_int_equal(copies.n_in, 0);
    hold_copies(false);
    while (qn_kept_evict(&model->kept))
        ;
    assert_int_equal(items_held(scheduler->cache), 0);
    const qn_request_params once_more = prompt_of(busy.tokens + 300, 300, 10, &again);
    submit_and_wait(scheduler, &once_more);
    assert_int_equal(again.result.n_reused, 256);
    assert_same_answer(&again, &busy.second);
    assert_true(copies.n_in > 0);
    stop_overlap(model);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
}

/* Who needs memory that is being copied waits for it. */
TEST(eviction_waits_for_copies)
{
    pthread_t thread;
    qn_model *model;
    qn_scheduler *scheduler;
    load_spilling(21 << 20, &model);
    create_for_one_state(model, &scheduler);
    begin_copy(model, scheduler);
    const size_t n_held = items_held(scheduler->cache);
    assert_int_equal(pthread_create(&thread, NULL, release_copies, NULL), 0);
    assert_true(qn_kept_evict(&model->kept));
    assert_int_equal(items_held(scheduler->cache), n_held - 1);
    assert_int_equal(copies.n_out, 1);
    pthread_join(thread, NULL);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
}

/* With copies in flight. */
TEST(freeing_a_scheduler_waits_for_copies)
{
    pthread_t thread;
    qn_model *model;
    qn_scheduler *scheduler;
    load_spilling(21 << 20, &model);
    create_for_one_state(model, &scheduler);
    begin_copy(model, scheduler);
    const qn_cache *cache = scheduler->cache;
    assert_int_equal(pthread_create(&thread, NULL, release_copies, NULL), 0);
    qn_scheduler_free(scheduler);
    assert_int_equal(items_held(cache), 0);
    qn_model_free(model);
    pthread_join(thread, NULL);
}

/* Before memory is needed: beside steps, while little is left of the pool. */
TEST(little_memory_is_spilled_beside_steps)
{
    static struct ballast ballast;
    qn_model *model;
    struct answer answer;
    qn_token tokens[40];
    load_spilling(21 << 20, &model);
    let_overlap(model, 0);
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.prefix_host = 256 << 20, .no_thread = true));
    keep_prefixes(scheduler, 3);
    assert_int_equal(copies.n_begun, 0);
    const qn_cache *cache = scheduler->cache;
    qn_pool *pool = qn_pool_of(cache->pages);
    ballast.classes[2] = cache->pages;
    while (qn_pool_get_usage(pool).left >= qn_pool_get_usage(pool).budget / QN_FREE_SHARE)
        assert_ok(qn_pool_try_take(cache->pages, &ballast.items[2][ballast.counts[2]++]));
    make_tokens(44, tokens, 40);
    const qn_request_params params = prompt_of(tokens, 40, 20, &answer);
    submit_and_wait(scheduler, &params);
    assert_int_equal(answer.n_tokens, 20);
    assert_true(copies.n_begun > 0);
    drop_all(&ballast);
    stop_overlap(model);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
}
