/* Sampling of a step's rows on a CUDA device with a fake driver: what the kernels get, what becomes of their results,
 * and sampling on the host of rows that they leave. The kernels' part is played in plain C; quern-check tests the
 * kernels on a GPU. */
#include "helper_cuda.h"
#include "helper_create.h"

#include "cuda/executor/sampling.h"
#include "kernels/canon.h"

#include <math.h>

enum {
    VOCAB = 6001,
    ROWS = 10,
    PARAMS = 48 /* offset in the inputs */,
    TOP_K = 5000 /* more than the kernels sort: qn_sample_select */
};

static const qn_gpu_cubin cubins[] = {
    FAKE_CUBIN("sample/sample.cu", ""),
    FAKE_CUBIN("sample/select.cu", ""),
    FAKE_CUBIN("sample/logprobs.cu", ""),
};
static const qn_gpu_code code = { .cubins = cubins, .n_cubins = 3, .compiler = "nvcc of the test" };
static const qn_cuda_tools tools = { .cache_folder = "", .nvcc = "", .nvrtc = "", .code = &code };

/* ---- A model of which only the logits exist ---- */

static qn_plan plan;
static qn_sample_kernels kernels;
static qn_cuda_buffer inputs;

static size_t args_bytes(const char *function)
{
    assert_contains(function, "qn_sample_");
    return sizeof(qn_sample_args);
}

/* A workspace of logits and inputs alone, and its sampler. */
struct fixture {
    qn_cuda_common common;
    qn_cuda_workspace workspace;
    qn_cuda_sampler *sampler;
};

static void set_up(struct fixture *x)
{
    *x = (struct fixture){ .common = { .plan = &plan }, .workspace = { .common = &x->common } };
    fake.no_param_info = true;
    const qn_cuda_driver *driver = fake_driver();
    fake.args_bytes = args_bytes;
    plan.n_vocab = VOCAB;
    qn_sample_kernels_init(&kernels, 0);
    x->common.sample = kernels;
    assert_ok(qn_cuda_open(&(qn_cuda_params){ .driver = driver, .tools = &tools }, &x->common.cuda));
    qn_cuda *cuda = x->common.cuda;
    qn_cuda_workspace *w = &x->workspace;
    assert_ok(qn_cuda_stream_create(cuda, &x->common.stream));
    assert_ok(qn_cuda_alloc(cuda, ROWS * VOCAB, sizeof(float), "logits", &w->logits));
    assert_ok(qn_cuda_alloc_host(cuda, VOCAB * sizeof(float), "logits", (void **)&w->host_logits));
    assert_ok(
        qn_cuda_alloc_host(cuda, PARAMS + ROWS * sizeof(qn_sample_params), "inputs", (void **)&w->block_inputs[0]));
    assert_ok(qn_cuda_alloc(cuda, PARAMS + ROWS * sizeof(qn_sample_params), 1, "inputs", &inputs));
    w->inputs = inputs.address;
    assert_ok(qn_cuda_sampler_create(w, ROWS, ROWS, &x->sampler));
}

static void tear_down(struct fixture *x)
{
    qn_cuda *cuda = x->common.cuda;
    qn_cuda_sampler_free(x->sampler);
    qn_cuda_sampler_free(NULL); /* as after a failed reservation */
    qn_cuda_free(cuda, &x->workspace.logits);
    qn_cuda_free_host(cuda, x->workspace.host_logits);
    qn_cuda_free_host(cuda, x->workspace.block_inputs[0]);
    qn_cuda_free(cuda, &inputs);
    qn_cuda_stream_free(cuda, x->common.stream);
    qn_cuda_close(cuda);
    fake_expect_empty();
}

/* As with a step's other inputs. */
static void upload_params(const struct fixture *x)
{
    memcpy((void *)(uintptr_t)(x->workspace.inputs + PARAMS), x->workspace.block_inputs[0] + PARAMS,
           ROWS * sizeof(qn_sample_params));
}

/* ---- The kernels' part ---- */

static int descending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static void play_logprobs(const qn_sample_params *p, const float *logits, qn_sample_result *result)
{
    static uint64_t keys[VOCAB];
    const qn_sample_request plain = { .sampling = { .top_p = 1, .repeat_penalty = 1 } };
    assert_true(p->weight_unit == qn_sample_gpu_params(&plain, VOCAB).weight_unit);
    for (uint32_t i = 0; i < VOCAB; i++)
        keys[i] = qn_sample_key(logits[i], i);
    qsort(keys, VOCAB, sizeof *keys, descending);
    result->largest = keys[0];
    result->total = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        result->total += (uint64_t)(qn_exp(logits[i] - qn_sample_key_logit(keys[0])) * p->weight_unit);
    memcpy(result->top, keys, p->n_top * sizeof *keys);
}

/* Changes the logits as the first kernel does, and samples from them, but for rows that are left to the host. */
static void play_row(const qn_sample_args *args, size_t row, const qn_sample_request *request)
{
    static uint64_t scratch[VOCAB * 3];
    qn_sample_request again = { .sampling = request->sampling, .random = request->random };
    again.sampling.repeat_penalty = 1;
    again.sampling.frequency_penalty = again.sampling.presence_penalty = 0;
    const qn_sample_params *p = (const qn_sample_params *)(uintptr_t)args->params + row;
    qn_sample_result *result = (qn_sample_result *)(uintptr_t)args->results + row;
    float *logits = (float *)(uintptr_t)args->logits + row * args->n, *raw = (float *)(uintptr_t)p->raw;
    const qn_sample_entry *entries = (const qn_sample_entry *)(uintptr_t)p->entries;
    const uint32_t *allowed = (const uint32_t *)(uintptr_t)p->allowed;
    assert_int_equal(result->token, -1);
    if (p->has_logprobs)
        play_logprobs(p, logits, result);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        if (raw)
            raw[i] = logits[entries[i].token];
        logits[entries[i].token] = qn_sample_adjust(logits[entries[i].token], &entries[i], &p->penalties);
    }
    for (uint32_t i = 0; allowed && i < args->n; i++)
        if (!(allowed[i / 32] >> i % 32 & 1))
            logits[i] = -INFINITY;
    qn_sample_token(&kernels, &again, logits, args->n, scratch);
    result->best = again.best;
    if (p->kind == QN_SAMPLE_NONE || again.token < 0)
        return;
    result->token = again.token;
    result->logit = logits[again.token];
}

/* ---- Requests ---- */

static float logits[ROWS][VOCAB];
static qn_token tokens[40];
static qn_logit_bias bias[3] = { { 17, 9 }, { 18, -INFINITY }, { VOCAB, 3 } };
static uint32_t masks[3][(VOCAB + 31) / 32];
static qn_logprobs logprobs[ROWS];

static uint32_t next_random(void)
{
    static uint32_t state = 7;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static void fill(void)
{
    for (size_t row = 0; row < ROWS; row++)
        for (size_t i = 0; i < VOCAB; i++)
            logits[row][i] = (float)(next_random() % 100000) * 1e-4f;
    for (size_t i = 0; i < COUNT(tokens); i++)
        tokens[i] = (qn_token)(next_random() % VOCAB);
    for (size_t i = 0; i < sizeof masks / sizeof **masks; i++)
        ((uint32_t *)masks)[i] = next_random() << 16 ^ next_random();
}

static float rejected[ROWS][VOCAB];

/* Rejects every token. */
static float *reject(void *row, qn_token token)
{
    assert_in_range(token, 0, VOCAB - 1);
    return row;
}

/* Greedy, penalties, bias and a mask; each of them alone and together, some with log probabilities. */
static size_t fill_requests(qn_sample_request *requests)
{
    const qn_sampling greedy = SAMPLING(.top_p = 1, .repeat_penalty = 1),
                      draw = { .temperature = 0.9f, .top_k = 20, .top_p = 0.9f, .repeat_penalty = 1 };
    qn_sampling penalised = draw, greedily_penalised = greedy, wide = draw, mirostat = draw;
    penalised.repeat_penalty = 1.4f;
    penalised.frequency_penalty = 0.5f;
    greedily_penalised.presence_penalty = 1.5f;
    wide.top_k = TOP_K;
    mirostat.mirostat = 2;
    const qn_sample_request all[] = {
        { .sampling = greedy },
        { .sampling = draw, .logprobs = &logprobs[1] },
        { .sampling = penalised,
          .recent = tokens,
          .n_recent = 30,
          .generated = tokens + 20,
          .n_generated = 20,
          .logprobs = &logprobs[2] },
        { .sampling = greedily_penalised,
          .generated = tokens,
          .n_generated = 40,
          .bias = bias,
          .n_bias = 3,
          .logprobs = &logprobs[3] },
        { .sampling = greedy, .allowed = masks[0] },
        { .sampling = wide, .allowed = masks[1], .bias = bias, .n_bias = 2 },
        { .sampling = mirostat, .mirostat_mu = 3, .bias = bias, .n_bias = 2, .logprobs = &logprobs[6] },
        { .sampling = penalised,
          .generated = tokens,
          .n_generated = 40,
          .allowed = masks[2],
          .logprobs = &logprobs[7],
          .logprobs_after = true },
        { .sampling = greedy, .logprobs = &logprobs[8], .logprobs_after = true },
    };
    memcpy(requests, all, sizeof all);
    memset(rejected, 0, sizeof rejected);
    for (size_t i = 0; i < COUNT(all); i++) {
        requests[i].random = (uint64_t)next_random() << 40;
        requests[i].check = requests[i].allowed ? NULL : reject;
        requests[i].user = rejected[i];
    }
    return COUNT(all);
}

static void expect_same_logprobs(const qn_logprobs *found, const qn_logprobs *expected)
{
    assert_int_equal(found->n, expected->n);
    assert_true(found->chosen == expected->chosen);
    assert_memory_equal(found->tokens, expected->tokens, found->n * sizeof *found->tokens);
    assert_memory_equal(found->values, expected->values, found->n * sizeof *found->values);
}

/* ---- Tests ---- */

/* Rows in a step, with the rows before and behind them; a later step has longer lists and other rows. */
TEST(rows_are_sampled_like_on_the_cpu)
{
    static qn_sample_request requests[ROWS], expected[ROWS];
    static uint64_t scratch[VOCAB * 3];
    assert_true(qn_sample_scratch_bytes(VOCAB) <= sizeof scratch);
    struct fixture x;
    set_up(&x);
    for (int step = 0; step < 6; step++) {
        label("step %d", step);
        qn_cuda_sampling what = { .params = PARAMS };
        fill();
        const size_t n = fill_requests(requests), first = step < 3 ? (size_t)step : 0,
                     n_rows = step == 0 ? 1 : n - first;
        memcpy((void *)(uintptr_t)x.workspace.logits.address, logits[first], n_rows * sizeof *logits);
        for (size_t row = 0; row < n_rows; row++)
            logprobs[first + row].n = (uint32_t)(7 * row % 21);
        const int launches = fake.launches;
        assert_ok(qn_cuda_fill_sampling(x.sampler, requests + first, n_rows, &what));
        assert_int_equal(what.n, n_rows);
        assert_int_equal(what.mode, step == 0 ? QN_SAMPLE_ARGMAX : QN_SAMPLE_HISTOGRAM + QN_SAMPLE_LOGPROBS);
        upload_params(&x);
        assert_ok(qn_cuda_run_sampler(x.sampler, &what));
        assert_int_equal(fake.launches - launches, step == 0 ? 1 : QN_SAMPLE_LAUNCHES);
        const struct fake_launch *log = &fake.log[(fake.launches - 1) % FAKE_LAUNCHES];
        assert_true(log->pdl && log->grid[1] == n_rows);
        for (size_t row = 0; row < n_rows; row++)
            play_row((const qn_sample_args *)(const void *)log->args, row, &requests[first + row]);
        assert_ok(qn_cuda_finish_sampling(x.sampler, &what, requests + first));
        memcpy(expected, requests, sizeof expected);
        for (size_t row = first; row < first + n_rows; row++) {
            qn_logprobs own = { .n = (uint32_t)(7 * (row - first) % 21) };
            label("step %d, row %zu", step, row);
            expected[row].logprobs = requests[row].logprobs ? &own : NULL;
            qn_sample_token(&kernels, &expected[row], logits[row], VOCAB, scratch);
            assert_true(requests[row].best == expected[row].best);
            assert_int_equal(requests[row].token, expected[row].token);
            if (requests[row].logprobs)
                expect_same_logprobs(requests[row].logprobs, &own);
            if (requests[row].check)
                assert_memory_equal(rejected[row], logits[row], sizeof *logits);
        }
    }
    tear_down(&x);
}

TEST(no_token_is_allowed)
{
    static const uint32_t none[(VOCAB + 31) / 32];
    struct fixture x;
    set_up(&x);
    qn_logprobs untouched = { .n = 3, .chosen = 5 };
    qn_sample_request request = { .sampling = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 },
                                  .allowed = none,
                                  .logprobs = &untouched };
    qn_cuda_sampling what = { .params = PARAMS };
    fill();
    memcpy((void *)(uintptr_t)x.workspace.logits.address, logits[0], sizeof *logits);
    assert_ok(qn_cuda_fill_sampling(x.sampler, &request, 1, &what));
    assert_int_equal(what.mode, QN_SAMPLE_HISTOGRAM + QN_SAMPLE_LOGPROBS);
    upload_params(&x);
    assert_ok(qn_cuda_run_sampler(x.sampler, &what));
    play_row((const qn_sample_args *)(const void *)fake.log[(fake.launches - 1) % FAKE_LAUNCHES].args, 0, &request);
    assert_ok(qn_cuda_finish_sampling(x.sampler, &what, &request));
    assert_int_equal(request.token, -1);
    assert_fails(qn_sample_status(request.best), QN_ERR_INVALID, "the largest of the allowed tokens is -inf");
    assert_true(untouched.n == 3 && untouched.chosen == 5);
    tear_down(&x);
}

TEST(failed_allocations_leave_the_sampler_usable)
{
    struct fixture x;
    set_up(&x);
    static qn_sample_request requests[ROWS];
    qn_cuda_sampling what = { .params = PARAMS };
    fill();
    const size_t n = fill_requests(requests);
    const char *const calls[] = { "cuMemAlloc", "cuMemHostAlloc" };
    for (size_t i = 0; i < COUNT(calls); i++) {
        label("%s", calls[i]);
        fake.fails = calls[i];
        fake.fails_after = 0;
        assert_int_not_equal(qn_cuda_fill_sampling(x.sampler, requests, n, &what), QN_OK);
    }
    fake.fails = NULL;
    assert_ok(qn_cuda_fill_sampling(x.sampler, requests, n, &what));
    tear_down(&x);
}

/* Launches depend on the mode and on the numbers of logits and rows. */
TEST(launches_of_modes)
{
    static const size_t n_launches[QN_SAMPLE_LOGPROBS] = { 0, 1, 2, 4 };
    static const struct {
        size_t n, rows;
        uint32_t blocks;
    } grids[] = { { 1, 1, 1 },       { 2048, 1, 1 },     { 2049, 1, 2 },     { 151936, 1, 75 },  { 1 << 20, 1, 128 },
                  { 151936, 3, 75 }, { 151936, 32, 12 }, { 151936, 128, 3 }, { 151936, 256, 1 }, { 151936, 65535, 1 } };
    qn_launch launches[QN_SAMPLE_LAUNCHES];
    size_t n;
    for (int mode = 0; mode < QN_SAMPLE_MODES; mode++) {
        label("mode %d", mode);
        assert_ok(qn_sample_gpu_launches((qn_sample_mode)mode, 1000, 5, true, launches, &n));
        assert_int_equal(n, n_launches[mode % QN_SAMPLE_LOGPROBS] + (mode >= QN_SAMPLE_LOGPROBS ? 2 : 0));
        assert_int_equal(qn_sample_gpu_join(QN_SAMPLE_NONE, (qn_sample_mode)mode), mode);
        assert_int_equal(qn_sample_gpu_join(QN_SAMPLE_MODES - 1, (qn_sample_mode)mode), QN_SAMPLE_MODES - 1);
    }
    for (size_t i = 0; i < COUNT(grids); i++) {
        label("%zu rows of %zu", grids[i].rows, grids[i].n);
        assert_ok(qn_sample_gpu_launches(QN_SAMPLE_ARGMAX, grids[i].n, grids[i].rows, false, launches, &n));
        assert_int_equal(launches[0].grid[0], grids[i].blocks);
        assert_int_equal(launches[0].grid[1], grids[i].rows);
    }
    for (int clusters = 0; clusters < 2; clusters++)
        for (size_t i = 0; i < COUNT(grids); i++) {
            label("%zu rows of %zu, %s", grids[i].rows, grids[i].n, clusters ? "clusters" : "no clusters");
            const uint32_t most = clusters ? QN_SAMPLE_CLUSTER : 1,
                           blocks = grids[i].blocks < most ? grids[i].blocks : most;
            assert_ok(qn_sample_gpu_launches(QN_SAMPLE_HISTOGRAM, grids[i].n, grids[i].rows, clusters, launches, &n));
            assert_string_equal(launches[2].function, "qn_sample_select");
            assert_true(launches[2].grid[0] == 1 && launches[2].grid[1] == grids[i].rows &&
                        launches[2].grid[2] == blocks);
            assert_int_equal(launches[2].cluster, blocks);
            assert_true(launches[1].cluster == 0 && launches[3].cluster == 0);
        }
    assert_fails(qn_sample_gpu_launches(QN_SAMPLE_ARGMAX, 1000, 0, true, launches, &n), QN_ERR_INVALID,
                 "0 rows, expected 1 to 65535");
    assert_int_equal(qn_sample_gpu_launches(QN_SAMPLE_ARGMAX, 1000, 65536, true, launches, &n), QN_ERR_INVALID);
    assert_int_equal(qn_sample_gpu_launches(QN_SAMPLE_ARGMAX, 0, 1, true, launches, &n), QN_ERR_INVALID);
}

/* Filters besides top_k, top_p and min_p are those of qn_sample_select, XTC where it applies to the token; mirostat is
 * the host's. */
TEST(filters_select_kernels)
{
    const qn_sampling plain = SAMPLING(.temperature = 1, .top_k = 20, .top_p = 1, .repeat_penalty = 1, .typical_p = 1);
    qn_sampling samplings[] = { plain, plain, plain, plain, plain };
    static const qn_sample_mode modes[] = { QN_SAMPLE_TOP_K, QN_SAMPLE_HISTOGRAM, QN_SAMPLE_HISTOGRAM,
                                            QN_SAMPLE_HISTOGRAM, QN_SAMPLE_ARGMAX };
    samplings[1].typical_p = 0.5f;
    samplings[2].top_n_sigma = 1;
    samplings[3].xtc_probability = 0.5f;
    samplings[4].mirostat = 2;
    size_t n_xtc = 0;
    for (size_t i = 0; i < COUNT(samplings); i++)
        for (uint64_t random = 0; random < 100; random++) {
            const qn_sample_request request = { .sampling = samplings[i], .random = random << 57 };
            const qn_sample_params params = qn_sample_gpu_params(&request, VOCAB);
            const bool applies = i == 3 && qn_sample_xtc_applies(&request);
            label("sampling %zu, %llu", i, (unsigned long long)random);
            assert_int_equal(qn_sample_gpu_mode(&request, VOCAB), modes[i]);
            assert_int_equal(params.kind, i == 4 ? QN_SAMPLE_NONE : modes[i]);
            assert_true(params.selects == (i == 1 || i == 2 || applies) && params.has_xtc == applies);
            n_xtc += applies;
        }
    assert_in_range(n_xtc, 30, 70);
}
