/* Steps in flight on a CUDA device, with a fake driver: launching one waits for nothing, two have inputs and results of
 * their own. */
#include "helper_cuda_steps.h"

#include <stdatomic.h>

/* Launching a step waits for nothing: what was sampled is there when it is finished. */
TEST(launching_does_not_wait)
{
    for (size_t mixed = 0; mixed < 2; mixed++) {
        qn_sample_request requests[5] = { { .token = 0 } };
        label("%s", mixed ? "mixed" : "decode");
        set_up("qwen35.q1_0", 0, 5);
        struct rows rows = decode_of(0, 5 - mixed, 10);
        if (mixed)
            add_piece(&rows, 4, 0, 70, true);
        const qn_step step = {
            .rows = rows.rows, .n_rows = rows.n, .logit_rows = rows.logit_rows, .n_logit_rows = 5, .requests = requests
        };
        assert_ok(run(&rows)); /* the first step uploads its phases */
        const int before = fake.event_synchronizations;
        for (int i = 0; i < 2; i++) {
            const int synchronizations = fake.synchronizations;
            for (size_t row = 0; row < 5; row++)
                requests[row] = (qn_sample_request){ .sampling = { .top_p = 1, .repeat_penalty = 1 }, .token = 77 };
            assert_ok(fixture.cuda.device->vtable->launch(fixture.cuda.device, &step));
            assert_int_equal(fake.synchronizations, synchronizations);
            assert_int_equal(fake.event_synchronizations, before + i);
            assert_int_equal(requests[4].token, 77);
            assert_int_equal(pthread_mutex_trylock(&fixture.model->common.stream_lock), 0); /* others may queue work */
            pthread_mutex_unlock(&fixture.model->common.stream_lock);
            assert_ok(fixture.cuda.device->vtable->finish(fixture.cuda.device));
            assert_int_equal(fake.event_synchronizations, before + i + 1);
            assert_int_equal(requests[4].token, -1); /* there are no kernels */
        }
        fake.fails = "cuEventSynchronize";
        assert_ok(fixture.cuda.device->vtable->launch(fixture.cuda.device, &step));
        assert_fails(fixture.cuda.device->vtable->finish(fixture.cuda.device), QN_ERR_DEVICE, "cuEventSynchronize");
        fake.fails = NULL;
        assert_ok(fixture.cuda.device->vtable->run(fixture.cuda.device, &step));
        tear_down();
    }
}

/* A step whose rows take their tokens from the one before. */
struct flight {
    struct rows rows;
    qn_sample_request requests[MAX_SEQUENCES];
    qn_step step;
    qn_sample_result *results; /* of the device */
};

static void fill_flight(struct flight *f, size_t n, uint32_t position, bool has_sources)
{
    f->rows = decode_of(0, n, position);
    for (size_t i = 0; i < n; i++) {
        f->requests[i] = (qn_sample_request){ .sampling = { .top_p = 1, .repeat_penalty = 1 }, .token = 77 };
        f->rows.rows[i].source = has_sources ? (uint32_t)(n - i) : 0;
    }
    f->step = (qn_step){
        .rows = f->rows.rows, .n_rows = n, .logit_rows = f->rows.logit_rows, .n_logit_rows = n, .requests = f->requests
    };
}

/* Launches it; what its kernels are given is that of the last of each. */
static void launch_flight(struct flight *f, size_t block)
{
    const struct fake_launch *embed = NULL, *sampler = NULL;
    const int from = fake.launches;
    const size_t n = f->rows.n;
    assert_ok(fixture.cuda.device->vtable->launch(fixture.cuda.device, &f->step));
    const bool is_captured = count("qn_matmul_embed", from, &embed) > 0;
    const qn_gpu_inputs in = qn_gpu_inputs_of(qn_gpu_bucket(n), qn_gpu_bucket(n), 0, 0);
    const uint32_t *sources = (const void *)(fixture.model->workspace.block_inputs[block] + in.sources);
    for (size_t i = 0; i < qn_gpu_bucket(n); i++)
        assert_int_equal(sources[i], i < n ? f->rows.rows[i].source : 0);
    assert_int_equal(count("qn_sample_argmax", from, &sampler), n > 1 || is_captured);
    if (!is_captured)
        return;
    assert_int_equal(count("qn_matmul_embed", from, &embed), 1);
    const qn_sample_args *sample = (const void *)sampler->args;
    const qn_matmul_embed_args *args = (const void *)embed->args;
    const uint64_t inputs =
        n == 1 ? (uint64_t)(uintptr_t)fixture.model->workspace.block_inputs[block] : fixture.model->workspace.inputs;
    assert_int_equal(args->tokens, inputs + in.tokens);
    assert_int_equal(args->sources, inputs + in.sources);
    assert_int_equal(args->sampled, qn_cuda_sampled_tokens(fixture.model->sampler));
    assert_int_equal(sample->tokens, qn_cuda_sampled_tokens(fixture.model->sampler));
    f->results = (void *)(uintptr_t)sample->results;
}

/* Of its kernels: tokens first, first + 1 and so on; of a row whose largest logit is not finite, none. */
static void play_sampler(struct flight *f, int32_t first, size_t not_finite)
{
    for (size_t i = 0; i < f->rows.n; i++)
        f->results[i] = i == not_finite
                            ? (qn_sample_result){ .best = qn_sample_key(-INFINITY, 5), .token = -1 }
                            : (qn_sample_result){ .best = qn_sample_key(1, 5), .token = first + (int32_t)i };
}

static void expect_tokens(const struct flight *f, int32_t first, size_t not_finite)
{
    for (size_t i = 0; i < f->rows.n; i++)
        assert_int_equal(f->requests[i].token, i == not_finite ? -1 : first + (int32_t)i);
}

/* Two steps in flight have inputs and results of their own; tokens go from one to the next on the device, and the
 * logits stay there. */
TEST(two_steps_in_flight)
{
    for (size_t n = 1; n < 6; n += 2) {
        struct flight flights[4];
        label("%zu sequences", n);
        set_up("qwen35.q1_0", 0, 6);
        const qn_device_vtable *vtable = fixture.cuda.device->vtable;
        memset((void *)(uintptr_t)fixture.model->workspace.logits.address, 0, fixture.model->workspace.logits.bytes);
        assert_int_equal(fixture.cuda.device->ahead, QN_GPU_MAX_SEQUENCES);
        for (size_t i = 0; i < 4; i++)
            fill_flight(&flights[i], n, 10 + (uint32_t)i, i > 0);
        const int synchronizations = fake.synchronizations;
        launch_flight(&flights[0], 0);
        launch_flight(&flights[1], 1);
        assert_int_equal(fake.synchronizations - synchronizations,
                         (n == 1 || qn_cuda_has_phases(&fixture.model->workspace, n))); /* the upload of phases, once */
        assert_true(flights[0].results != flights[1].results);
        play_sampler(&flights[0], 40, n / 2);
        play_sampler(&flights[1], 50, n / 2);
        assert_ok(vtable->finish(fixture.cuda.device));
        expect_tokens(&flights[0], 40, n / 2);
        assert_int_equal(flights[1].requests[0].token, 77); /* not yet */
        flights[2].results = flights[0].results;
        launch_flight(&flights[2], 0);
        assert_int_equal(fake.execs, 2);
        play_sampler(&flights[2], 60, n / 2);
        assert_ok(vtable->finish(fixture.cuda.device));
        expect_tokens(&flights[1], 50, n / 2);
        assert_true(fixture.cuda.device->idle_seconds == 0.25); /* the fake driver's, which checks the order of the
                                                                   events */
        fake.fails = "cuGraphLaunch";
        assert_int_equal(vtable->launch(fixture.cuda.device, &flights[3].step), QN_ERR_DEVICE);
        fake.fails = NULL;
        assert_ok(vtable->finish(fixture.cuda.device));
        expect_tokens(&flights[2], 60, n / 2);
        launch_flight(&flights[3], 0);
        fixture.model->common.deterministic = true;
        struct flight many;
        fill_flight(&many, 6, 10, false);
        many.rows.rows[1].position = 0;
        many.step.n_logit_rows = 5; /* two batches */
        assert_fails(vtable->launch(fixture.cuda.device, &many.step), QN_ERR_INVALID, "another is in flight");
        assert_ok(vtable->finish(fixture.cuda.device));
        assert_ok(vtable->reserve(fixture.cuda.device, MAX_ROWS + 1, CONTEXT));
        assert_int_equal(fixture.cuda.device->ahead, 0);
        tear_down();
    }
}

/* ---- Requests that are prepared when they are sampled ---- */

struct prepared {
    atomic_int n;
    uint32_t *allowed;
};

static void prepare(void *user, qn_sample_request *request)
{
    struct prepared *p = user;
    atomic_fetch_add(&p->n, 1);
    request->allowed = p->allowed;
}

/* The rows are queued first, also behind another step; the sampler when the requests are prepared, with their masks. */
TEST(requests_are_prepared_later)
{
    for (size_t n = 1; n < 6; n += 2) {
        struct flight flights[3];
        struct prepared p = { .n = 0 };
        const struct fake_launch *sampler = NULL;
        label("%zu sequences", n);
        set_up("qwen35.q1_0", 0, 6);
        const qn_device_vtable *vtable = fixture.cuda.device->vtable;
        const size_t words = qn_sample_mask_words(fixture.model->common.plan->n_vocab);
        p.allowed = malloc(words * sizeof *p.allowed);
        assert_non_null(p.allowed);
        for (size_t i = 0; i < words; i++)
            p.allowed[i] = (uint32_t)(0x9e3779b9u * i);
        for (size_t i = 0; i < 3; i++) {
            fill_flight(&flights[i], n, 10 + (uint32_t)i, i > 0);
            for (size_t row = 0; row < n; row += 2) {
                flights[i].requests[row].prepare = prepare;
                flights[i].requests[row].user = &p;
            }
        }
        assert_ok(vtable->sample(fixture.cuda.device)); /* nothing is launched */
        for (size_t i = 0; i < 2; i++) {
            int from = fake.launches;
            assert_ok(vtable->launch(fixture.cuda.device, &flights[i].step));
            assert_int_equal(count("qn_sample_argmax", from, &sampler), 0);
            if (i) { /* the step before is sampled, and in flight */
                play_sampler(&flights[0], 40, n);
                assert_ok(vtable->finish(fixture.cuda.device));
                expect_tokens(&flights[0], 40, n);
            }
            assert_int_equal(p.n, i * ((n + 1) / 2));
            from = fake.launches;
            assert_ok(vtable->sample(fixture.cuda.device));
            assert_int_equal(p.n, (i + 1) * ((n + 1) / 2));
            assert_int_equal(count("qn_sample_argmax", from, &sampler), 1);
            const qn_sample_args *args = (const void *)sampler->args;
            flights[i].results = (void *)(uintptr_t)args->results;
            const qn_sample_params *params = (const void *)(uintptr_t)args->params;
            for (size_t row = 0; row < n; row++) {
                assert_true((params[row].allowed != 0) == (row % 2 == 0));
                if (row % 2 == 0)
                    assert_memory_equal((const void *)(uintptr_t)params[row].allowed, p.allowed,
                                        words * sizeof *p.allowed);
            }
            from = fake.launches;
            assert_ok(vtable->sample(fixture.cuda.device)); /* it is sampled */
            assert_int_equal(fake.launches, from);
        }
        play_sampler(&flights[1], 50, n);
        assert_ok(vtable->finish(fixture.cuda.device));
        expect_tokens(&flights[1], 50, n);
        assert_ok(vtable->launch(fixture.cuda.device, &flights[2].step));
        fake.fails = "cuLaunchKernelEx";
        assert_int_equal(vtable->sample(fixture.cuda.device), QN_ERR_DEVICE); /* the step is over */
        fake.fails = NULL;
        assert_ok(vtable->sample(fixture.cuda.device));
        assert_ok(vtable->run(fixture.cuda.device, &flights[0].step));
        free(p.allowed);
        tear_down();
    }
}
