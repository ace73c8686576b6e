/* Models that are loaded when requests ask for them, by a loader that loads nothing: which are loaded and freed when,
 * who waits, and that no request has a model that was freed. */
#include "helper_assert.h"

#include "base/append.h"
#include "base/status.h"
#include "http/clock.h"
#include "serve/registry.h"

#include <stdatomic.h>
#include <time.h>

enum { MIB = 1 << 20 };

/* ---- A loader ---- */

typedef struct fake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char events[512]; /* "+a -a ": loaded, freed */
    uint64_t memory;  /* of the last load */
    size_t n_loaded, most_loaded, n_loads;
    size_t n_failing; /* loads that fail from now on */
    const char *lost; /* the name of a model whose file is cut */
    qn_status failure;
    bool is_slow;             /* loading ends when the registry stops */
    const char *const *files; /* "name=MiB", NULL at the end */
    const char *broken;       /* the name of a file whose header is */
    size_t n_scans;
    bool is_scan_slow; /* models are found some time after the scan has begun */
    bool keeps_events;
} fake;

static void note(fake *f, char what, const char *name)
{
    qn_text_buffer events = qn_append_after(f->events, sizeof f->events);
    if (f->keeps_events)
        qn_append(&events, "%c%s ", what, name);
    pthread_cond_broadcast(&f->changed);
}

static void sleep_milliseconds(long n)
{
    nanosleep(&(struct timespec){ .tv_nsec = n * 1000000 }, NULL);
}

static qn_status load(void *user, qn_registry *registry, const char *path, uint64_t memory, qn_registered *model)
{
    fake *f = user;
    (void)path;
    while (f->is_slow) {
        if (qn_registry_is_stopping(registry))
            return qn_fail(QN_ERR_CANCELLED, "cancelled");
        sleep_milliseconds(1);
    }
    pthread_mutex_lock(&f->lock);
    f->memory = memory;
    f->n_loads++;
    if (f->n_failing) {
        f->n_failing--;
        note(f, '!', model->name);
        pthread_mutex_unlock(&f->lock);
        return qn_fail(f->failure, "%s: it is broken", path);
    }
    f->most_loaded = ++f->n_loaded > f->most_loaded ? f->n_loaded : f->most_loaded;
    note(f, '+', model->name);
    pthread_mutex_unlock(&f->lock);
    model->served.fingerprint = strdup(model->name); /* what requests read, and what is freed */
    model->bytes = memory;
    return model->served.fingerprint ? QN_OK : qn_fail(QN_ERR_MEMORY, "no memory");
}

static bool has_file(const fake *f, const char *name)
{
    for (const char *const *file = f->files; *file; file++)
        if (!strncmp(*file, name, strlen(name)))
            return true;
    return false;
}

static qn_status check(void *user, const char *path)
{
    fake *f = user;
    char name[32] = "";
    sscanf(path, "/secret/folder/%31[^.]", name);
    pthread_mutex_lock(&f->lock);
    const bool is_good = has_file(f, name) && (!f->broken || strcmp(f->broken, name) != 0);
    pthread_mutex_unlock(&f->lock);
    return is_good ? QN_OK : qn_fail(QN_ERR_FORMAT, "%s: it is no model", path);
}

static void free_model(void *user, const qn_registered *model)
{
    fake *f = user;
    pthread_mutex_lock(&f->lock);
    f->n_loaded--;
    note(f, '-', model->name);
    pthread_mutex_unlock(&f->lock);
    free((char *)(uintptr_t)model->served.fingerprint);
}

static bool is_lost(void *user, const qn_registered *model)
{
    const fake *f = user;
    return f->lost && !strcmp(f->lost, model->name);
}

static void scan(void *user, qn_registry *registry)
{
    fake *f = user;
    const size_t n = qn_registry_count(registry);
    for (size_t i = 0; i < n; i++) {
        qn_registry_view view;
        if (qn_registry_look(registry, i, &view) && !has_file(f, view.name))
            qn_registry_remove_file(registry, view.name);
    }
    pthread_mutex_lock(&f->lock);
    f->n_scans++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (f->is_scan_slow)
        sleep_milliseconds(50);
    for (const char *const *file = f->files; *file; file++) {
        char name[32], path[64];
        unsigned size;
        if (sscanf(*file, "%31[^=]=%u", name, &size) != 2)
            continue;
        snprintf(path, sizeof path, "/secret/folder/%s.gguf", name);
        assert_int_equal(qn_registry_add_file(registry, name, path, (uint64_t)size * MIB), QN_OK);
    }
}

/* What the tests run: one registry at a time, with this loader. */
static fake source;
static qn_registry registry;

static void begin(const char *const *files, size_t max_loaded, uint64_t memory)
{
    source = (fake){ .files = files, .keeps_events = true, .failure = QN_ERR_FORMAT };
    pthread_mutex_init(&source.lock, NULL);
    pthread_cond_init(&source.changed, NULL);
    const qn_registry_loader loader = { .check = check,
                                        .load = load,
                                        .free = free_model,
                                        .is_lost = is_lost,
                                        .scan = scan,
                                        .user = &source,
                                        .memory = memory,
                                        .max_loaded = max_loaded,
                                        .max_queued = 4,
                                        .pause_seconds = 0.05 };
    assert_int_equal(qn_registry_init(&registry), QN_OK);
    assert_int_equal(qn_registry_start(&registry, &loader), QN_OK);
}

static void end(void)
{
    qn_registry_free(&registry);
    assert_int_equal(source.n_loaded, 0);
    pthread_cond_destroy(&source.changed);
    pthread_mutex_destroy(&source.lock);
}

/* Waits until all these have happened. */
static void wait_events(const char *events)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&source.lock);
    while (strcmp(source.events, events) != 0 && !pthread_cond_timedwait(&source.changed, &source.lock, &until))
        ;
    assert_string_equal(source.events, events);
    pthread_mutex_unlock(&source.lock);
}

/* ---- A request ---- */

typedef struct request {
    qn_waiter waiter; /* first */
    qn_acquired acquired;
    const qn_registered *model;
    qn_refusal refusal;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool is_woken;
} request;

static void wake(qn_waiter *waiter)
{
    request *r = (request *)waiter;
    pthread_mutex_lock(&r->lock);
    r->is_woken = true;
    pthread_cond_signal(&r->woken);
    pthread_mutex_unlock(&r->lock);
}

static void ask_as(request *r, const char *client, const char *name)
{
    *r = (request){ .waiter = { .wake = wake, .client = client } };
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->woken, NULL);
    r->acquired = qn_registry_acquire(&registry, name, &r->waiter, &r->model, &r->refusal);
}

static void ask(request *r, const char *name)
{
    ask_as(r, NULL, name);
}

/* NULL: refused. */
static const qn_registered *get(request *r)
{
    if (r->acquired != QN_ACQUIRE_WAITS)
        return r->model;
    pthread_mutex_lock(&r->lock);
    while (!r->is_woken)
        pthread_cond_wait(&r->woken, &r->lock);
    pthread_mutex_unlock(&r->lock);
    r->refusal = r->waiter.refusal;
    return r->model = r->waiter.model;
}

#define assert_refused(r) refused_at(r, __LINE__)

static void refused_at(request *r, int line)
{
    label("line %d", line);
    assert_null(get(r));
    assert_int_equal(r->refusal.status, 503);
}

static bool waits(request *r)
{
    pthread_mutex_lock(&r->lock);
    const bool waits = r->acquired == QN_ACQUIRE_WAITS && !r->is_woken;
    pthread_mutex_unlock(&r->lock);
    return waits;
}

static void use(const char *name)
{
    request r;
    ask(&r, name);
    assert_non_null(get(&r));
    assert_string_equal(r.model->served.fingerprint, name);
    assert_string_equal(r.model->served.name, name);
    assert_null(r.model->echoed.name);
    qn_registry_release(&registry, r.model);
}

static void wait_draining(const char *name)
{
    qn_registry_view view = { 0 };
    for (int i = 0; i < 20000 && !view.is_draining; i++) {
        sleep_milliseconds(1);
        assert_true(qn_registry_look_for(&registry, name, &view));
    }
    assert_true(view.is_draining);
}

/* ---- Tests ---- */

static const char *const three[] = { "a=10", "b=10", "c=10", NULL };

TEST(a_single_model_has_any_name)
{
    request r;
    assert_int_equal(qn_registry_init(&registry), QN_OK);
    ask(&r, "a");
    assert_int_equal(r.acquired, QN_ACQUIRE_REFUSED);
    assert_int_equal(r.refusal.status, 503);
    assert_false(qn_registry_is_ready(&registry));
    const qn_registered model = { .name = "a", .served.fingerprint = "a" };
    assert_int_equal(qn_registry_add(&registry, &model), QN_OK);
    assert_true(qn_registry_is_ready(&registry));
    for (int i = 0; i < 3; i++) {
        ask(&r, (const char *[]){ "a", "another", NULL }[i]);
        assert_int_equal(r.acquired, QN_ACQUIRED);
        assert_string_equal(r.model->name, "a");
        qn_registry_release(&registry, r.model);
    }
    assert_int_equal(qn_registry_add(&registry, &model), QN_ERR_INVALID);
    qn_registry_free(&registry);
}

TEST(names_are_exact_and_files_come_and_go)
{
    static const char *const more[] = { "a=10", "c=10", "d=10", NULL };
    qn_registry_view view;
    request r;
    begin(three, 0, 0);
    ask(&r, "d");
    assert_int_equal(r.acquired, QN_ACQUIRE_REFUSED);
    assert_int_equal(r.refusal.status, 404);
    use("c");
    source.files = more;
    use("d");
    assert_int_equal(qn_registry_count(&registry), 4);
    assert_false(qn_registry_look(&registry, 1, &view)); /* b */
    ask(&r, "b");
    assert_int_equal(r.refusal.status, 404);
    ask(&r, NULL); /* the first that is loaded */
    assert_string_equal(get(&r)->name, "c");
    qn_registry_release(&registry, r.model);
    assert_true(qn_registry_look_for(&registry, "d", &view));
    assert_int_equal(view.state, QN_MODEL_LOADED);
    assert_int_equal(view.n_loads, 1);
    end();
}

TEST(the_model_used_longest_ago_is_freed)
{
    begin(three, 2, 0);
    use("a");
    use("b");
    use("a");
    use("c");
    wait_events("+a +b -b +c ");
    use("a");
    use("b");
    wait_events("+a +b -b +c -c +b ");
    end();
}

static void set_stay(double seconds)
{
    pthread_mutex_lock(&registry.lock);
    registry.loader.stay_seconds = seconds;
    pthread_mutex_unlock(&registry.lock);
}

/* Requests for two models in turn, of which one fits: each load is used for as long as the model stays, by all requests
 * for it. */
TEST(models_in_turn_do_not_thrash)
{
    enum { STAY = 200 };
    qn_registry_view view;
    request a, b;
    begin(three, 1, 0);
    set_stay(1e-3 * STAY);
    const double start = qn_now();
    use("a");
    for (int i = 0; i < 3; i++) {
        ask(&b, "b");
        for (int k = 0; k < 5; k++) {
            ask(&a, "a"); /* answered while b waits */
            if (a.acquired == QN_ACQUIRED)
                qn_registry_release(&registry, a.model);
            assert_int_equal(a.acquired, QN_ACQUIRED);
        }
        assert_true(waits(&b));
        assert_non_null(get(&b));
        assert_true(qn_now() - start > 1e-3 * STAY * (2 * i + 1));
        qn_registry_release(&registry, b.model);
        use("a");
        assert_true(qn_now() - start > 1e-3 * STAY * (2 * i + 2));
    }
    assert_true(qn_registry_look_for(&registry, "a", &view));
    assert_int_equal(view.n_loads, 4);
    /* One that cannot be freed yet costs no other its memory. */
    ask(&b, "b");
    assert_true(qn_registry_cancel(&registry, &b.waiter));
    use("a");
    assert_true(qn_registry_look_for(&registry, "a", &view));
    assert_int_equal(view.n_loads, 4);
    end();
}

/* One client asks for many models before another asks for one: that is loaded second, not last. */
TEST(clients_take_turns)
{
    static const char *const files[] = { "a=10", "b=10", "c=10", "d=10", "e=10", "f=10", NULL };
    request first, many[4], one;
    begin(files, 1, 0);
    ask_as(&first, "many", "a");
    assert_non_null(get(&first));
    for (int i = 0; i < 4; i++)
        ask_as(&many[i], "many", (const char *[]){ "b", "c", "d", "e" }[i]);
    ask_as(&one, "one", "f");
    wait_draining("a");
    qn_registry_release(&registry, first.model);
    assert_non_null(get(&one));
    qn_registry_release(&registry, one.model);
    for (int i = 0; i < 4; i++) {
        assert_non_null(get(&many[i]));
        qn_registry_release(&registry, many[i].model);
    }
    wait_events("+a -a +f -f +b -b +c -c +d -d +e ");
    end();
}

TEST(a_busy_model_is_drained)
{
    request a, b, c, late, other;
    begin(three, 2, 0);
    ask(&a, "a");
    get(&a);
    ask(&b, "b");
    get(&b);
    ask(&c, "c");
    wait_draining("a");
    ask(&late, "a");
    ask(&other, "b");
    assert_int_equal(other.acquired, QN_ACQUIRED); /* only one of them is drained */
    assert_true(waits(&c) && waits(&late));
    wait_events("+a +b ");
    qn_registry_release(&registry, a.model);
    assert_non_null(get(&c));
    wait_events("+a +b -a +c ");
    assert_true(waits(&late)); /* b and c have requests */
    qn_registry_release(&registry, c.model);
    assert_non_null(get(&late));
    wait_events("+a +b -a +c -c +a ");
    qn_registry_release(&registry, late.model);
    qn_registry_release(&registry, b.model);
    qn_registry_release(&registry, other.model);
    end();
}

TEST(a_client_that_leaves_ends_the_draining)
{
    request a, late, b;
    begin(three, 1, 0);
    ask(&a, "a");
    get(&a);
    ask(&b, "b");
    wait_draining("a");
    ask(&late, "a");
    assert_true(qn_registry_cancel(&registry, &b.waiter));
    assert_non_null(get(&late));
    assert_false(qn_registry_cancel(&registry, &late.waiter));
    qn_registry_release(&registry, late.model);
    qn_registry_release(&registry, a.model);
    wait_events("+a ");
    end();
}

TEST(names_can_be_shown)
{
    static const char *const bad[] = { "", "a\n", "a\x1b[2J", "a\xc2\x9b", "a\xe2\x80\xae", "\xff", "a\xe2\x80\x8b" };
    assert_ok(qn_registry_init(&registry));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(qn_registry_add_file(&registry, bad[i], "/a", 1), QN_ERR_INVALID);
    assert_ok(qn_registry_add_file(&registry, "Zo\xc3\xab 7B", "/a", 1));
    assert_int_equal(qn_registry_count(&registry), 1);
    qn_registry_free(&registry);
}

/* A client learns what kind of failure it was, and neither paths nor texts. */
TEST(each_failure_has_its_reason)
{
    static const struct {
        qn_status status;
        const char *reason;
    } cases[] = { { QN_ERR_MEMORY, "it does not fit in memory" },
                  { QN_ERR_DEVICE, "the driver of the GPU reports an error" },
                  { QN_ERR_IO, "its file cannot be read" },
                  { QN_ERR_FORMAT, "its file is not a model" } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char expected[200];
        request r;
        label("%s", qn_status_name(cases[i].status));
        begin(three, 0, 0);
        source.failure = cases[i].status;
        source.n_failing = 1;
        ask(&r, "a");
        assert_refused(&r);
        snprintf(expected, sizeof expected, "the model 'a' cannot be loaded: %s", cases[i].reason);
        assert_string_equal(r.refusal.message, expected);
        end();
    }
}

TEST(failures_are_told_and_tried_again)
{
    qn_registry_view view;
    request r, again;
    begin(three, 0, 0);
    source.n_failing = 1;
    ask(&r, "a");
    assert_refused(&r);
    assert_string_equal(r.refusal.message, "the model 'a' cannot be loaded: its file is not a model");
    assert_true(qn_registry_look_for(&registry, "a", &view));
    assert_true(view.is_failed);
    ask(&again, "a");
    if (again.acquired == QN_ACQUIRE_REFUSED) /* the machine was not too slow for that */
        assert_string_equal(again.refusal.message, r.refusal.message);
    else
        qn_registry_release(&registry, get(&again));
    sleep_milliseconds(60);
    use("a");
    assert_true(qn_registry_look_for(&registry, "a", &view));
    assert_false(view.is_failed);
    wait_events("!a +a ");
    end();
}

TEST(a_broken_file_costs_no_other_its_memory)
{
    request r;
    begin(three, 1, 0);
    use("a");
    source.broken = "b";
    ask(&r, "b");
    assert_refused(&r);
    assert_int_equal(r.refusal.retry_after, 1);
    assert_string_equal(r.refusal.message, "the model 'b' cannot be loaded: its file is not a model");
    use("a");
    source.broken = NULL;
    sleep_milliseconds(60);
    use("b");
    wait_events("+a -a +b ");
    end();
}

/* It is freed when its requests have ended; meanwhile others wait for it to be loaded again. */
TEST(a_cut_file_is_loaded_again)
{
    request first, second, later;
    begin(three, 2, 0);
    ask(&first, "a");
    assert_non_null(get(&first));
    ask(&second, "a");
    assert_non_null(get(&second));
    use("b");
    source.lost = "a";
    qn_registry_release(&registry, first.model);
    source.lost = NULL; /* noticed once */
    ask(&later, "a");
    assert_true(waits(&later));
    use("b");
    sleep_milliseconds(20);
    wait_events("+a +b ");
    qn_registry_release(&registry, second.model);
    assert_non_null(get(&later));
    qn_registry_release(&registry, later.model);
    use("a");
    wait_events("+a +b -a +a ");
    end();
}

TEST(failures_last_as_long_as_they_say)
{
    request r;
    begin(three, 0, 0);
    pthread_mutex_lock(&registry.lock);
    registry.loader.pause_seconds = 9.5;
    pthread_mutex_unlock(&registry.lock);
    source.broken = "b";
    for (int i = 0; i < 2; i++) {
        ask(&r, "b");
        assert_null(get(&r));
        assert_in_range(r.refusal.retry_after, 2, 10);
    }
    end();
}

TEST(a_file_that_has_gone_is_no_model)
{
    static const char *const fewer[] = { "a=10", "c=10", NULL };
    qn_registry_view view;
    request r;
    begin(three, 1, 0);
    use("a");
    source.files = fewer;
    assert_true(qn_registry_look_for(&registry, "b", &view)); /* nobody has looked */
    ask(&r, "b");
    assert_null(get(&r));
    assert_int_equal(r.refusal.status, 404);
    assert_string_equal(r.refusal.message, "there is no model 'b'");
    assert_false(qn_registry_look_for(&registry, "b", &view));
    wait_events("+a ");
    end();
}

static void wait_scans(size_t n)
{
    pthread_mutex_lock(&source.lock);
    while (source.n_scans < n)
        pthread_cond_wait(&source.changed, &source.lock);
    assert_int_equal(source.n_scans, n);
    pthread_mutex_unlock(&source.lock);
}

/* What requests name makes no more of them. */
TEST(scans_are_few)
{
    request r;
    begin(three, 0, 0);
    pthread_mutex_lock(&registry.lock);
    registry.loader.scan_seconds = 3600;
    pthread_mutex_unlock(&registry.lock);
    for (int i = 0; i < 5; i++) {
        ask(&r, "d");
        assert_int_equal(r.refusal.status, 404);
        qn_registry_refresh(&registry);
    }
    wait_scans(1);
    qn_registry_scan_soon(&registry);
    wait_scans(2);
    pthread_mutex_lock(&registry.lock);
    registry.loader.scan_seconds = 0;
    pthread_mutex_unlock(&registry.lock);
    ask(&r, "d");
    wait_scans(3);
    qn_registry_refresh(&registry);
    wait_scans(4);
    end();
}

/* A request that comes while a folder is read is not refused for a model that is yet to be found there. */
TEST(requests_wait_for_scans)
{
    static const char *const later[] = { "a=1", "z=1", NULL };
    request r;
    begin(three, 0, 0);
    pthread_mutex_lock(&registry.lock);
    registry.loader.scan_seconds = 3600;
    pthread_mutex_unlock(&registry.lock);
    pthread_mutex_lock(&source.lock);
    source.files = later;
    source.is_scan_slow = true;
    pthread_mutex_unlock(&source.lock);
    qn_registry_scan_soon(&registry);
    wait_scans(2);
    ask(&r, "z");
    assert_non_null(get(&r));
    qn_registry_release(&registry, r.model);
    end();
}

TEST(queues_are_bounded_and_end)
{
    request waiting[5], r;
    begin(three, 0, 0);
    source.is_slow = true;
    for (int i = 0; i < 5; i++)
        ask(&waiting[i], "a");
    for (int i = 0; i < 4; i++)
        assert_int_equal(waiting[i].acquired, QN_ACQUIRE_WAITS);
    assert_int_equal(waiting[4].refusal.status, 429);
    ask(&r, "b");
    qn_registry_stop(&registry);
    for (int i = 0; i < 4; i++)
        assert_null(get(&waiting[i]));
    assert_refused(&r);
    ask(&r, "c");
    assert_int_equal(r.refusal.status, 503);
    end();
}

/* A client that has all the places leaves others an equal part, up to four times as many in all. */
TEST(queues_have_places_for_others)
{
    static const char *const names[] = { "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11" };
    request many[5], few[3], one, others[11];
    begin(three, 0, 0);
    source.is_slow = true;
    for (int i = 0; i < 5; i++)
        ask_as(&many[i], "many", "a");
    assert_int_equal(many[4].acquired, QN_ACQUIRE_REFUSED);
    for (int i = 0; i < 3; i++)
        ask_as(&few[i], "few", "a");
    assert_int_equal(few[1].acquired, QN_ACQUIRE_WAITS);
    assert_int_equal(few[2].refusal.status, 429);
    assert_string_equal(few[2].refusal.message, "6 requests wait for the model, at most 4 may, of a client 2");
    assert_true(qn_registry_cancel(&registry, &few[0].waiter));
    assert_true(qn_registry_cancel(&registry, &few[1].waiter));
    ask_as(&one, "one", "a");
    assert_int_equal(one.acquired, QN_ACQUIRE_WAITS);
    ask_as(&few[0], "few", "a");
    ask_as(&few[1], "few", "a"); /* of three clients one place each */
    assert_int_equal(few[0].acquired, QN_ACQUIRE_WAITS);
    assert_int_equal(few[1].refusal.status, 429);
    for (int i = 0; i < 11; i++) {
        ask_as(&others[i], names[i], "a");
        assert_int_equal(others[i].acquired, i < 10 ? QN_ACQUIRE_WAITS : QN_ACQUIRE_REFUSED);
    }
    qn_registry_stop(&registry);
    end();
}

/* What contexts get of the memory. */
TEST(memory_is_shared)
{
    static const char *const large[] = { "a=100", "b=60", "c=10", NULL }, *const one[] = { "a=100", NULL };
    static const struct {
        const char *const *files;
        unsigned limit;
        size_t max_loaded;
        const char *name;
        unsigned expected; /* 0: too large */
    } cases[] = {
        { large, 1000, 0, "a", (1000 - 170) / 3 },
        { large, 1000, 2, "c", (1000 - 160) / 2 },
        { large, 210, 0, "a", (210 - 160) / 2 }, /* three would need 218 */
        { large, 210, 0, "c", (210 - 160) / 2 },
        { large, 150, 0, "a", 50 },
        { large, 99, 0, "a", 0 },
        { large, 99, 0, "c", 16 }, /* as none of the others fits */
        { one, 110, 0, "a", 10 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        request r;
        begin(cases[i].files, cases[i].max_loaded, (uint64_t)cases[i].limit * MIB);
        ask(&r, cases[i].name);
        if (cases[i].expected) {
            assert_non_null(get(&r));
            assert_in_range(source.memory, (uint64_t)cases[i].expected * MIB,
                            (uint64_t)(cases[i].expected + 1) * MIB - 1);
            qn_registry_release(&registry, r.model);
        } else {
            assert_refused(&r);
            assert_int_equal(source.n_loads, 0);
        }
        end();
    }
}

/* Contexts that do not fit in a share: all others go. */
TEST(a_model_may_need_all)
{
    request r;
    begin(three, 0, (uint64_t)100 * MIB);
    use("b");
    source.failure = QN_ERR_MEMORY;
    source.n_failing = 1;
    use("a");
    assert_int_equal(source.memory, (uint64_t)90 * MIB);
    wait_events("+b !a -b +a ");
    source.n_failing = 2;
    ask(&r, "c");
    assert_refused(&r);
    end();
}

/* ---- Many at once ---- */

enum { THREADS = 8, ROUNDS = 400 };

typedef struct crowd {
    atomic_uint n_answered, n_cancelled, n_refused, n_wrong;
    atomic_uint next;
} crowd;

static void *ask_often(void *argument)
{
    static const char *const names[] = { "a", "b", "c" };
    crowd *c = argument;
    unsigned random = atomic_fetch_add(&c->next, 1) * 7919 + 17;
    for (int i = 0; i < ROUNDS; i++) {
        request r;
        random = random * 1664525 + 1013904223;
        const char *const name = names[(random >> 16) % 3];
        ask(&r, name);
        if ((random >> 20) % 8 == 0 && qn_registry_cancel(&registry, &r.waiter)) {
            atomic_fetch_add(&c->n_cancelled, 1);
        } else if (!get(&r)) {
            atomic_fetch_add(&c->n_refused, 1);
        } else {
            if ((random >> 24) % 16 == 0)
                sleep_milliseconds(1);
            atomic_fetch_add(&c->n_wrong, strcmp(r.model->served.fingerprint, name) != 0);
            atomic_fetch_add(&c->n_answered, 1);
            qn_registry_release(&registry, r.model);
        }
        pthread_cond_destroy(&r.woken);
        pthread_mutex_destroy(&r.lock);
    }
    return NULL;
}

TEST(none_is_lost_of_many)
{
    static crowd c;
    pthread_t threads[THREADS];
    begin(three, 2, 0);
    pthread_mutex_lock(&registry.lock);
    registry.loader.max_queued = THREADS;
    pthread_mutex_unlock(&registry.lock);
    source.keeps_events = false;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &c), 0);
    for (int i = 0; i < 200; i++) { /* what pages do meanwhile */
        qn_registry_view view;
        (void)qn_registry_look(&registry, (size_t)i % 3, &view);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(c.n_answered + c.n_cancelled, THREADS * ROUNDS);
    assert_int_equal(c.n_refused, 0);
    assert_int_equal(c.n_wrong, 0);
    assert_in_range(source.most_loaded, 1, 2);
    end();
}
