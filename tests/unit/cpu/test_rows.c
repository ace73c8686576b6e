/* Rows of a step on the CPU: several sampled rows of a sequence, embeddings in place of tokens, a plan without EMBED,
 * positions of several components, hidden states. */
#include "helper_model.h"

#include "base/cpu.h"
#include "cpu/device.h"

#include <math.h>

enum { N_ROWS = 20, CONTEXT = 64 };

static const char *const models[] = { "qwen35-rotated.q1_0", "qwen35.f16", "qwen3.q2_0" };
enum { N_MODELS = COUNT(models) };

struct device {
    struct fixture x; /* without an executor */
    qn_device *device;
};

static void open_model(struct fixture *x, const char *golden, int n_threads)
{
    char path[512];
    unsigned cpu;
    *x = (struct fixture){ 0 };
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    assert_ok(qn_gguf_open(path, &x->file));
    assert_ok(qn_model_build(x->file, &x->hparams, &x->plan));
    assert_ok(qn_cpu_features(&cpu));
    qn_kernels_init(&x->kernels, cpu);
    assert_ok(qn_team_create(n_threads, &x->team));
}

static void open_device(struct device *d)
{
    unsigned cpu;
    assert_ok(qn_cpu_features(&cpu));
    const qn_device_params params = { .plan = &d->x.plan, .team = d->x.team, .cpu = cpu };
    assert_ok(qn_cpu_device_create(&params, &d->device));
    assert_ok(d->device->vtable->reserve(d->device, N_ROWS, CONTEXT));
}

static void close_device(struct device *d)
{
    d->device->vtable->free(d->device);
    tear_down(&d->x);
}

static qn_memory *new_sequence(const struct device *d)
{
    qn_memory_params params = { .n_ctx = CONTEXT, .n_batch = N_ROWS };
    qn_memory *memory;
    assert_ok(qn_kv_format_named("f16", &params.format));
    assert_ok(d->device->vtable->memory_new(d->device, &params, &memory));
    return memory;
}

/* Runs a step of n rows of one memory, which are its next ones, with logits of the rows in `logit_rows`. */
static void run_rows(const struct device *d, qn_memory *memory, qn_row *rows, size_t n, const uint32_t *logit_rows,
                     size_t n_logits, float *logits, qn_sample_request *requests)
{
    const uint32_t length = memory->sequence->length;
    for (size_t i = 0; i < n; i++) {
        rows[i].position = length + (uint32_t)i;
        rows[i].memory = memory;
    }
    const qn_step step = { .rows = rows,
                           .n_rows = n,
                           .logit_rows = logit_rows,
                           .n_logit_rows = n_logits,
                           .logits = logits,
                           .requests = requests };
    assert_ok(memory->vtable->prepare(memory, n));
    assert_ok(d->device->vtable->run(d->device, &step));
    qn_memory_on_append(memory, length + n);
}

static void fill_tokens(const struct device *d, qn_row *rows)
{
    for (size_t i = 0; i < N_ROWS; i++)
        rows[i] = (qn_row){ .token = (int32_t)((i * i + 131 * i + 7) % d->x.plan.n_vocab) };
}

static float *new_floats(size_t n)
{
    float *floats = malloc(n * sizeof *floats);
    assert_non_null(floats);
    memset(floats, 0xff, n * sizeof *floats);
    return floats;
}

/* ---- Several sampled rows ---- */

static qn_sample_request request_of(size_t i)
{
    return (qn_sample_request){ .sampling = { .size = sizeof(qn_sampling), .temperature = 0.9f, .top_p = 1 },
                                .random = 0x9e3779b97f4a7c15u * (i + 1) };
}

/* Rows in the middle of a piece have the logits and the samples that they have in steps of their own. */
TEST(several_rows_are_sampled)
{
    static const uint32_t wanted[] = { 2, 3, 9, 15, 19 };
    enum { N = COUNT(wanted) };
    for (size_t i = 0; i < 2 * N_MODELS; i++) {
        label("%s, %d threads", models[i / 2], i % 2 ? 3 : 1);
        struct device d;
        qn_row rows[N_ROWS];
        qn_sample_request requests[N];
        size_t n_same_token = 0;
        open_model(&d.x, models[i / 2], i % 2 ? 3 : 1);
        open_device(&d);
        const size_t n_vocab = d.x.plan.n_vocab;
        float *together = new_floats(N * n_vocab), *alone = new_floats(n_vocab);
        qn_memory *a = new_sequence(&d), *b = new_sequence(&d);
        fill_tokens(&d, rows);
        for (size_t k = 0; k < N; k++)
            requests[k] = request_of(k);
        run_rows(&d, a, rows, N_ROWS, wanted, N, together, requests);
        for (uint32_t row = 0, k = 0; row < N_ROWS; row++) {
            const bool sampled = k < N && wanted[k] == row;
            qn_sample_request request = request_of(k);
            run_rows(&d, b, rows + row, 1, (const uint32_t[]){ 0 }, sampled, alone, sampled ? &request : NULL);
            if (!sampled)
                continue;
            assert_memory_equal(together + k * n_vocab, alone, n_vocab * sizeof *alone);
            assert_true(request.token >= 0);
            assert_int_equal(requests[k].token, request.token);
            n_same_token += request.token == requests[0].token;
            k++;
        }
        assert_true(n_same_token < N); /* the rows are not all alike */
        a->vtable->free(a);
        b->vtable->free(b);
        free(together);
        free(alone);
        close_device(&d);
    }
}

/* ---- Embeddings ---- */

/* The row of the embedding matrix, as EMBED computes it. */
static void embed_token(const struct fixture *x, int32_t token, float *to)
{
    const qn_op *op = &x->plan.ops[0];
    const qn_matrix *table = &op->embed.table;
    table->type->to_float(table->data + (size_t)token * table->row_bytes, table->n_cols / table->type->block_weights,
                          to);
    for (size_t i = 0; op->embed.inverse.block && i < table->n_cols; i += op->embed.inverse.block)
        x->kernels.hadamard.block(to + i, op->embed.inverse.block, NULL,
                                  op->embed.inverse.signs ? op->embed.inverse.signs + i : NULL);
}

static void expect_logits(const struct device *d, qn_row *rows, const float *expected)
{
    const size_t count = N_ROWS * d->x.plan.n_vocab;
    uint32_t all[N_ROWS];
    for (uint32_t i = 0; i < N_ROWS; i++)
        all[i] = i;
    float *found = new_floats(count);
    qn_memory *memory = new_sequence(d);
    run_rows(d, memory, rows, N_ROWS, all, N_ROWS, found, NULL);
    assert_memory_equal(found, expected, count * sizeof *found);
    memory->vtable->free(memory);
    free(found);
}

static void replace_embed(qn_plan *plan, size_t width)
{
    plan->ops[0] =
        (qn_op){ .kind = QN_OP_INPUT, .layer = -1, .input = { .out = plan->ops[0].embed.out, .width = width } };
    assert_ok(qn_plan_validate(plan));
}

/* Rows whose embeddings are those of their tokens have the same logits, also in a plan without EMBED; other embeddings
 * have others. */
TEST(embeddings_take_the_place_of_tokens)
{
    for (size_t i = 0; i < 2 * N_MODELS; i++) {
        label("%s, %d threads", models[i / 2], i % 2 ? 3 : 1);
        struct device d, without;
        qn_row rows[N_ROWS];
        open_model(&d.x, models[i / 2], i % 2 ? 3 : 1);
        open_device(&d);
        const size_t n_embd = d.x.hparams.n_embd, n_vocab = d.x.plan.n_vocab;
        float *embeddings = new_floats(N_ROWS * n_embd), *expected = new_floats(N_ROWS * n_vocab);
        float *other = new_floats(n_vocab);
        uint32_t all[N_ROWS];
        fill_tokens(&d, rows);
        qn_memory *memory = new_sequence(&d);
        for (uint32_t k = 0; k < N_ROWS; k++) {
            all[k] = k;
            embed_token(&d.x, rows[k].token, embeddings + k * n_embd);
        }
        run_rows(&d, memory, rows, N_ROWS, all, N_ROWS, expected, NULL);
        for (size_t k = 1; k < N_ROWS; k += 1 + k % 3)
            rows[k] = (qn_row){ .token = -1, .embedding = embeddings + k * n_embd };
        expect_logits(&d, rows, expected);
        for (size_t k = 0; k < N_ROWS; k++)
            rows[k] = (qn_row){ .token = -1, .embedding = embeddings + k * n_embd };
        expect_logits(&d, rows, expected);
        open_model(&without.x, models[i / 2], 2);
        replace_embed(&without.x.plan, n_embd);
        open_device(&without);
        expect_logits(&without, rows, expected);
        embeddings[3] += 1;
        qn_memory *changed = new_sequence(&without);
        run_rows(&without, changed, rows, 1, all, 1, other, NULL);
        assert_memory_not_equal(other, expected, n_vocab * sizeof *other);
        changed->vtable->free(changed);
        close_device(&without);
        memory->vtable->free(memory);
        free(embeddings);
        free(expected);
        free(other);
        close_device(&d);
    }
}

/* ---- Positions ---- */

/* The component of pair i of Qwen3.5's interleaved sections. */
static size_t component_of(const qn_rope_sections *s, size_t i)
{
    return i % 3 == 1 && i < 3 * s->pairs[1] ? 1 : i % 3 == 2 && i < 3 * s->pairs[2] ? 2 : 0;
}

/* Every row's cosines and sines are those of its position's components. */
TEST(positions_have_components)
{
    struct device d;
    qn_row rows[N_ROWS];
    open_model(&d.x, "qwen35.f16", 3);
    assert_true(d.x.hparams.has_rope_sections);
    assert_non_null(d.x.plan.rope_components);
    open_device(&d);
    const size_t half = d.x.plan.heads.n_rot / 2;
    const qn_cpu_workspace *w = &((qn_cpu_device *)d.device)->executor->workspace;
    fill_tokens(&d, rows);
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (uint32_t c = 0; c < QN_ROPE_COMPONENTS; c++)
            rows[i].rope_offsets[c] = i < 4 ? 0 : i < 8 ? 1000 - 3 * i : 40 + 17 * c * c - i;
    qn_memory *memory = new_sequence(&d);
    run_rows(&d, memory, rows, N_ROWS, NULL, 0, NULL, NULL);
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (size_t pair = 0; pair < half; pair++) {
            label("row %u, pair %zu", (unsigned)i, pair);
            const size_t c = component_of(&d.x.hparams.rope_sections, pair);
            const double position = i < 4 ? i : i < 8 ? 1000 - 2.0 * i : 40 + 17.0 * (double)(c * c);
            const double angle = position * pow((double)d.x.hparams.rope_base, -(double)pair / (double)half);
            assert_true(fabs((double)w->cosines[i * half + pair] - cos(angle)) < 1e-7); /* f32: 2^-24 */
            assert_true(fabs((double)w->sines[i * half + pair] - sin(angle)) < 1e-7);
        }
    memory->vtable->free(memory);
    close_device(&d);
}

/* ---- Hidden states ---- */

static size_t find(const qn_plan *plan, qn_op_kind kind)
{
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == kind)
            return i;
    fail_msg("no %s", qn_op_desc_of(kind)->name);
    return 0;
}

/* Rows get the input of LOGIT_NORM and its result, with and without logits; other rows get nothing. */
TEST(rows_get_their_hidden_states)
{
    for (size_t i = 0; i < 2 * N_MODELS; i++) {
        label("%s, %d threads", models[i / 2], i % 2 ? 3 : 1);
        struct device d;
        qn_row rows[N_ROWS];
        open_model(&d.x, models[i / 2], i % 2 ? 3 : 1);
        open_device(&d);
        const qn_op *op = &d.x.plan.ops[find(&d.x.plan, QN_OP_LOGIT_NORM)];
        const size_t n = d.x.hparams.n_embd;
        float *hidden = new_floats(N_ROWS * n), *normed = new_floats(N_ROWS * n), *none = new_floats(n);
        float *logits = new_floats(d.x.plan.n_vocab);
        memset(none, 0xff, n * sizeof *none);
        fill_tokens(&d, rows);
        for (size_t k = 0; k < N_ROWS; k++) {
            rows[k].hidden = k % 3 == 0 ? hidden + k * n : NULL;
            rows[k].normed = k % 2 == 0 ? normed + k * n : NULL;
        }
        qn_memory *memory = new_sequence(&d);
        run_rows(&d, memory, rows, N_ROWS, (const uint32_t[]){ 5 }, 1, logits, NULL);
        const float *x = ((qn_cpu_device *)d.device)->executor->workspace.buffers[op->norm.in];
        for (size_t k = 0; k < N_ROWS; k++) {
            label("row %zu", k);
            double sum = 0;
            for (size_t e = 0; e < n; e++)
                sum += (double)x[k * n + e] * (double)x[k * n + e];
            const double scale = 1 / sqrt(sum / (double)n + (double)op->norm.eps);
            assert_memory_equal(hidden + k * n, rows[k].hidden ? x + k * n : none, n * sizeof *hidden);
            if (!rows[k].normed)
                assert_memory_equal(normed + k * n, none, n * sizeof *normed);
            for (size_t e = 0; rows[k].normed && e < n; e++) {
                const double expected = (double)x[k * n + e] * scale * (double)op->norm.weight[e];
                assert_true(fabs((double)normed[k * n + e] - expected) <= 4e-7 * fabs(expected)); /* 3 roundings, and
                                                                                                      the scale's */
            }
        }
        memory->vtable->free(memory);
        free(hidden);
        free(normed);
        free(none);
        free(logits);
        close_device(&d);
    }
}
