/* The decode plan: which operations become phases of the persistent decode kernel, with a fake driver. The test
 * executes both the plan's operations and the segments made from them symbolically: a value is represented by a hash of
 * the operation and the operands that produced it. At the end, the residual streams must have the same hash. They
 * differ if a phase reads a value before it is written, after it is overwritten, or with another norm's factor.
 * quern-check checks the phases' arithmetic on a GPU. */
#include "helper_cuda_model.h"
#include "helper_plan.h"

#include "base/memory.h"
#include "cuda/executor/model.h"

enum { CONTEXT = 512, MAX_BUFFERS = 32, MAX_LOCATIONS = 256 };

/* ---- Plans ---- */

struct fixture {
    struct cuda_fixture cuda;
    qn_cuda_model *model;
    qn_memory *memory;
    uint32_t n_rows; /* of decode_plan */
    qn_cuda_decode_plan decode_plan;
};

static struct fixture fixture; /* of the current test */

static void set_up(const char *golden, const struct shape *shape, unsigned bits)
{
    fixture = (struct fixture){ 0 };
    if (golden) {
        read_golden(&fixture.cuda, golden);
    } else {
        build_plan(&fixture.cuda.plan, shape);
        fixture.cuda.hparams.n_layers = (uint32_t)shape->n_layers;
        fixture.cuda.hparams.head_dim = (uint32_t)shape->head_dim;
    }
    create_device(&fixture.cuda, bits);
    qn_device *device = fixture.cuda.device;
    const qn_memory_params memory = memory_params(&fixture.cuda, CONTEXT, 8);
    fixture.model = (qn_cuda_model *)device;
    assert_ok(device->vtable->memory_new(device, &memory, &fixture.memory));
    assert_ok(device->vtable->reserve(device, 8, CONTEXT));
}

static void plan_rows(uint32_t n_rows)
{
    fixture.n_rows = n_rows;
    assert_ok(qn_cuda_plan_decode(&fixture.model->workspace, qn_cuda_format_of((qn_gpu_memory *)fixture.memory), n_rows,
                                  &fixture.decode_plan));
}

static void tear_down(void)
{
    free(fixture.decode_plan.segments);
    free(fixture.decode_plan.phases);
    fixture.memory->vtable->free(fixture.memory);
    free_device(&fixture.cuda);
}

/* ---- Symbolic values: hashes ---- */

typedef uint64_t name;

static name mix(name a, name b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}

#define NAME(...) name_of((const name[]){ __VA_ARGS__ }, sizeof((const name[]){ __VA_ARGS__ }) / sizeof(name))

static name name_of(const name *of, size_t n)
{
    name result = 1;
    for (size_t i = 0; i < n; i++)
        result = mix(result, of[i]);
    return result;
}

enum { NORM = 100, SWIGLU, GATED, DELTA, ATTENTION, COMBINED, ROTATED, GEMV, SUM };

/* The contents of an address: a row, or the split-K partials of a GEMV. */
struct location {
    uint64_t address;
    name is;
    const qn_persistent_gemv *gemv; /* of partials; else NULL */
    bool f16_rows;
    name operand, plain_operand;
};

struct machine {
    const qn_cuda_model *model;
    const qn_gpu_memory *memory;
    struct location locations[MAX_LOCATIONS];
    size_t n_locations;
    const qn_persistent_gemv *acts; /* several rows: whose operand has been computed last */
    name acts_are;
};

static struct location *at(struct machine *m, uint64_t address)
{
    for (size_t i = 0; i < m->n_locations; i++)
        if (m->locations[i].address == address)
            return &m->locations[i];
    assert_in_range(m->n_locations, 0, MAX_LOCATIONS - 1);
    assert_int_not_equal(address, 0);
    m->locations[m->n_locations] = (struct location){ .address = address };
    return &m->locations[m->n_locations++];
}

static void put(struct machine *m, uint64_t address, name is)
{
    struct location *location = at(m, address);
    *location = (struct location){ .address = address, .is = is };
}

static name get(struct machine *m, uint64_t address)
{
    assert_int_not_equal(at(m, address)->is, 0); /* written before it is read */
    return at(m, address)->is;
}

static uint64_t buffer_address(const struct machine *m, int buffer)
{
    return qn_cuda_rows(&m->model->workspace, buffer);
}

static name gemv_name(const qn_matrix *weights, name operand)
{
    return NAME(GEMV, (name)(uintptr_t)weights->data, operand);
}

static name rotated_name(name floats, size_t block, uint64_t signs)
{
    return block ? NAME(ROTATED, floats, block, signs) : floats;
}

/* ---- Execution of the plan's operations, each on its buffers, for one row ---- */

static name value(struct machine *m, int buffer)
{
    return get(m, buffer_address(m, buffer));
}

static const qn_op_addresses *vectors_of(const struct machine *m, const qn_op *op)
{
    return &m->model->weights.ops[op - m->model->common.plan->ops].vectors;
}

/* What the operation quantises into its activations. */
static name floats_of(struct machine *m, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM: return NAME(NORM, value(m, op->norm.in), vectors_of(m, op)->norm.weight);
    case QN_OP_SWIGLU: return NAME(SWIGLU, value(m, op->swiglu.gate), value(m, op->swiglu.up));
    case QN_OP_ATTENTION_COMBINE: return value(m, op->attention_combine.in);
    case QN_OP_GATED_NORM: return value(m, op->gated_norm.in);
    case QN_OP_EMBED:
    case QN_OP_INPUT:
    case QN_OP_K_NORM_ROPE_STORE:
    case QN_OP_PAIR:
    case QN_OP_PAIR_NORM:
    case QN_OP_CAPTURE:
    case QN_OP_FUSE:
    case QN_OP_MATMUL:
    case QN_OP_QK_NORM_ROPE_STORE:
    case QN_OP_ATTENTION:
    case QN_OP_CONV:
    case QN_OP_DELTA_RULE:
    case QN_OP_LOGITS: break;
    }
    fail_msg("%s writes no activations", qn_op_desc_of(op->kind)->name);
    return 0;
}

static name operand_for(struct machine *m, const qn_op *writer, int acts)
{
    const qn_plan_rotation *rotation = &m->model->common.plan->acts[acts].rotation;
    return rotated_name(floats_of(m, writer), rotation->block, m->model->workspace.acts[acts].signs);
}

static void run_matmul(struct machine *m, const qn_op *op)
{
    for (size_t i = 0; i < op->matmul.matrices.n; i++) {
        const qn_op_matrix *matrix = &op->matmul.matrices.at[i];
        const uint64_t out = buffer_address(m, matrix->out);
        const name is = gemv_name(&matrix->weights, operand_for(m, op - 1, matrix->acts));
        put(m, out, matrix->accumulate ? NAME(SUM, get(m, out), is) : is);
    }
}

static void run_store(struct machine *m, const qn_op *op)
{
    put(m, buffer_address(m, op->qk_norm_rope_store.out),
        NAME(ATTENTION, value(m, op->qk_norm_rope_store.queries), value(m, op->qk_norm_rope_store.keys),
             value(m, op->qk_norm_rope_store.values), m->memory->format->slots[op->layer],
             vectors_of(m, op)->qk_norm_rope_store.q_norm, vectors_of(m, op)->qk_norm_rope_store.k_norm,
             vectors_of(m, op)->qk_norm_rope_store.q_bias, vectors_of(m, op)->qk_norm_rope_store.k_bias,
             vectors_of(m, op)->qk_norm_rope_store.v_bias));
}

static void run_combine(struct machine *m, const qn_op *op)
{
    put(m, buffer_address(m, op->attention_combine.in),
        NAME(COMBINED, value(m, op->attention_combine.in),
             op->attention_combine.shape.gated ? value(m, op->attention_combine.queries) : 0));
}

/* The launch of GATED_NORM includes CONV and DELTA_RULE. */
static void run_gated_norm(struct machine *m, const qn_op *op)
{
    const qn_op *conv = op - 2;
    put(m, buffer_address(m, op->gated_norm.in),
        NAME(GATED,
             NAME(DELTA, value(m, conv->conv.qkv), value(m, conv->conv.alpha), value(m, conv->conv.beta),
                  m->memory->format->slots[op->layer], vectors_of(m, conv)->conv.taps),
             value(m, op->gated_norm.gate), vectors_of(m, op)->gated_norm.weight, op->gated_norm.grouped));
}

static void run_op(struct machine *m, const qn_op *op)
{
    switch (op->kind) {
    case QN_OP_EMBED: put(m, buffer_address(m, op->embed.out), 7); return;
    case QN_OP_INPUT: put(m, buffer_address(m, op->input.out), 7); return;
    case QN_OP_MATMUL: run_matmul(m, op); return;
    case QN_OP_QK_NORM_ROPE_STORE: run_store(m, op); return;
    case QN_OP_ATTENTION: put(m, buffer_address(m, op->attention.out), value(m, op->attention.queries)); return;
    case QN_OP_ATTENTION_COMBINE: run_combine(m, op); return;
    case QN_OP_GATED_NORM: run_gated_norm(m, op); return;
    case QN_OP_CONV:
    case QN_OP_DELTA_RULE:
    case QN_OP_NORM: /* floats_of */
    case QN_OP_SWIGLU: return;
    case QN_OP_K_NORM_ROPE_STORE:
    case QN_OP_PAIR:
    case QN_OP_PAIR_NORM:
    case QN_OP_CAPTURE:
    case QN_OP_FUSE:
    case QN_OP_LOGIT_NORM:
    case QN_OP_LOGITS: break;
    }
    fail_msg("%s is no part of the trunk", qn_op_desc_of(op->kind)->name);
}

/* ---- Execution of phases ---- */

/* The matrix whose first row is `row` of an array of tiles. */
static const qn_matrix *matrix_at(const struct machine *m, uint64_t tiled_matrix, uint32_t row)
{
    for (size_t i = 0; i < m->model->common.plan->n_ops; i++)
        for (size_t p = 0; p < m->model->weights.ops[i].n_gemms; p++) {
            const qn_cuda_gemm *gemv = &m->model->weights.ops[i].gemms[p];
            for (size_t out = 0; gemv->tiled_matrix.address == tiled_matrix && out < gemv->tiled_matrix.n_outs; out++)
                if (gemv->tiled_matrix.outs[out].first_tile * QN_TILE_ROWS == row)
                    return &m->model->common.plan->ops[i].matmul.matrices.at[gemv->group.matrices[out]].weights;
        }
    fail_msg("no matrix begins at row %u", row);
    return NULL;
}

static name read_partials(struct machine *m, const qn_persistent_partials *gemv_partials, uint32_t row)
{
    struct location *location = at(m, gemv_partials->data);
    if (!location->gemv) {
        assert_int_equal(gemv_partials->n_partials, 1);
        assert_int_equal(gemv_partials->sumsq, 0);
        assert_int_equal(row, 0);
        return get(m, gemv_partials->data);
    }
    const qn_persistent_gemv *p = location->gemv;
    assert_int_equal(gemv_partials->n_partials, location->f16_rows ? p->n_k_tiles : p->n_slices);
    assert_int_equal(gemv_partials->stride, (location->f16_rows ? p->n_f16_tiles : p->n_tiles) * QN_TILE_ROWS);
    assert_int_equal(gemv_partials->sumsq, p->sumsq);
    if (p->sumsq) {
        assert_int_equal(p->prologue, QN_PROLOGUE_RMS_NORM);
        assert_int_equal(gemv_partials->n_sumsq,
                         fixture.n_rows > 1 ? QN_PERSISTENT_ROWS_SUMSQ(p->n_cols) : p->n_slices);
        assert_int_equal(gemv_partials->n_cols, p->n_cols);
        assert_true(gemv_partials->eps > 0);
        assert_ptr_equal(at(m, p->sumsq)->gemv, p); /* not overwritten by another GEMV */
    }
    return gemv_name(matrix_at(m, location->f16_rows ? p->f16_rows : p->weights, row),
                     location->f16_rows ? location->plain_operand : location->operand);
}

static name operand_of(struct machine *m, const qn_persistent_gemv *p)
{
    switch ((qn_persistent_prologue)p->prologue) {
    case QN_PROLOGUE_PLAIN: return get(m, p->x);
    case QN_PROLOGUE_RMS_NORM: {
        const name x = p->from.n_partials ? NAME(SUM, get(m, p->x), read_partials(m, &p->from, 0)) : get(m, p->x);
        assert_int_not_equal(p->x, p->x_out); /* other blocks still read it */
        put(m, p->x_out, x);
        return NAME(NORM, x, p->weight);
    }
    case QN_PROLOGUE_SWIGLU:
        return NAME(SWIGLU, read_partials(m, &p->from, p->row), read_partials(m, &p->from, p->row2));
    case QN_PROLOGUE_GATED_NORM:
        assert_int_equal(p->head * p->n_heads, p->n_cols);
        assert_int_equal(p->n_heads % p->n_k_heads, 0);
        return NAME(GATED, get(m, p->x), read_partials(m, &p->from, p->row), p->weight, p->grouped);
    case QN_PROLOGUE_ATTENTION_COMBINE:
        assert_int_equal(p->head * p->n_heads, p->n_cols);
        assert_int_equal(get(m, p->maxima), get(m, p->x));
        return NAME(COMBINED, get(m, p->x), p->gated ? read_partials(m, &p->from, p->row) : 0);
    }
    fail_msg("unknown prologue: %u", p->prologue);
    return 0;
}

static void put_partials(struct machine *m, uint64_t address, const struct location *as)
{
    struct location *location = at(m, address);
    *location = *as;
    location->address = address;
}

static void run_gemv(struct machine *m, const qn_persistent_gemv *p)
{
    const qn_persistent_partials *from = &p->from;
    const name plain = fixture.n_rows > 1 ? m->acts_are : operand_of(m, p);
    const struct location location = { .gemv = p,
                                       .operand = rotated_name(plain, p->rotation, p->signs),
                                       .plain_operand = plain };
    if (fixture.n_rows > 1)
        assert_memory_equal(p, m->acts, sizeof *p);
    assert_true(!from->n_partials || from->data != p->out); /* other blocks still read these partials */
    assert_true(p->n_slices && p->slice_blocks && p->n_slices * p->slice_blocks <= m->model->common.matmul.n_sms);
    assert_in_range(p->n_slices * p->slice_k_tiles, p->n_k_tiles, p->n_k_tiles + p->slice_k_tiles - 1);
    put_partials(m, p->out, &location);
    if (p->sumsq)
        put_partials(m, p->sumsq, &location);
    if (p->n_f16_tiles) {
        put_partials(m, p->f16_out, &location);
        at(m, p->f16_out)->f16_rows = true;
    }
}

static void run_delta(struct machine *m, const qn_persistent_delta *s)
{
    const qn_recurrent_shape *r = &m->model->common.plan->recurrent;
    const qn_gpu_recurrent_layout layout = qn_gpu_recurrent_layout_of(r);
    const qn_gdn_open_layout open = layout.open;
    const size_t slot = s->state_offset / layout.state_layer_bytes;
    put(m, s->out,
        NAME(DELTA, read_partials(m, &s->qkv, s->qkv_row), read_partials(m, &s->alpha, s->alpha_row),
             read_partials(m, &s->beta, s->beta_row), slot, s->conv));
    const uint64_t offsets[] = { s->open.keys - open.keys, s->open.values - open.values, s->open.scales - open.scales,
                                 s->open.decays - open.decays, s->open.inputs - open.inputs };
    for (size_t i = 0; i < COUNT(offsets); i++)
        assert_int_equal(offsets[i], slot * open.bytes);
}

static void run_attention(struct machine *m, const qn_persistent_attention *s)
{
    const uint64_t slot = s->cache.keys / m->memory->format->kv.layer_bytes;
    const name is = NAME(ATTENTION, read_partials(m, &s->qkv, s->q_row), read_partials(m, &s->qkv, s->k_row),
                         read_partials(m, &s->qkv, s->v_row), slot, s->query_weight, s->key_weight, s->query_bias,
                         s->key_bias, s->value_bias);
    assert_true(s->n_kv_heads * s->n_splits <= m->model->common.matmul.n_sms &&
                s->n_splits <= QN_PERSISTENT_MAX_SPLITS && s->n_splits);
    put(m, s->partials, is);
    put(m, s->maxima, is);
}

static void run_store_phase(struct machine *m, const qn_persistent_store *s)
{
    assert_in_range(s->n_outs, 1, QN_PERSISTENT_MAX_OUTS);
    for (uint32_t i = 0; i < s->n_outs; i++) {
        name is = s->from.n_partials ? read_partials(m, &s->from, s->outs[i].row) : 0;
        if (s->outs[i].x)
            is = is ? NAME(SUM, get(m, s->outs[i].x), is) : get(m, s->outs[i].x);
        put(m, s->outs[i].out, is);
    }
}

static void run_phase(struct machine *m, const qn_persistent_phase *phase)
{
    switch ((qn_persistent_phase_kind)phase->kind) {
    case QN_PHASE_GEMV: run_gemv(m, &phase->u.gemv); return;
    case QN_PHASE_DELTA: run_delta(m, &phase->u.delta); return;
    case QN_PHASE_ATTENTION: run_attention(m, &phase->u.attention); return;
    case QN_PHASE_STORE: run_store_phase(m, &phase->u.store); return;
    case QN_PHASE_ACTS:
        assert_true(fixture.n_rows > 1);
        m->acts = &phase->u.gemv;
        m->acts_are = operand_of(m, m->acts);
        return;
    }
    fail_msg("unknown phase: %u", phase->kind);
}

static void run_persistent(struct machine *m, const qn_cuda_segment *segment)
{
    const qn_persistent_phase *phases = &fixture.decode_plan.phases[segment->phase];
    uint32_t next = 0;
    while (next < segment->n_phases && phases[next].kind != QN_PHASE_GEMV)
        next++;
    assert_true(segment->phase + segment->n_phases <= fixture.decode_plan.n_phases);
    for (size_t i = 0; i < segment->n_phases; i++) {
        label("phase %zu", i);
        if (phases[i].kind == QN_PHASE_GEMV) {
            assert_int_equal(next, i);
            next = phases[i].next_gemv;
            assert_true(next > i);
        }
        assert_int_equal(phases[i].next_gemv, next);
        run_phase(m, &phases[i]);
    }
    assert_int_equal(next, segment->n_phases);
}

/* ---- Comparison of both ---- */

struct counts {
    size_t persistent, launched, gemms, stores, acts;
};

static struct counts count(void)
{
    struct counts c = { 0 };
    for (size_t i = 0; i < fixture.decode_plan.n_segments; i++) {
        c.persistent += fixture.decode_plan.segments[i].n_phases != 0;
        c.launched += fixture.decode_plan.segments[i].n_phases == 0;
    }
    for (size_t i = 0; i < fixture.decode_plan.n_phases; i++) {
        c.gemms += fixture.decode_plan.phases[i].kind == QN_PHASE_GEMV;
        c.stores += fixture.decode_plan.phases[i].kind == QN_PHASE_STORE;
        c.acts += fixture.decode_plan.phases[i].kind == QN_PHASE_ACTS;
    }
    return c;
}

static void check_same(void)
{
    static struct machine plan, decode_plan;
    const qn_plan *p = &fixture.cuda.plan;
    plan = decode_plan = (struct machine){ .model = fixture.model, .memory = (qn_gpu_memory *)fixture.memory };
    size_t next = 0, n = p->n_ops - 2;
    for (size_t i = 0; i < n; i++)
        run_op(&plan, &p->ops[i]);
    for (size_t i = 0; i < fixture.decode_plan.n_segments; i++) {
        label("segment %zu", i);
        const qn_cuda_segment *segment = &fixture.decode_plan.segments[i];
        assert_int_equal(segment->op, next);
        assert_true(segment->n_ops);
        next += segment->skip_acts ? 0 : segment->n_ops;
        for (size_t k = segment->op; segment->n_phases && k < segment->op + segment->n_ops; k++)
            assert_int_not_equal(qn_op_desc_of(p->ops[k].kind)->phase, QN_PHASE_OF_NONE);
        if (segment->n_phases)
            run_persistent(&decode_plan, segment);
        else
            run_op(&decode_plan, &p->ops[segment->op]);
    }
    assert_int_equal(next, n);
    const int out = p->ops[n].norm.in;
    assert_int_equal(get(&plan, buffer_address(&plan, out)), get(&decode_plan, buffer_address(&decode_plan, out)));
}

/* ---- Tests ---- */

static const struct shape hybrid = { .n_layers = 8,
                                     .interval = 4,
                                     .embd = 2560,
                                     .ff = 4352,
                                     .heads = 6,
                                     .kv = 2,
                                     .head_dim = 256,
                                     .gated = true,
                                     .k_heads = 4,
                                     .v_heads = 12,
                                     .head = 128,
                                     .type = QN_TYPE_Q1_0,
                                     .gates = QN_TYPE_Q1_0 };
static const struct shape dense = { .n_layers = 5,
                                    .interval = 1,
                                    .embd = 1024,
                                    .ff = 3072,
                                    .heads = 8,
                                    .kv = 2,
                                    .head_dim = 128,
                                    .type = QN_TYPE_PQ2_0,
                                    .gates = QN_TYPE_PQ2_0 };

static struct counts counts_of(const struct shape *shape, unsigned bits)
{
    set_up(NULL, shape, bits);
    plan_rows(8);
    check_same();
    const struct counts rows = count();
    plan_rows(1);
    check_same();
    const struct counts c = count();
    if (!shape->v_heads || shape->head == 128) { /* else gated norms are launched with their matmuls */
        if (!bits) {                             /* several rows attend to codes in launches */
            assert_int_equal(rows.persistent, c.persistent);
            assert_int_equal(rows.stores, c.stores);
        }
        assert_int_equal(rows.gemms, c.gemms);
        assert_int_equal(rows.acts, rows.gemms);
    }
    assert_int_equal(c.acts, 0);
    tear_down();
    return c;
}

/* All layers are one launch, also the first, whose activations separate launches quantise with higher precision. */
TEST(whole_models_are_one_launch)
{
    struct counts c = counts_of(&hybrid, 0);
    assert_int_equal(c.persistent, 1);
    assert_int_equal(c.launched, 1); /* the embedding */
    assert_int_equal(c.gemms, 8 * 4);
    assert_int_equal(c.stores, 1);
    c = counts_of(&hybrid, 4);
    assert_int_equal(c.persistent, 1);
    assert_int_equal(c.stores, 1);
    c = counts_of(&dense, 0);
    assert_int_equal(c.persistent, 1);
    assert_int_equal(c.launched, 1);
    assert_int_equal(c.gemms, 5 * 4);
    c = counts_of(&dense, 4);
    assert_int_equal(c.persistent, 1);
    struct shape rotated = hybrid;
    rotated.type = QN_TYPE_PTQ1_0;
    rotated.gates = QN_TYPE_F16;
    rotated.rotation = 256;
    c = counts_of(&rotated, 0);
    assert_int_equal(c.persistent, 1);
    assert_int_equal(c.gemms, 8 * 4);
}

/* Operations that are not supported are launched between segments of phases. */
TEST(persistent_segments_end_at_launches)
{
    struct counts c = counts_of(&hybrid, 8);
    assert_int_equal(c.persistent, 3); /* up to the first keys, and from each output to the next keys */
    assert_int_equal(c.gemms, 8 * 4);
    assert_int_equal(c.stores, 3);
    struct shape other = hybrid;
    other.head = 64; /* of recurrent layers */
    c = counts_of(&other, 0);
    assert_int_equal(c.gemms, 8 * 4);
    assert_int_equal(c.persistent, 7);
    other = dense;
    other.head_dim = 96;
    assert_int_equal(counts_of(&other, 4).stores, 6);
    c = counts_of(&other, 0);
    assert_int_equal(c.gemms, 5 * 4);
    assert_int_equal(c.persistent, 6);
    other = hybrid;
    other.odd = QN_TYPE_Q8_0;
    c = counts_of(&other, 0);
    assert_int_equal(c.persistent, 2);
    assert_int_equal(c.gemms, 8 * 4 - 1);
    other.odd = QN_TYPE_Q2_0; /* another tile layout */
    c = counts_of(&other, 4);
    assert_int_equal(c.gemms, 8 * 4 - 1);
}

/* Unsupported weights are no error: all operations are launched. */
TEST(other_weights_are_launched)
{
    struct shape other = dense;
    other.type = QN_TYPE_F16;
    struct counts c = counts_of(&other, 0);
    assert_int_equal(c.persistent, 0);
    assert_int_equal(c.launched, 1 + 5 * 10);
    other = hybrid;
    other.type = other.gates = QN_TYPE_Q8_0;
    assert_int_equal(counts_of(&other, 3).persistent, 0);
    setenv("QN_CUDA", "launches", 1);
    c = counts_of(&hybrid, 0);
    unsetenv("QN_CUDA");
    assert_int_equal(c.persistent, 0);
    assert_int_equal(c.launched, 1 + 2 * (10 + 3 * 10));
    setenv("QN_CUDA", "persistent", 1);
    c = counts_of(&hybrid, 0);
    unsetenv("QN_CUDA");
    assert_true(c.persistent > 0);
}

TEST(unknown_settings_are_refused)
{
    qn_device *device;
    set_up(NULL, &dense, 0);
    const qn_cuda_executor_params params = { .base = { .plan = &fixture.cuda.plan,
                                                       .team = fixture.cuda.team } }; /* rejected
                                                                             before the
                                                                             driver is
                                                                             loaded */
    static const char *const unknown[] = { "fast", "chains", "Persistent" };
    for (size_t i = 0; i < COUNT(unknown); i++) {
        label("%s", unknown[i]);
        setenv("QN_CUDA", unknown[i], 1);
        const qn_status status = qn_cuda_executor_create(&params, &device);
        unsetenv("QN_CUDA");
        assert_fails(status, QN_ERR_INVALID, "expected persistent or launches");
        assert_text(unknown[i]);
    }
    tear_down();
}

TEST(small_models_too)
{
    static const char *const models[] = { "llama.q1_0",          "llama.ptq1_0",       "qwen2.q1_0",
                                          "qwen3.f16",           "qwen3.pq2_0",        "qwen3.q2_0",
                                          "qwen35-rotated.q1_0", "qwen35-rotated.f16", "qwen35.ptq1_0" };
    for (size_t i = 0; i < COUNT(models); i++)
        for (unsigned bits = 0; bits <= 4; bits += 4) {
            label("%s, %u bits", models[i], bits);
            if (bits && strncmp(models[i], "qwen", 4))
                continue; /* AURA has no codec for their heads */
            set_up(models[i], NULL, bits);
            for (uint32_t n_rows = 1; n_rows <= 2; n_rows++) {
                plan_rows(n_rows);
                check_same();
            }
            tear_down();
        }
}

int main(void)
{
    unsetenv("QN_CUDA");
    return run_all_tests();
}
