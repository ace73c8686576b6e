/* A CPU device that computes in parallel with the host, with up to two steps in flight. A step is computed when it
 * is launched, in the order of a GPU's stream; the host gets its results when it is finished. */
#ifndef QN_TESTS_HELPER_OVERLAP_H
#define QN_TESTS_HELPER_OVERLAP_H

#include "helper_assert.h"

#include "base/cpu.h"
#include "engine/internal.h"
#include "kernels/sample/sample.h"

enum { OVERLAP_STEPS = 2, OVERLAP_SEQUENCES = 256 };

struct step_in_flight {
    const qn_step *step;
    size_t n;
    qn_sample_request results[OVERLAP_SEQUENCES];
    qn_logprobs logprobs[OVERLAP_SEQUENCES];
    double idle_seconds;
    bool awaits_sampling; /* from logits [n, n_vocab_of_overlap] */
    float *logits;
};

static struct step_in_flight steps_in_flight[OVERLAP_STEPS];
static size_t n_steps_in_flight;
static const qn_device_vtable *vtable_without_launch;
static int32_t sampled_tokens[OVERLAP_SEQUENCES]; /* of the last step, on the device */
static size_t n_prepared_steps;
static size_t n_vocab_of_overlap;

static inline qn_status reserve_alone(qn_device *device, size_t max_rows, size_t max_positions)
{
    assert_int_equal(n_steps_in_flight, 0);
    return vtable_without_launch->reserve(device, max_rows, max_positions);
}

static inline qn_status run_alone(qn_device *device, const qn_step *step)
{
    assert_int_equal(n_steps_in_flight, 0);
    return vtable_without_launch->run(device, step);
}

/* The previous step may have neither logits nor checks; its tokens are those of the sources. */
static inline void take_sources(qn_row *rows, size_t n)
{
    const struct step_in_flight *before = n_steps_in_flight ? &steps_in_flight[0] : NULL;
    for (size_t i = 0; before && i < before->n; i++)
        assert_null(before->results[i].check);
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].source)
            continue;
        assert_non_null(before);
        assert_true(rows[i].source <= before->n);
        assert_int_equal(rows[i].token, 0);
        rows[i].token = sampled_tokens[rows[i].source - 1];
    }
}

static inline void leave_tokens(struct step_in_flight *to)
{
    for (size_t i = 0; i < to->n; i++) {
        sampled_tokens[i] = to->results[i].token < 0 ? 0 : to->results[i].token;
    }
}

static inline qn_status launch_step(qn_device *device, const qn_step *step)
{
    assert_true(n_steps_in_flight < (device->ahead ? OVERLAP_STEPS : 1));
    assert_true(!n_steps_in_flight || !steps_in_flight[0].awaits_sampling);
    struct step_in_flight *to = &steps_in_flight[n_steps_in_flight];
    qn_row *rows = malloc(step->n_rows * sizeof *rows);
    assert_non_null(rows);
    memcpy(rows, step->rows, step->n_rows * sizeof *rows);
    take_sources(rows, step->n_rows);
    *to = (struct step_in_flight){ .step = step, .n = step->requests ? step->n_logit_rows : 0 };
    to->idle_seconds = n_steps_in_flight ? 0 : 1e-3;
    assert_true(to->n <= OVERLAP_SEQUENCES);
    for (size_t i = 0; i < to->n; i++) {
        to->results[i] = step->requests[i];
        if (step->requests[i].logprobs) {
            to->logprobs[i] = *step->requests[i].logprobs;
            to->results[i].logprobs = &to->logprobs[i];
        }
    }
    qn_step copy = *step;
    copy.rows = rows;
    copy.requests = to->n ? to->results : NULL;
    for (size_t i = 0; i < to->n; i++)
        to->awaits_sampling = to->awaits_sampling || to->results[i].prepare;
    if (to->awaits_sampling) {
        to->logits = malloc(to->n * n_vocab_of_overlap * sizeof *to->logits);
        assert_non_null(to->logits);
        copy.requests = NULL;
        copy.logits = to->logits;
    }
    const qn_status status = vtable_without_launch->run(device, &copy);
    free(rows);
    if (status != QN_OK)
        return status;
    if (!to->awaits_sampling)
        leave_tokens(to);
    n_steps_in_flight++;
    return QN_OK;
}

/* The requests belong to the caller again, who has changed the inputs of `prepare`. */
static inline qn_status sample_step(qn_device *device)
{
    struct step_in_flight *last = n_steps_in_flight ? &steps_in_flight[n_steps_in_flight - 1] : NULL;
    qn_sample_kernels kernels;
    unsigned cpu;
    (void)device;
    if (!last || !last->awaits_sampling)
        return QN_OK;
    assert_int_equal(n_steps_in_flight, 1);
    assert_ok(qn_cpu_features(&cpu));
    qn_sample_kernels_init(&kernels, cpu);
    void *scratch = malloc(qn_sample_scratch_bytes(n_vocab_of_overlap));
    assert_non_null(scratch);
    for (size_t i = 0; i < last->n; i++) {
        qn_sample_request *request = &last->results[i];
        const float *logits = last->logits + i * n_vocab_of_overlap;
        qn_sample_request *given = &last->step->requests[i];
        qn_logprobs *logprobs = request->logprobs;
        if (given->prepare) {
            given->prepare(given->user, given);
            *request = *given;
            request->logprobs = logprobs;
        }
        qn_sample_token(&kernels, request, logits, n_vocab_of_overlap, scratch);
        float *copy = request->check && request->token >= 0 ? request->check(request->user, request->token) : NULL;
        if (copy)
            memcpy(copy, logits, n_vocab_of_overlap * sizeof *copy);
    }
    free(scratch);
    free(last->logits);
    last->logits = NULL;
    last->awaits_sampling = false;
    n_prepared_steps++;
    leave_tokens(last);
    return QN_OK;
}

static inline qn_status finish_step(qn_device *device)
{
    assert_true(n_steps_in_flight > 0);
    assert_false(steps_in_flight[0].awaits_sampling);
    const struct step_in_flight *done = &steps_in_flight[0];
    for (size_t i = 0; i < done->n; i++) {
        qn_sample_request *request = &done->step->requests[i];
        request->best = done->results[i].best;
        request->surprise = done->results[i].surprise;
        request->token = done->results[i].token;
        if (request->logprobs)
            *request->logprobs = done->logprobs[i];
    }
    device->idle_seconds = done->idle_seconds;
    n_steps_in_flight--;
    steps_in_flight[0] = steps_in_flight[1];
    for (size_t i = 0; n_steps_in_flight && i < steps_in_flight[0].n; i++)
        if (steps_in_flight[0].results[i].logprobs)
            steps_in_flight[0].results[i].logprobs = &steps_in_flight[0].logprobs[i];
    return QN_OK;
}

/* ahead: number of sequences of a step that may be launched while another is in flight; 0: none. */
static inline void let_overlap(qn_model *model, size_t ahead)
{
    static qn_device_vtable vtable;
    assert_int_equal(n_steps_in_flight, 0);
    vtable = *model->device->vtable;
    vtable_without_launch = model->device->vtable;
    vtable.reserve = reserve_alone;
    vtable.run = run_alone;
    vtable.launch = launch_step;
    vtable.sample = sample_step;
    vtable.finish = finish_step;
    n_vocab_of_overlap = qn_model_get_info(model)->n_vocab;
    model->device->vtable = &vtable;
    model->device->ahead = ahead;
}

static inline void stop_overlap(qn_model *model)
{
    assert_int_equal(n_steps_in_flight, 0);
    model->device->vtable = vtable_without_launch;
    model->device->ahead = 0;
}

#endif
