/* The table of operations: every kind has a row; what a row says of operands, KV cache, state, angles and logits is
 * what the CPU executor does; wrong plans are refused; barriers separate operations that depend on each other. */

#include "helper_model.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "cpu/executor.h"

/* Rows follow on FIRST others: a chunk that has been folded, and 8 tokens of an open one. */
enum { N_ROWS = 8, FIRST = 72, CONTEXT = FIRST + N_ROWS, MAX_PLACES = 64 };

/* What the operations read and write besides the executor's buffers. */
static struct memory memory;
static float *logits; /* [N_ROWS, n_vocab] */
static float embeddings[N_ROWS][4096];
static qn_gguf *drafter;

/* A model with a drafter, and others. */
static const char *const models[] = { "qwen35-mtp-grafted.f16",
                                      "qwen35-rotated.q1_0",
                                      "qwen35.f16",
                                      "qwen35-mtp.bf16",
                                      "qwen2.q1_0",
                                      "qwen3.q2_0",
                                      "llama.q1_0" };

static void set_up(struct fixture *x, const char *golden)
{
    char path[512];
    unsigned cpu;
    *x = (struct fixture){ 0 };
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    assert_ok(qn_gguf_open(path, &x->file));
    assert_ok(qn_cpu_features(&cpu));
    drafter = NULL;
    if (golden == models[0])
        assert_ok(qn_gguf_open(QN_SOURCE_DIR "/tests/golden/qwen35-dflash.f16.gguf", &drafter));
    qn_kernels_init(&x->kernels, cpu);
    build_executor_with(x, drafter, 1, N_ROWS, CONTEXT);
    memory = new_memory(x);
    prepare_memory(&memory, FIRST);
    append_memory(&memory, FIRST);
    prepare_memory(&memory, N_ROWS);
    assert_ok(qn_alloc(&logits, (size_t)N_ROWS * x->plan.n_vocab, sizeof *logits, "test"));
}

static void free_all(struct fixture *x)
{
    qn_free(logits);
    free_memory(&memory);
    tear_down(x);
    qn_gguf_close(drafter);
}

/* ---- Execution of one operation, with a fingerprint of every place before and after ---- */

/* Places: the plan's buffers, then its activations, then those of QN_USES_* in the order of their bits. */
enum { KV, STATE, ANGLES, LOGITS, HIDDEN, N_USES };

static size_t n_places(const struct fixture *x)
{
    return x->plan.n_buffers + x->plan.n_acts + N_USES;
}

static uint64_t mix_bytes(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return hash;
}

static bool kv_region(const struct fixture *x, size_t index, uint8_t **data, size_t *bytes)
{
    const qn_extent extent = { .length = CONTEXT };
    qn_saved_layout layout = memory.of->format->saved;
    qn_saved_region region = { 0 };
    layout.n_layers += x->plan.head.n_layers;
    layout.n_attention += x->plan.head.n_layers;
    const bool found = qn_saved_find_region(&layout, &extent, index, &region);
    *bytes = region.bytes;
    const bool is_head = region.layer >= memory.of->format->saved.n_layers;
    *data = *bytes ? qn_kv_region(is_head ? &memory.of->head_kv : &memory.of->kv, &region) : NULL;
    return found;
}

/* Array number `i` of the recurrent layers, NULL after the last. */
static float *recurrent_array(size_t i, size_t *count)
{
    const qn_recurrent_layout *layout = memory.of->recurrent.layout;
    return layout && i < layout->n_layers * QN_SAVED_ARRAYS
               ? qn_recurrent_array(&memory.of->recurrent, i / QN_SAVED_ARRAYS, (qn_saved_array)(i % QN_SAVED_ARRAYS),
                                    count)
               : NULL;
}

static size_t hidden_values(void)
{
    return (QN_CPU_HIDDEN + 1) * memory.of->hidden->width;
}

static size_t most_pairs(const struct fixture *x)
{
    const size_t a = x->plan.heads.n_rot / 2, b = x->plan.head.heads.n_rot / 2;
    return a > b ? a : b;
}

/* Of rows from `first` on. */
static void fingerprint(const struct fixture *x, size_t first, uint64_t *of)
{
    const qn_cpu_workspace *w = &x->executor->workspace;
    uint8_t *data;
    float *array;
    size_t n = 0, bytes, count;
    for (size_t i = 0; i < x->plan.n_buffers; i++)
        of[n++] = mix_bytes(1, w->buffers[i] + first * x->plan.buffers[i].width,
                            (N_ROWS - first) * x->plan.buffers[i].width * sizeof(float));
    for (size_t i = 0; i < x->plan.n_acts; i++, n++) {
        const qn_acts *a = &w->acts[i];
        const size_t groups = a->n_super * QN_SUPER_GROUPS;
        of[n] = 1;
        if (a->values)
            of[n] = mix_bytes(of[n], a->values + first * a->n_cols, (N_ROWS - first) * a->n_cols * sizeof *a->values);
        if (a->scale)
            of[n] = mix_bytes(of[n], a->scale + first * groups, (N_ROWS - first) * groups * sizeof *a->scale);
    }
    uint64_t *uses = of + n;
    for (size_t i = 0; i < N_USES; i++)
        uses[i] = 1;
    for (size_t i = 0; kv_region(x, i, &data, &bytes); i++)
        uses[KV] = mix_bytes(uses[KV], data, bytes);
    for (size_t i = 0; (array = recurrent_array(i, &count)); i++)
        uses[STATE] = mix_bytes(uses[STATE], array, count * sizeof *array);
    const size_t angles = N_ROWS * most_pairs(x) * sizeof(float);
    uses[ANGLES] = mix_bytes(mix_bytes(1, w->cosines, angles), w->sines, angles);
    if (memory.of->hidden)
        uses[HIDDEN] = mix_bytes(1, memory.of->hidden->rows, hidden_values() * sizeof *memory.of->hidden->rows);
    uses[LOGITS] = mix_bytes(1, logits, N_ROWS * x->plan.n_vocab * sizeof *logits);
}

static uint64_t noise_state;

static float noise(void)
{
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(noise_state >> 40) / (float)(1 << 23) - 1;
}

static void fill(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = noise();
}

/* As `other`: row 0 of all buffers and activations. */
#define OTHER_ROW_0 (SIZE_MAX - 1)

/* Every place gets noise of its own; place `other` gets other noise than in the other calls. */
static void fill_places(struct fixture *x, size_t other)
{
    qn_cpu_workspace *w = &x->executor->workspace;
    float values[QN_SUPER];
    uint8_t *data;
    float *array;
    size_t place = 0, bytes, count;
#define NEXT_PLACE() noise_state = (uint64_t)place * 977 + (place == other ? 123456789 : 1), place++
    for (size_t i = 0; i < x->plan.n_buffers; i++) {
        NEXT_PLACE();
        fill(w->buffers[i], N_ROWS * x->plan.buffers[i].width);
        if (other == OTHER_ROW_0)
            fill(w->buffers[i], x->plan.buffers[i].width);
    }
    for (size_t i = 0; i < x->plan.n_acts; i++) {
        NEXT_PLACE();
        for (size_t k = 0; k < (other == OTHER_ROW_0 ? N_ROWS + 1 : N_ROWS); k++)
            for (size_t at = 0; at < x->plan.acts[i].width; at += QN_SUPER) {
                const size_t left = x->plan.acts[i].width - at;
                fill(values, QN_SUPER);
                x->kernels.matmul.quantize(&w->acts[i], k % N_ROWS, at / QN_SUPER, values,
                                           left < QN_SUPER ? left : QN_SUPER);
            }
    }
    NEXT_PLACE();
    for (size_t i = 0; kv_region(x, i, &data, &bytes); i++)
        for (size_t at = 0; at + 1 < bytes; at += 2) {
            const uint16_t f16 = (uint16_t)(0x3400 + (int)(noise() * 0x3ff)); /* 0.25, more or less */
            memcpy(data + at, &f16, sizeof f16);
        }
    NEXT_PLACE();
    for (size_t i = 0; (array = recurrent_array(i, &count)); i++)
        fill(array, count);
    NEXT_PLACE();
    fill(w->cosines, N_ROWS * most_pairs(x));
    fill(w->sines, N_ROWS * most_pairs(x));
    NEXT_PLACE();
    fill(logits, N_ROWS * x->plan.n_vocab);
    NEXT_PLACE();
    if (memory.of->hidden)
        fill(memory.of->hidden->rows, hidden_values());
    for (uint32_t i = FIRST - QN_CPU_HIDDEN; memory.of->hidden && i < FIRST; i++)
        memory.of->hidden->positions[i % QN_CPU_HIDDEN] = i;
#undef NEXT_PLACE
}

/* Runs operation `at` by itself. */
static void run_alone(struct fixture *x, size_t at, size_t other, size_t first, uint64_t *before, uint64_t *after)
{
    qn_row rows[N_ROWS];
    uint32_t logit_rows[N_ROWS];
    qn_plan alone = x->plan;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        logit_rows[i] = i;
        rows[i] = row_of_memory(&memory, (int32_t)i + 1, FIRST + i);
        if (x->plan.ops[at].kind == QN_OP_INPUT)
            rows[i].embedding = embeddings[i];
    }
    const qn_step step = {
        .rows = rows, .n_rows = N_ROWS, .logit_rows = logit_rows, .n_logit_rows = N_ROWS, .logits = logits
    };
    alone.ops = &x->plan.ops[at];
    alone.n_ops = 1;
    fill_places(x, other);
    fingerprint(x, first, before);
    size_t one_phase[] = { 0, 1 }, *phases = x->executor->phases;
    const size_t n_phases = x->executor->n_phases, draft_phase = x->executor->draft_phase;
    x->executor->plan = &alone;
    x->executor->phases = one_phase;
    x->executor->n_phases = x->executor->draft_phase = 1;
    x->executor->weights.at += at;
    qn_executor_run(x->executor, &step);
    x->executor->weights.at -= at;
    x->executor->n_phases = n_phases;
    x->executor->draft_phase = draft_phase;
    x->executor->phases = phases;
    x->executor->plan = &x->plan;
    fingerprint(x, first, after);
}

/* What the row of the table says of a place. */
static unsigned declared(const struct fixture *x, const qn_op *op, size_t place)
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    const size_t n_buffers = x->plan.n_buffers, n_acts = x->plan.n_acts;
    qn_op_operand operands[QN_OP_OPERANDS];
    const size_t n = qn_op_operands(op, operands);
    unsigned access = 0;
    if (place >= n_buffers + n_acts) {
        const unsigned use = 1u << (place - n_buffers - n_acts);
        return (desc->reads & use ? QN_READS : 0) | (desc->writes & use ? QN_WRITES : 0);
    }
    for (size_t i = 0; i < n; i++)
        if ((operands[i].is_acts ? n_buffers : 0) + (size_t)operands[i].index == place)
            access |= operands[i].access;
    return access;
}

/* A place is written if its contents change; it is read if with other contents some written place has another
 * result. */
static void check_access(struct fixture *x, size_t at)
{
    const qn_op *op = &x->plan.ops[at];
    uint64_t before[MAX_PLACES], after[MAX_PLACES], other_before[MAX_PLACES], other_after[MAX_PLACES];
    assert_in_range(n_places(x), 1, MAX_PLACES);
    run_alone(x, at, SIZE_MAX, 0, before, after);
    for (size_t place = 0; place < n_places(x); place++) {
        unsigned found = after[place] != before[place] ? QN_WRITES : 0;
        run_alone(x, at, place, 0, other_before, other_after);
        for (size_t i = 0; i < n_places(x); i++)
            if (other_after[i] != after[i] && (i != place || found & QN_WRITES))
                found |= QN_READS;
        unsigned expected = declared(x, op, place);
        /* A place of which only some elements are written looks like one that is read as well. */
        if ((place >= x->plan.n_buffers + x->plan.n_acts || op->kind == QN_OP_CAPTURE) && expected & QN_WRITES)
            found &= ~(unsigned)QN_READS, expected &= ~(unsigned)QN_READS;
        if (found != expected)
            fail_msg("operation %zu, %s: place %zu: reads %d, writes %d, but its row says %d, %d", at,
                     qn_op_desc_of(op->kind)->name, place, !!(found & QN_READS), !!(found & QN_WRITES),
                     !!(expected & QN_READS), !!(expected & QN_WRITES));
    }
}

/* Where rows are independent, other operands of row 0 change no other row. The KV cache, state and logits are not
 * rows. */
static void check_order(struct fixture *x, size_t at)
{
    uint64_t before[MAX_PLACES], after[MAX_PLACES], other_before[MAX_PLACES], other_after[MAX_PLACES];
    const qn_op_desc *desc = qn_op_desc_of(x->plan.ops[at].kind);
    bool depend = (desc->reads & desc->writes) != 0; /* by what an earlier row has written */
    run_alone(x, at, SIZE_MAX, 1, before, after);
    run_alone(x, at, OTHER_ROW_0, 1, other_before, other_after);
    for (size_t place = 0; place < x->plan.n_buffers + x->plan.n_acts; place++) {
        assert_int_equal(before[place], other_before[place]);
        depend = depend || after[place] != other_after[place];
    }
    if (depend != (desc->order == QN_ORDER_SEQUENCE))
        fail_msg("operation %zu, %s: rows depend on each other: %d", at, desc->name, depend);
}

/* Replaces the plan's EMBED by INPUT: all rows have embeddings. */
static void take_embeddings(struct fixture *x)
{
    const qn_op embed = x->plan.ops[0];
    assert_int_equal(embed.kind, QN_OP_EMBED);
    assert_in_range(x->hparams.n_embd, 1, sizeof embeddings[0] / sizeof embeddings[0][0]);
    x->plan.ops[0] =
        (qn_op){ .kind = QN_OP_INPUT, .layer = -1, .input = { .out = embed.embed.out, .width = x->hparams.n_embd } };
    assert_ok(qn_plan_validate(&x->plan));
    for (size_t i = 0; i < N_ROWS; i++)
        fill(embeddings[i], x->hparams.n_embd);
}

static void check_kind(struct fixture *x, size_t at, bool seen[QN_OP_KINDS])
{
    const qn_op_kind kind = x->plan.ops[at].kind;
    label("%s", qn_op_desc_of(kind)->name);
    seen[kind] = true;
    check_access(x, at);
    check_order(x, at);
}

TEST(rows_say_what_the_executor_does)
{
    bool seen[QN_OP_KINDS] = { 0 };
    for (size_t i = 0; i < COUNT(models); i++) {
        label("%s", models[i]);
        struct fixture x;
        bool done[QN_OP_KINDS] = { 0 };
        set_up(&x, models[i]);
        for (size_t at = 0; at < x.plan.n_ops; at++)
            if (!done[x.plan.ops[at].kind]) {
                done[x.plan.ops[at].kind] = true;
                check_kind(&x, at, seen);
            }
        take_embeddings(&x);
        check_kind(&x, 0, seen);
        free_all(&x);
    }
    for (int kind = 0; kind < QN_OP_KINDS; kind++)
        if (!seen[kind])
            fail_msg("no model of this test has a %s", qn_op_desc_of((qn_op_kind)kind)->name);
}

/* ---- The table ---- */

TEST(every_kind_has_a_row)
{
    for (int kind = 0; kind < QN_OP_KINDS; kind++) {
        label("kind %d", kind);
        const qn_op_desc *desc = qn_op_desc_of((qn_op_kind)kind);
        assert_non_null(desc->name);
        assert_int_not_equal(desc->fields[0].kind, QN_FIELD_END);
        for (int k = 0; k < kind; k++)
            assert_string_not_equal(desc->name, qn_op_desc_of((qn_op_kind)k)->name);
        size_t n_vectors = 0;
        unsigned once = 0;
        for (size_t i = 0; i < QN_OP_FIELDS && desc->fields[i].kind; i++) {
            const qn_op_field *field = &desc->fields[i];
            n_vectors += field->kind == QN_FIELD_VECTOR || field->kind == QN_FIELD_ROTATION;
            if (field->kind == QN_FIELD_BUFFER || field->kind == QN_FIELD_VECTOR)
                continue;
            assert_false(once & 1u << field->kind); /* looked up by its kind */
            once |= 1u << field->kind;
        }
        assert_in_range(n_vectors, 0, QN_OP_VECTORS);
    }
}

/* ---- Validation ---- */

static size_t find(const qn_plan *plan, qn_op_kind kind)
{
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == kind)
            return i;
    fail_msg("no %s", qn_op_desc_of(kind)->name);
    return 0;
}

static void expect_refused(const qn_plan *plan, const char *text)
{
    const qn_status status = qn_plan_validate(plan);
    if (status != QN_ERR_INVALID || !strstr(qn_error_text(), text))
        fail_msg("status %s with the text '%s', expected '%s'", qn_status_name(status), qn_error_text(), text);
}

/* Sets one member of an operation, and expects the plan to be refused with it and accepted without. */
#define REFUSES(KIND, member, wrong, text)                                                                             \
    do {                                                                                                               \
        qn_op *op_ = &x.plan.ops[find(&x.plan, KIND)];                                                                 \
        const qn_op saved_ = *op_;                                                                                     \
        op_->member = (wrong);                                                                                         \
        expect_refused(&x.plan, text);                                                                                 \
        *op_ = saved_;                                                                                                 \
        assert_ok(qn_plan_validate(&x.plan));                                                                          \
    } while (0)

TEST(wrong_operands_are_refused)
{
    struct fixture x;
    set_up(&x, "qwen35-rotated.q1_0");
    const int n_buffers = (int)x.plan.n_buffers, n_acts = (int)x.plan.n_acts;
    const qn_op first = x.plan.ops[0];
    const qn_op *conv = &x.plan.ops[find(&x.plan, QN_OP_CONV)], *embed = &x.plan.ops[0];
    REFUSES(QN_OP_NORM, norm.in, -1, "operation 1, norm: in: buffer -1, expected 0 to");
    REFUSES(QN_OP_CONV, conv.beta, n_buffers, "conv: beta: buffer");
    REFUSES(QN_OP_CONV, conv.alpha, embed->embed.out, "conv: alpha: width");
    REFUSES(QN_OP_CONV, conv.qkv, conv->conv.out, "is read before it is written");
    REFUSES(QN_OP_SWIGLU, swiglu.acts.at[0], n_acts, "swiglu: acts: activations");
    REFUSES(QN_OP_SWIGLU, swiglu.acts.n, 0, "swiglu: acts: number 0");
    REFUSES(QN_OP_GATED_NORM, layer, (int)x.plan.n_layers, "gated_norm: layer");
    REFUSES(QN_OP_GATED_NORM, layer, 3, "gated_norm: layer: recurrent: 0");
    REFUSES(QN_OP_ATTENTION_COMBINE, attention_combine.queries, conv->conv.alpha, "attention_combine: queries: width");
    REFUSES(QN_OP_ATTENTION, attention.shape.head_dim, 8, "width");
    REFUSES(QN_OP_MATMUL, matmul.matrices.n, QN_OP_MATRICES + 1, "matmul: matrices: number 5");
    REFUSES(QN_OP_MATMUL, matmul.matrices.at[0].out, -1, "matmul: matrices: out");
    REFUSES(QN_OP_MATMUL, matmul.matrices.at[0].weights.n_rows, 1, "matmul: matrices: width");
    REFUSES(QN_OP_LOGITS, matmul.matrices.at[0].out, 0, "logits: matrices: out");
    REFUSES(QN_OP_EMBED, kind, (qn_op_kind)QN_OP_KINDS, "is of kind");
    x.plan.n_ops--;
    expect_refused(&x.plan, "a matmul follows exactly");
    x.plan.n_ops++;
    x.plan.ops++;
    x.plan.n_ops--;
    expect_refused(&x.plan, "is read before it is written");
    x.plan.ops--;
    x.plan.n_ops++;
    expect_refused(&(qn_plan){ 0 }, "it has no operations");
    x.plan.ops[0].kind = QN_OP_NORM;
    x.plan.ops[0].norm = x.plan.ops[find(&x.plan, QN_OP_LOGIT_NORM)].norm;
    expect_refused(&x.plan, "operation 0, norm: in: buffer");
    x.plan.ops[0] = first;
    x.plan.head = (qn_plan_head){ .pairs = 1, .draft = 2 };
    expect_refused(&x.plan, "operation 1, norm: a section of the draft head begins with a pair");
    x.plan.head.block = 8;
    expect_refused(&x.plan, "operation 1, norm: a section of the draft head begins with fuse or embed");
    x.plan.head = (qn_plan_head){ 0 };
    take_embeddings(&x);
    REFUSES(QN_OP_INPUT, input.width, x.hparams.n_embd + 1, "input: out: width");
    REFUSES(QN_OP_INPUT, input.out, n_buffers, "input: out: buffer");
    free_all(&x);
}

/* ---- Barriers ---- */

/* In the models every operation depends on the previous one, but the pairs do not on the logits, a layer not on what is
 * captured before it, and a drafter's layers not on each other's keys and values. */
static bool is_free_after(const qn_plan *plan, size_t at)
{
    const qn_op_kind kind = plan->ops[at].kind,
                     next = at + 1 < plan->n_ops ? plan->ops[at + 1].kind : (qn_op_kind)QN_OP_KINDS;
    return at + 1 == plan->n_ops || at + 1 == plan->head.pairs || kind == QN_OP_CAPTURE ||
           (kind == QN_OP_K_NORM_ROPE_STORE && next == QN_OP_NORM);
}

/* Two matmuls of the same activations into different buffers do not depend on each other either, but the operation
 * after them depends on the first. */
TEST(barriers_where_operations_depend)
{
    bool barriers[512];
    for (size_t i = 0; i < COUNT(models); i++) {
        label("%s", models[i]);
        struct fixture x;
        set_up(&x, models[i]);
        assert_in_range(x.plan.n_ops, 1, 512);
        qn_plan_find_barriers(&x.plan, barriers);
        for (size_t at = 0; at < x.plan.n_ops; at++) {
            label("operation %zu", at);
            assert_int_equal(barriers[at], !is_free_after(&x.plan, at));
        }
        free_all(&x);
    }
    qn_op ops[] = { { .kind = QN_OP_MATMUL, .matmul.matrices = { .n = 1, .at[0] = { .acts = 0, .out = 0 } } },
                    { .kind = QN_OP_MATMUL, .matmul.matrices = { .n = 1, .at[0] = { .acts = 0, .out = 1 } } },
                    { .kind = QN_OP_SWIGLU, .swiglu = { .gate = 0, .up = 2, .acts = { { 1 }, 1 } } },
                    { .kind = QN_OP_DELTA_RULE, .delta_rule = { 3, 4, 5, 6 } },
                    { .kind = QN_OP_GATED_NORM, .gated_norm = { .in = 7, .gate = 8, .acts = { { 2 }, 1 } } } };
    qn_plan_find_barriers(&(qn_plan){ .ops = ops, .n_ops = 5 }, barriers);
    assert_false(barriers[0]);
    assert_true(barriers[1]);
    assert_false(barriers[2]);
    assert_true(barriers[3]); /* the state */
    assert_false(barriers[4]);
}
