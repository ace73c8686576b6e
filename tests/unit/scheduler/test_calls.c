/* Where the library may be called: in a forked child every function that would need a thread or a lock of the parent is
 * refused, and so is, in a callback, one that would wait for that callback. */
#include "helper_scheduler.h"

#include "quern/grammar.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_SECONDS = 20, FAILED_CHECK = 3 };

static qn_model *model;
static qn_scheduler *scheduler;
static qn_session *session;

static int load(void)
{
    load_model("tests/golden/parrot.gguf", 0, 3, &model);
    scheduler = create_scheduler(model, NULL);
    session = create_session(model, NULL);
    return 0;
}

static int unload(void)
{
    qn_session_free(session);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
    return 0;
}

/* ---- Forked children ---- */

/* A child that hangs is killed by SIGALRM. */
static int run_in_child(bool (*check)(void))
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        signal(SIGALRM, SIG_DFL);
        alarm(CHILD_SECONDS);
        _exit(check() ? 0 : FAILED_CHECK);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static bool is_refused(qn_status status, const char *function)
{
    const char *text = qn_error_text();
    const bool is = status == QN_ERR_INVALID && strncmp(text, function, strlen(function)) == 0 &&
                    strstr(text, "fork") && strstr(text, "spawn");
    if (!is)
        fprintf(stderr, "%s: status %d, %s\n", function, (int)status, text);
    return is;
}

static bool refuses_sessions(void)
{
    qn_session *other = NULL;
    qn_capacity capacity = QN_CAPACITY_INIT;
    const qn_token token = 1;
    const qn_request_params params = QN_REQUEST_PARAMS_INIT;
    const qn_rows rows = { .size = sizeof rows, .n = 1, .tokens = &token };
    uint32_t shared;
    return is_refused(qn_session_create(model, NULL, &other), "qn_session_create") &&
           is_refused(qn_model_get_capacity(model, NULL, 1, &capacity), "qn_model_get_capacity") &&
           is_refused(qn_session_eval(session, &token, 1, QN_LOGITS_NONE, NULL), "qn_session_eval") &&
           is_refused(qn_session_truncate(session, 0), "qn_session_truncate") &&
           is_refused(qn_session_truncate_to(session, &token, 1, &shared), "qn_session_truncate_to") &&
           is_refused(qn_session_eval_rows(session, &rows), "qn_session_eval_rows") &&
           is_refused(qn_session_truncate_to_rows(session, &rows, &shared), "qn_session_truncate_to_rows") &&
           is_refused(qn_session_checkpoint(session), "qn_session_checkpoint") &&
           is_refused(qn_session_fork(session, &other), "qn_session_fork") &&
           is_refused(qn_session_save(session, "/dev/null/none"), "qn_session_save") &&
           is_refused(qn_session_restore(model, "/dev/null/none", NULL, &other), "qn_session_restore") &&
           is_refused(generate_from(session, &token, 1, &params, NULL), "qn_generate") &&
           is_refused(generate_text(session, "a", &params, NULL), "qn_generate") && !other;
}

static bool refuses_schedulers(void)
{
    qn_scheduler *other = NULL;
    qn_grammar *grammar = NULL;
    qn_request_params request = QN_REQUEST_PARAMS_INIT;
    const char *const choice = "yes";
    request.text = "a";
    return is_refused(qn_scheduler_create(model, NULL, &other), "qn_scheduler_create") &&
           is_refused(qn_scheduler_submit(scheduler, &request, NULL), "qn_scheduler_submit") &&
           is_refused(qn_scheduler_check_room(scheduler, NULL, 1), "qn_scheduler_check_room") &&
           is_refused(qn_scheduler_wait(scheduler), "qn_scheduler_wait") &&
           is_refused(qn_grammar_create(model, QN_GRAMMAR_JSON, "", 0, &grammar), "qn_grammar_create") &&
           is_refused(qn_grammar_create_choices(model, &choice, 1, &grammar), "qn_grammar_create_choices") &&
           is_refused(
               qn_grammar_create_calls(
                   model, &(qn_call_params){ .size = sizeof(qn_call_params), .tools = "[]", .length = 2 }, &grammar),
               "qn_grammar_create_calls");
}

/* Text needs no thread. */
static bool tokenizes(void)
{
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
    qn_token *tokens;
    char *text;
    size_t n, length;
    if (qn_tokenize(model, "abc", 3, true, true, &tokens, &n) ||
        qn_conversation_text(model, chat, sizeof chat - 1, 0, &text, &length))
        return false;
    qn_free_tokens(tokens);
    qn_free_text(text);
    return n > 0 && length > 0 && qn_model_get_info(model)->n_vocab > 0;
}

static bool frees_nothing(void)
{
    qn_scheduler_cancel(scheduler, 1);
    qn_scheduler_close(scheduler, true);
    const qn_scheduler_counters counters = counters_of(scheduler);
    qn_session_free(session);
    qn_scheduler_free(scheduler);
    qn_model_free(model);
    return !counters.steps && qn_session_capacity(session) > 0;
}

/* A child has threads of its own. */
static bool loads_its_own(void)
{
    qn_model *own;
    qn_session *alone;
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.max_tokens = 4;
    if (qn_model_load(QN_SOURCE_DIR "/tests/golden/parrot.gguf", &CPU_MODEL(.n_threads = 3), &own) ||
        qn_session_create(own, NULL, &alone) || generate_text(alone, "a", &params, NULL))
        return false;
    qn_session_free(alone);
    qn_model_free(own);
    return true;
}

TEST(test_forked_child)
{
    static const struct {
        const char *name;
        bool (*check)(void);
    } children[] = { { "sessions", refuses_sessions },
                     { "schedulers", refuses_schedulers },
                     { "text", tokenizes },
                     { "free", frees_nothing },
                     { "another model", loads_its_own } };
    for (size_t i = 0; i < COUNT(children); i++) {
        label("child: %s", children[i].name);
        assert_int_equal(run_in_child(children[i].check), 0);
    }
}

/* The locks of a model that computes are held, and its memory changes, whenever the fork comes. */
TEST(test_fork_at_any_time)
{
    struct answer answers[4] = { 0 };
    for (size_t i = 0; i < 4; i++) {
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        collect_answer(&params, &answers[i]);
        params.text = "a";
        params.ignore_end = true;
        params.max_tokens = 200;
        submit_request(scheduler, &params);
    }
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run_in_child(refuses_schedulers), 0);
        assert_int_equal(run_in_child(frees_nothing), 0);
    }
    assert_ok(qn_scheduler_wait(scheduler));
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(answers[i].n_tokens, 200);
}

/* ---- Callbacks ---- */

struct reentry {
    struct answer answer; /* first: its callbacks get it */
    bool (*call)(struct reentry *r);
    qn_scheduler *scheduler;
    bool was_right, is_over;
};

static bool is_refused_here(qn_status status, const char *function)
{
    const bool is = status == QN_ERR_INVALID && strncmp(qn_error_text(), function, strlen(function)) == 0 &&
                    strstr(qn_error_text(), "callback");
    if (!is)
        fprintf(stderr, "%s: status %d, %s\n", function, (int)status, qn_error_text());
    return is;
}

static bool calls_scheduler(struct reentry *r)
{
    qn_session *other;
    qn_request_params request = QN_REQUEST_PARAMS_INIT;
    bool idle, is_right = is_refused_here(qn_scheduler_wait(r->scheduler), "qn_scheduler_wait");
    if (r->scheduler->params.no_thread)
        is_right = is_right && is_refused_here(qn_scheduler_step(r->scheduler, &idle), "qn_scheduler_step");
    qn_scheduler_free(r->scheduler); /* does nothing */
    qn_model_free(model);
    request.text = "b";
    request.max_tokens = 1;
    if (!is_right || qn_scheduler_submit(r->scheduler, &request, NULL) || qn_session_create(model, NULL, &other))
        return false;
    const qn_token token = 1;
    is_right = qn_session_eval(other, &token, 1, QN_LOGITS_NONE, NULL) == QN_OK;
    qn_session_free(other);
    return is_right;
}

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct reentry *r = user;
    (void)token;
    (void)logprobs;
    r->was_right = r->call(r);
    return true;
}

static void on_end(void *user, const qn_request_result *result)
{
    struct reentry *r = user;
    (void)result;
    r->was_right = r->was_right && r->call(r);
    r->is_over = true;
}

TEST(test_callbacks_of_requests)
{
    for (int no_thread = 0; no_thread < 2; no_thread++) {
        label("%s", no_thread ? "steps of the caller" : "threads");
        struct reentry r = { .call = calls_scheduler };
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        alarm(60);
        r.scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = no_thread));
        params.text = "a";
        params.max_tokens = 2;
        params.on_token = on_token;
        params.on_end = on_end;
        params.user = &r;
        submit_request(r.scheduler, &params);
        assert_ok(qn_scheduler_wait(r.scheduler));
        assert_true(r.was_right && r.is_over);
        qn_scheduler_free(r.scheduler);
        alarm(0);
    }
}

static bool accepts(void *user, const qn_token *answer, size_t n, qn_token token)
{
    struct reentry *r = user;
    const qn_token first = 1;
    qn_session *other = NULL;
    (void)answer;
    (void)n;
    (void)token;
    r->was_right = is_refused_here(qn_session_eval(session, &first, 1, QN_LOGITS_NONE, NULL), "qn_session_eval") &&
                   is_refused_here(qn_session_create(model, NULL, &other), "qn_session_create") &&
                   is_refused_here(qn_scheduler_create(model, NULL, &r->scheduler), "qn_scheduler_create");
    return true;
}

static void all(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)user;
    (void)answer;
    (void)n;
    memset(allowed, 0xff, (qn_model_get_info(model)->n_vocab + 31) / 32 * sizeof *allowed);
}

TEST(test_callback_during_a_step)
{
    struct reentry r = { 0 };
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    alarm(60);
    params.text = "a";
    params.max_tokens = 2;
    params.accepts = accepts;
    params.mask = all;
    params.user = &r;
    submit_request(scheduler, &params);
    assert_ok(qn_scheduler_wait(scheduler));
    assert_true(r.was_right);
    alarm(0);
}

static bool calls_session(struct reentry *r)
{
    const qn_token token = 1;
    const qn_request_params params = QN_REQUEST_PARAMS_INIT;
    const qn_rows rows = { .size = sizeof rows, .n = 1, .tokens = &token };
    uint32_t shared;
    r->was_right =
        is_refused_here(qn_session_eval(session, &token, 1, QN_LOGITS_NONE, NULL), "qn_session_eval") &&
        is_refused_here(qn_session_truncate(session, 0), "qn_session_truncate") &&
        is_refused_here(qn_session_truncate_to(session, &token, 1, &shared), "qn_session_truncate_to") &&
        is_refused_here(qn_session_eval_rows(session, &rows), "qn_session_eval_rows") &&
        is_refused_here(qn_session_truncate_to_rows(session, &rows, &shared), "qn_session_truncate_to_rows") &&
        is_refused_here(qn_session_checkpoint(session), "qn_session_checkpoint") &&
        is_refused_here(generate_from(session, &token, 1, &params, NULL), "qn_generate");
    qn_session_free(session); /* does nothing */
    return r->was_right;
}

static bool on_session_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    (void)token;
    return calls_session(user);
}

static bool on_progress(void *user, size_t done, size_t total)
{
    (void)done;
    (void)total;
    return calls_session(user);
}

TEST(test_callbacks_of_sessions)
{
    struct reentry r = { 0 };
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    params.max_tokens = 3;
    params.ignore_end = true;
    params.on_token = on_session_token;
    params.user = &r;
    assert_ok(generate_text(session, "a", &params, &result));
    assert_true(r.was_right);
    assert_int_equal(result.n_generated, 3);
    qn_token tokens[8] = { 0 };
    qn_session *const whole = session;
    qn_session *pieces = create_session(model, &SESSION_PARAMS(.n_batch = 2));
    session = pieces;
    r.was_right = false;
    qn_session_on_progress(pieces, on_progress, &r);
    append_tokens(pieces, tokens, 8);
    assert_true(r.was_right);
    assert_int_equal(qn_session_length(pieces), 8);
    qn_session_free(pieces);
    session = whole;
}

/* Between two steps of which one is in flight, its thread would wait for itself. */
TEST(test_between_steps)
{
    struct answer a = { 0 };
    qn_model *overlapping;
    qn_session *other, *before;
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    const qn_token token = 1;
    bool idle;
    load_model("tests/golden/parrot.gguf", 0, 1, &overlapping);
    let_overlap(overlapping, 2);
    before = create_session(overlapping, NULL);
    qn_scheduler *ahead = create_scheduler(overlapping, &SCHEDULER_PARAMS(.no_thread = true, .run_ahead = true));
    collect_answer(&params, &a);
    params.text = "a";
    params.ignore_end = true;
    params.max_tokens = 20;
    submit_request(ahead, &params);
    for (int i = 0; i < 5; i++)
        assert_ok(qn_scheduler_step(ahead, &idle));
    assert_non_null(ahead->flight);
    alarm(60);
    assert_true(is_refused_here(qn_session_create(overlapping, NULL, &other), "qn_session_create"));
    assert_true(is_refused_here(qn_session_eval(before, &token, 1, QN_LOGITS_NONE, NULL), "qn_session_eval"));
    qn_session_free(before);
    assert_ok(qn_scheduler_wait(ahead));
    alarm(0);
    assert_int_equal(a.n_tokens, 20);
    qn_scheduler_free(ahead);
    stop_overlap(overlapping);
    qn_model_free(overlapping);
}

TEST_GROUP(load, unload)
