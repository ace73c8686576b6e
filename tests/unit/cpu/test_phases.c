/* Phases on the CPU: how much of the work is a thread's own where cores differ in speed, which changes no bit; the
 * operations without a phase of their own; and the profile of operations. */
#include "helper_create.h"
#include "helper_plan.h"

#include "cpu/device.h"
#include "cpu/follow.h"
#include "cpu/phases.h"
#include "engine/internal.h"
#include "engine/read_rate.h"

#include <math.h>

enum { N_IDS = 75 };

static qn_executor *executor_of(const qn_model *model)
{
    return ((const qn_cpu_device *)model->device)->executor;
}

static qn_model *open_model(const char *golden, int n_threads)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    return create_model(path, &CPU_MODEL(.n_threads = n_threads));
}

/* The logits of all tokens. */
static float *evaluate(qn_model *model, uint32_t n_batch)
{
    const size_t n_vocab = qn_model_get_info(model)->n_vocab;
    qn_token ids[N_IDS];
    float *logits = malloc(N_IDS * n_vocab * sizeof *logits);
    assert_non_null(logits);
    memset(logits, 0xff, N_IDS * n_vocab * sizeof *logits);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = i * 61 % (int)n_vocab;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_IDS, .n_batch = n_batch));
    assert_ok(qn_session_eval(session, ids, N_IDS, QN_LOGITS_ALL, logits));
    qn_session_free(session);
    return logits;
}

/* ---- Parts ---- */

TEST(parts_change_no_bit)
{
    static const char *const models[] = { "qwen35-rotated.q1_0", "qwen3.q2_0" };
    static const double parts[] = { 1, 0.7, 0.3, 0.01 };
    for (size_t m = 0; m < COUNT(models); m++) {
        qn_model *alone = open_model(models[m], 1);
        float *expected = evaluate(alone, N_IDS);
        const size_t bytes = N_IDS * sizeof(float) * qn_model_get_info(alone)->n_vocab;
        for (size_t i = 0; i < COUNT(parts); i++) {
            qn_model *model = open_model(models[m], 3);
            label("%s, part %g", models[m], parts[i]);
            assert_true(executor_of(model)->own_part > 0 && executor_of(model)->own_part <= 1);
            executor_of(model)->own_part = parts[i];
            for (uint32_t n_batch = 1; n_batch <= 25; n_batch += 24) {
                float *found = evaluate(model, n_batch);
                if (memcmp(found, expected, bytes) != 0)
                    fail_msg("the logits differ");
                free(found);
            }
            qn_model_free(model);
        }
        free(expected);
        qn_model_free(alone);
    }
}

/* A slow thread's own pieces are no more of the work than it does in the time of the phase. */
TEST(own_pieces_by_speed)
{
    enum { N_THREADS = 4 };
    static const double parts[] = { 1, 0.5, 0.1 };
    qn_model *model = open_model("llama.q1_0", N_THREADS);
    qn_executor *ex = executor_of(model);
    const qn_step step = { .n_rows = 1, .n_logit_rows = 1 };
    ex->step = &step;
    memset(ex->follows, 0, ex->n_phases * sizeof *ex->follows); /* the step has no rows that they could read */
    for (size_t i = 0; i < COUNT(parts); i++) {
        size_t n_own = 0, n_shared = 0;
        ex->own_part = parts[i];
        for (size_t phase = 0; phase < ex->n_phases; phase++) {
            const qn_op *op = &model->plan.ops[ex->phases[phase]];
            if (ex->phases[phase + 1] != ex->phases[phase] + 1 || !qn_op_matrices_of(op))
                continue;
            const qn_team_pieces pieces = qn_phases_open(ex, phase, N_THREADS);
            const qn_cpu_work *work = &ex->works[0];
            label("part %g, operation %zu", parts[i], ex->phases[phase]);
            assert_int_equal(ex->n_works, 1);
            assert_true((double)work->n_own_items <= parts[i] * (double)work->count);
            assert_true(work->n_own_items == work->count || pieces.shared > 0);
            n_own += pieces.own;
            n_shared += pieces.shared;
        }
        assert_true(n_own > 0 || parts[i] < 1);
        assert_true(n_shared > 0 || parts[i] == 1);
    }
    ex->step = NULL;
    qn_model_free(model);
}

/* Guided pieces are all items once, in ascending order and ever smaller; none of the last ones keeps a thread long. */
TEST(guided_pieces)
{
    static const size_t counts[] = { 1, 7, 64, 160, 1088, 100000 }, threads[] = { 1, 2, 16, 1000 };
    for (size_t c = 0; c < COUNT(counts); c++)
        for (size_t t = 0; t < COUNT(threads); t++) {
            const qn_cpu_work work = { .count = counts[c], .together = 4, .spread = QN_SPREAD_GUIDED };
            const size_t n = qn_guided_piece(&work, threads[t], 0, NULL);
            size_t end = 0, last = SIZE_MAX;
            label("%zu items, %zu threads", counts[c], threads[t]);
            assert_in_range(n, 1, QN_TEAM_MAX_SHARED / 10);
            for (size_t i = 0; i < n; i++) {
                qn_cpu_range range = { 0 };
                qn_guided_piece(&work, threads[t], i, &range);
                assert_int_equal(range.begin, end);
                assert_in_range(range.end - range.begin, 1, last);
                end = range.end;
                last = range.end - range.begin;
            }
            assert_int_equal(end, counts[c]);
            assert_true(last == 1 || threads[t] == 1);
            assert_true(n >= threads[t] || n == counts[c] || threads[t] > 64);
        }
}

/* ---- Operations that follow others ---- */

static const char *const following[] = { "qk_norm_rope_store", "attention_combine", "swiglu", "conv", "gated_norm" };

static bool has_line(const qn_profile *profile, const char *name)
{
    for (size_t i = 0; i < profile->n_lines; i++)
        if (!strcmp(profile->lines[i].name, name))
            return true;
    return false;
}

/* Steps of one row have no phases for them, and the bits of steps of many rows. */
TEST(one_row_has_fewer_phases)
{
    static const char *const models[] = { "qwen35-rotated.q1_0", "qwen35.f16", "qwen3.q2_0" };
    static const int threads[] = { 1, 2, 3, 8 };
    for (size_t m = 0; m < COUNT(models); m++) {
        qn_model *alone = open_model(models[m], 1);
        float *expected = evaluate(alone, N_IDS);
        const size_t bytes = N_IDS * sizeof(float) * qn_model_get_info(alone)->n_vocab;
        for (size_t i = 0; i < COUNT(threads); i++) {
            qn_model *model = open_model(models[m], threads[i]);
            qn_profile rows = { 0 }, row = { 0 };
            label("%s, %d threads", models[m], threads[i]);
            assert_ok(qn_model_profile_start(model));
            free(evaluate(model, 5));
            qn_model_profile_stop(model, &rows);
            assert_ok(qn_model_profile_start(model));
            float *found = evaluate(model, 1);
            qn_model_profile_stop(model, &row);
            if (memcmp(found, expected, bytes) != 0)
                fail_msg("the logits differ");
            free(found);
            for (size_t f = 0; f < COUNT(following); f++) {
                label("%s, %d threads: %s", models[m], threads[i], following[f]);
                assert_int_equal(has_line(&rows, following[f]), f < 3 || m < 2);
                assert_false(has_line(&row, following[f]));
            }
            qn_model_free(model);
        }
        free(expected);
        qn_model_free(alone);
    }
}

static size_t count_following(const qn_plan *plan)
{
    size_t n = 0;
    for (size_t i = 1; i < plan->n_ops; i++)
        n += qn_follow_can(plan, i);
    return n;
}

/* An operation follows only what writes all of its inputs, once. */
TEST(what_can_follow)
{
    static const struct shape shape = { .n_layers = 2,
                                        .interval = 2,
                                        .embd = 512,
                                        .ff = 1024,
                                        .heads = 4,
                                        .kv = 2,
                                        .head_dim = 256,
                                        .k_heads = 4,
                                        .v_heads = 8,
                                        .head = 128,
                                        .type = QN_TYPE_Q1_0,
                                        .gates = QN_TYPE_Q1_0 };
    qn_plan plan = { 0 };
    build_plan(&plan, &shape);
    assert_int_equal(count_following(&plan), 2 * 3);
    assert_true(qn_follow_counters(&plan) >= 2 * 4 + 8 + 1);
    for (size_t i = 1; i < plan.n_ops; i++) {
        if (!qn_follow_can(&plan, i) || plan.ops[i - 1].kind != QN_OP_MATMUL)
            continue;
        qn_op_matrix *matrix = &plan.ops[i - 1].matmul.matrices.at[0];
        const qn_op_matrix before = *matrix;
        label("%s", qn_op_desc_of(plan.ops[i].kind)->name);
        matrix->accumulate = true;
        assert_false(qn_follow_can(&plan, i));
        *matrix = before;
        matrix->weights.n_rows--;
        assert_false(qn_follow_can(&plan, i));
        *matrix = before;
        matrix->out = plan.ops[i - 1].matmul.matrices.at[1].out;
        assert_false(qn_follow_can(&plan, i));
        *matrix = before;
        assert_true(qn_follow_can(&plan, i));
    }
    for (size_t i = 0; i < plan.n_ops; i++) {
        if (plan.ops[i].kind == QN_OP_ATTENTION)
            plan.ops[i].attention.out = plan.ops[i].attention.queries;
        if (plan.ops[i].kind == QN_OP_DELTA_RULE)
            plan.recurrent.head_v = 384; /* no slice has whole heads */
    }
    assert_int_equal(count_following(&plan), 2 * 3 - 2);
    qn_plan_free(&plan);
}

/* ---- Profile ---- */

static const qn_profile_line *find(const qn_profile *profile, const char *name)
{
    for (size_t i = 0; i < profile->n_lines; i++)
        if (!strcmp(profile->lines[i].name, name))
            return &profile->lines[i];
    fail_msg("no line '%s'", name);
    return NULL;
}

TEST(profile_of_a_prompt)
{
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        qn_model *model = open_model("qwen35.f16", n_threads);
        qn_profile profile = { 0 };
        float *before = evaluate(model, 25);
        assert_ok(qn_model_profile_start(model));
        float *during = evaluate(model, 25);
        qn_model_profile_stop(model, &profile);
        if (memcmp(before, during, N_IDS * sizeof(float) * qn_model_get_info(model)->n_vocab) != 0)
            fail_msg("the logits differ");
        free(before);
        free(during);
        assert_int_equal(profile.n_steps, 3);
        double sum = profile.outside;
        size_t n_matmuls = 0;
        for (size_t i = 0; i < profile.n_lines; i++) {
            const qn_profile_line *line = &profile.lines[i];
            label("%s", line->name);
            assert_true(line->seconds > 0 && line->busy > 0);
            assert_true(line->busy <= line->available * 1.001 && line->available <= n_threads * line->seconds * 1.001);
            sum += line->seconds;
            n_matmuls += !strncmp(line->name, "matmul f16 ", 11);
        }
        assert_true(profile.outside > 0 && fabs(sum - profile.seconds) < 1e-3 * profile.seconds);
        assert_true(n_matmuls >= 3);
        (void)find(&profile, "delta_rule");
        (void)find(&profile, "attention");
        (void)find(&profile, "embed");
        /* a second profile is added */
        const double seconds = profile.seconds;
        const size_t n_lines = profile.n_lines;
        assert_ok(qn_model_profile_start(model));
        free(evaluate(model, N_IDS));
        qn_model_profile_stop(model, &profile);
        assert_int_equal(profile.n_steps, 4);
        assert_int_equal(profile.n_lines, n_lines);
        assert_true(profile.seconds > seconds);
        /* off again: nothing is counted, and nothing is left to add */
        const qn_profile same = profile;
        free(evaluate(model, N_IDS));
        qn_model_profile_stop(model, &profile);
        assert_memory_equal(&profile, &same, sizeof same);
        qn_model_free(model);
    }
}

TEST(profile_of_sampling)
{
    static const qn_token tokens[] = { 1, 2, 3 };
    qn_model *model = open_model("qwen3.q2_0", 2);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 64));
    qn_request_params request = QN_REQUEST_PARAMS_INIT;
    qn_profile profile = { 0 };
    request.tokens = tokens;
    request.n_tokens = COUNT(tokens);
    request.max_tokens = 5;
    request.ignore_end = true;
    assert_ok(qn_model_profile_start(model));
    assert_ok(qn_model_profile_start(model)); /* anew */
    assert_ok(qn_generate(session, &request, NULL));
    qn_model_profile_stop(model, &profile);
    const qn_profile_line *line = find(&profile, "sampling");
    assert_true(line->seconds > 0 && line->busy > 0 && line->busy <= line->available * 1.001);
    assert_in_range(profile.n_steps, 5, 6);
    qn_session_free(session);
    qn_model_free(model);
}
