/* How many rows of prompts steps get: the model of step times by itself, and latencies of schedulers on a device that
 * is simulated: its steps advance a clock by what they were measured to take on a GPU, and sample always the same
 * token. */
#include "helper_scheduler.h"

#include "scheduler/step_time.h"

#include <math.h>

/* ---- Times ---- */

/* An H200 with a 27B model of 1-bit weights: milliseconds of decode steps by rows, rows of prompts in a second, and
 * milliseconds that a step with both takes besides. */
static const struct {
    double rows, ms;
} decode_times[] = { { 0, 0 }, { 1, 2.4 }, { 8, 5.6 }, { 16, 6.9 }, { 32, 9.8 }, { 64, 17.4 }, { 128, 33 } };
static const double PROMPT_RATE = 9000, MIXED_MS = 1.5;

static double decode_seconds(size_t n)
{
    size_t i = 1;
    while (decode_times[i].rows < (double)n)
        i++;
    const double rows = decode_times[i].rows - decode_times[i - 1].rows,
                 ms = decode_times[i].ms - decode_times[i - 1].ms;
    return 1e-3 * (decode_times[i - 1].ms + ms * ((double)n - decode_times[i - 1].rows) / rows);
}

static double seconds_of(size_t n_decode, size_t n_prompt)
{
    return decode_seconds(n_decode) + (double)n_prompt / PROMPT_RATE + (n_decode && n_prompt ? 1e-3 * MIXED_MS : 0);
}

/* Steps as a scheduler would run them. */
static size_t run_steps(qn_step_times *t, size_t n, size_t n_decode, bool has_prompts, double most)
{
    size_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        rows = has_prompts ? qn_step_times_prompt_rows(t, n_decode, most, 64) : 0;
        assert_int_equal(rows % 64, 0);
        qn_step_times_add(t, n_decode, rows, seconds_of(n_decode, rows));
    }
    return rows;
}

TEST(rows_take_as_long_as_decoding)
{
    static const size_t n_decode[] = { 1, 8, 32, 64, 128 };
    for (size_t i = 0; i < COUNT(n_decode); i++) {
        qn_step_times t = { 0 };
        label("%zu sequences", n_decode[i]);
        qn_step_times_add(&t, 0, 2048, seconds_of(0, 2048));
        run_steps(&t, 20, n_decode[i], false, INFINITY);
        const size_t rows = run_steps(&t, 100, n_decode[i], true, INFINITY);
        const double decode = decode_seconds(n_decode[i]), seconds = seconds_of(n_decode[i], rows);
        assert_true(rows >= 64);
        assert_true(rows == 64 || seconds < 2.1 * decode);
        assert_true(seconds_of(n_decode[i], rows + 128) > 2 * decode);
    }
}

TEST(a_limit_holds)
{
    qn_step_times t = { 0 };
    run_steps(&t, 20, 64, false, 0.025);
    assert_int_equal(run_steps(&t, 100, 64, true, 0.025), 64);
    assert_int_equal(run_steps(&t, 100, 64, true, 1e-6), 64);
}

/* Without a step that only decodes, nothing is known of what prompts add. */
TEST(steps_without_prompts_are_measured)
{
    qn_step_times t = { 0 };
    size_t n_probes = 0, last = 0;
    for (size_t i = 0; i < 2000; i++) {
        last = qn_step_times_prompt_rows(&t, 64, INFINITY, 64);
        n_probes += last == 0;
        qn_step_times_add(&t, 64, last, seconds_of(64, last));
        assert_true(last > 0 || n_probes <= 1 + i / 256);
    }
    assert_in_range(n_probes, 2, 8);
    assert_int_equal(last, 128);
}

/* One step that takes a second, such as the first of its kind, is forgotten soon. */
TEST(outliers_are_forgotten)
{
    qn_step_times t = { 0 };
    qn_step_times_add(&t, 0, 512, 1);
    qn_step_times_add(&t, 64, 0, 1);
    run_steps(&t, 30, 64, false, INFINITY);
    assert_int_equal(run_steps(&t, 30, 64, true, INFINITY), 128);
    qn_step_times_add(&t, 64, 128, 1);
    qn_step_times_add(&t, 64, 0, 1);
    assert_int_equal(run_steps(&t, 30, 64, true, INFINITY), 128);
}

/* ---- The device ---- */

static double now; /* seconds */

static double simulated_now(void)
{
    return now;
}

static qn_status simulated_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    (void)device;
    (void)max_rows;
    (void)max_positions;
    return QN_OK;
}

static qn_status simulated_run(qn_device *device, const qn_step *step)
{
    size_t n_decode = 0;
    for (size_t i = 0, n = 1; device->piece && i < step->n_rows; i++) {
        const bool continues = i && step->rows[i - 1].memory == step->rows[i].memory;
        n = continues ? n + 1 : 1;
        assert_true(n <= device->piece && (!continues || step->rows[i].position % device->piece));
    }
    for (size_t i = 0; i < step->n_rows; i++) {
        const bool begins = i == 0 || step->rows[i - 1].memory != step->rows[i].memory;
        n_decode += begins && (i + 1 == step->n_rows || step->rows[i + 1].memory != step->rows[i].memory);
    }
    for (size_t i = 0; i < step->n_logit_rows; i++) {
        step->requests[i].token = 7;
        step->requests[i].best = qn_sample_key(1, 7);
    }
    now += seconds_of(n_decode, step->n_rows - n_decode);
    return QN_OK;
}

static qn_model *model;
static qn_device_vtable simulated;
static const qn_device_vtable *original;

static int load(void)
{
    load_model("tests/golden/qwen3.q2_0.gguf", 0, 1, &model);
    original = model->device->vtable;
    simulated = *original;
    simulated.reserve = simulated_reserve;
    simulated.run = simulated_run;
    model->device->vtable = &simulated;
    model->device->prompt_multiple = 64;
    return 0;
}

static int unload(void)
{
    model->device->vtable = original;
    qn_model_free(model);
    return 0;
}

/* ---- Clients ---- */

enum { MAX_CLIENTS = 80, MAX_PROMPT = 4096, MAX_GAPS = 1 << 16 };

struct client {
    size_t n_prompt, n_answer;
    double start, submitted, last; /* last: the time of the last token; 0: none yet */
    size_t n_requests;             /* that it still sends */
    bool is_waiting;
};

static struct client clients[MAX_CLIENTS];
static qn_token prompt[MAX_PROMPT];
static double first_tokens[MAX_GAPS], gaps[MAX_GAPS]; /* seconds until first tokens, and between tokens */
static size_t n_first_tokens, n_gaps;

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    (void)logprobs;
    struct client *c = user;
    (void)token;
    assert_in_range(n_gaps, 0, MAX_GAPS - 1);
    if (c->last > 0)
        gaps[n_gaps++] = now - c->last;
    else
        first_tokens[n_first_tokens++] = now - c->submitted;
    c->last = now;
    return true;
}

static void on_end(void *user, const qn_request_result *result)
{
    struct client *c = user;
    assert_int_equal(result->finish, QN_FINISH_LENGTH);
    c->is_waiting = false;
}

static void submit(qn_scheduler *s, struct client *c)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.draft = QN_DRAFT_OFF; /* the device always samples the same token */
    params.tokens = prompt;
    params.n_tokens = c->n_prompt;
    params.max_tokens = (int64_t)c->n_answer;
    params.ignore_end = true;
    params.on_token = on_token;
    params.on_end = on_end;
    params.user = c;
    submit_request(s, &params);
    c->submitted = now;
    c->last = 0;
    c->is_waiting = true;
    c->n_requests--;
}

/* Each client sends a request when its last one has been answered, the first one at its start. */
static void run_clients(size_t n)
{
    bool idle = false, is_over = false;
    qn_scheduler *s =
        create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = 8192, .max_rows = 2048, .max_sequences = MAX_CLIENTS,
                                                  .no_prefix_cache = true, .no_thread = true));
    s->now = simulated_now;
    now = 1;
    n_first_tokens = n_gaps = 0;
    while (!is_over) {
        is_over = true;
        for (size_t i = 0; i < n; i++) {
            is_over = is_over && !clients[i].n_requests && !clients[i].is_waiting;
            if (clients[i].n_requests && !clients[i].is_waiting && now >= 1 + clients[i].start)
                submit(s, &clients[i]);
        }
        assert_ok(qn_scheduler_step(s, &idle));
        now += idle ? 1e-3 : 0;
    }
    qn_scheduler_free(s);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(double *values, size_t n, double p)
{
    qsort(values, n, sizeof *values, ascending);
    return values[(size_t)(p * (double)(n - 1) + 0.5)];
}

static double mean(const double *values, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return sum / (double)n;
}

static void print_latencies(const char *what)
{
    printf("%s: first token p95 %.0f ms; between tokens mean %.1f, p99 %.1f, longest %.1f ms\n", what,
           1e3 * percentile(first_tokens, n_first_tokens, 0.95), 1e3 * mean(gaps, n_gaps),
           1e3 * percentile(gaps, n_gaps, 0.99), 1e3 * percentile(gaps, n_gaps, 1));
}

/* Prompts of 512 tokens and answers of 128. */
TEST(latencies_of_eight_clients)
{
    for (size_t i = 0; i < 8; i++)
        clients[i] = (struct client){ .n_prompt = 512, .n_answer = 128, .start = 0.17 * (double)i, .n_requests = 8 };
    run_clients(8);
    print_latencies("8 clients");
    assert_int_equal(n_gaps, 8 * 8 * 127);
    assert_true(percentile(gaps, n_gaps, 0.99) <= 3 * mean(gaps, n_gaps));
    assert_true(percentile(first_tokens, n_first_tokens, 0.95) <= 0.3);
}

/* Long prompts beside 64 sequences that are decoded get a good part of the device. */
TEST(prompts_are_not_starved)
{
    for (size_t i = 0; i < 64; i++)
        clients[i] = (struct client){ .n_prompt = 64, .n_answer = 400, .n_requests = 1 };
    for (size_t i = 64; i < 68; i++)
        clients[i] = (struct client){ .n_prompt = 4096, .n_answer = 8, .start = 2, .n_requests = 1 };
    run_clients(68);
    print_latencies("64 sequences and 4 long prompts");
    assert_true(percentile(gaps, n_gaps, 0.99) <= 3 * decode_seconds(68));
    /* Alone, the four take 1.8 seconds. */
    assert_true(percentile(first_tokens, n_first_tokens, 1) <= 2 * 4 * 4096 / PROMPT_RATE + 1);
}

/* Prompts in pieces of 64, which the rows that are left never cut. */
TEST(pieces_are_fixed)
{
    model->device->piece = 64;
    for (size_t i = 0; i < 40; i++)
        clients[i] =
            (struct client){ .n_prompt = 100 * i + 30, .n_answer = 20, .start = 0.02 * (double)i, .n_requests = 2 };
    run_clients(40);
    assert_int_equal(n_first_tokens, 80);
    assert_int_equal(n_gaps, 80 * 19);
    model->device->piece = 0;
}

TEST_GROUP(load, unload)
