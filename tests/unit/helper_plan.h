/* Plans of models that have shapes but no weights. */
#ifndef QN_TESTS_HELPER_PLAN_H
#define QN_TESTS_HELPER_PLAN_H

#include "helper_assert.h"

#include "base/memory.h"
#include "plan/plan.h"

/* The shapes of a synthetic model. Its matrices have distinct addresses and no contents. */
struct shape {
    size_t n_layers, interval; /* every interval-th layer is attention; 1: all */
    size_t embd, ff, heads, kv, head_dim;
    bool gated;
    size_t k_heads, v_heads, head;
    qn_type type, gates; /* type of alpha and beta, which are not rotated */
    size_t rotation;
    qn_type odd; /* type of one layer's down matrix; 0: `type` */
};

struct builder {
    const struct shape *shape;
    qn_plan *plan;
    uintptr_t next;
    int x, q, queries, k, v, attention, gate, up, qkv, conv, z, alpha, beta, o;
    float *vector;
};

static inline qn_matrix matrix(struct builder *b, qn_type type, size_t rows, size_t cols)
{
    qn_matrix m = { .type = qn_type_find(type), .n_rows = rows, .n_cols = cols };
    m.row_bytes = cols / m.type->block_weights * m.type->block_bytes;
    m.data = (const uint8_t *)(b->next += 64);
    return m;
}

struct wanted {
    qn_matrix matrix;
    int out;
    bool plain;
};

static inline void add_gemms(struct builder *b, qn_op writer, const struct wanted *wanted, size_t n, bool accumulate)
{
    const bool logits = qn_op_is_logits(&writer);
    const size_t width = wanted[0].matrix.n_cols;
    qn_op_acts *acts = qn_op_acts_of(&writer);
    qn_op op = { .kind = logits ? QN_OP_LOGITS : QN_OP_MATMUL, .layer = writer.layer, .matmul.matrices.n = n };
    for (int rotated = 0; rotated < (b->shape->rotation ? 2 : 1); rotated++) {
        bool first = true;
        for (size_t i = 0; i < n; i++) {
            if (rotated != (b->shape->rotation && !wanted[i].plain))
                continue;
            const qn_plan_rotation acts_rotation = { rotated ? b->shape->rotation : 0, NULL };
            if (first)
                assert_ok(qn_plan_acts_for(b->plan, width, writer.layer == 0 && !logits, acts_rotation,
                                           &acts->at[acts->n++]));
            first = false;
            op.matmul.matrices.at[i] = (qn_op_matrix){ .weights = wanted[i].matrix,
                                                       .acts = acts->at[acts->n - 1],
                                                       .out = wanted[i].out,
                                                       .accumulate = accumulate };
        }
    }
    assert_ok(qn_plan_add(b->plan, &writer));
    assert_ok(qn_plan_add(b->plan, &op));
}

static inline void add_layer(struct builder *b, int layer)
{
    const struct shape *s = b->shape;
    const qn_attention_shape shape = b->plan->heads;
    const size_t q = s->heads * s->head_dim, kv = s->kv * s->head_dim, inner = s->v_heads * s->head;
    const qn_op norm = { .kind = QN_OP_NORM,
                         .layer = layer,
                         .norm = { .in = b->x, .weight = b->vector, .eps = 1e-6f } };
    if (b->plan->is_recurrent && b->plan->is_recurrent[layer]) {
        const qn_op conv = { .kind = QN_OP_CONV,
                             .layer = layer,
                             .conv = { .qkv = b->qkv,
                                       .alpha = b->alpha,
                                       .beta = b->beta,
                                       .out = b->conv,
                                       .taps = b->vector,
                                       .bias = b->vector,
                                       .factor = b->vector } };
        const qn_op delta = { .kind = QN_OP_DELTA_RULE,
                              .layer = layer,
                              .delta_rule = { .qkv = b->conv, .g = b->alpha, .beta = b->beta, .out = b->o } };
        const qn_op out = { .kind = QN_OP_GATED_NORM,
                            .layer = layer,
                            .gated_norm = { .in = b->o,
                                            .gate = b->z,
                                            .conv_in = b->qkv,
                                            .conv_out = b->conv,
                                            .g = b->alpha,
                                            .weight = b->vector,
                                            .eps = 1e-6f,
                                            .grouped = s->rotation != 0 } };
        add_gemms(b, norm,
                  (struct wanted[]){ { matrix(b, s->type, 2 * s->k_heads * s->head + inner, s->embd), b->qkv, false },
                                     { matrix(b, s->type, inner, s->embd), b->z, false },
                                     { matrix(b, s->gates, s->v_heads, s->embd), b->alpha, true },
                                     { matrix(b, s->gates, s->v_heads, s->embd), b->beta, true } },
                  4, false);
        assert_ok(qn_plan_add(b->plan, &conv));
        assert_ok(qn_plan_add(b->plan, &delta));
        add_gemms(b, out, &(struct wanted){ matrix(b, s->type, s->embd, inner), b->x, false }, 1, true);
    } else {
        const qn_op store = { .kind = QN_OP_QK_NORM_ROPE_STORE,
                              .layer = layer,
                              .qk_norm_rope_store = { .queries = b->queries,
                                                      .keys = b->k,
                                                      .values = b->v,
                                                      .out = b->q,
                                                      .q_norm = b->vector,
                                                      .k_norm = b->vector,
                                                      .eps = 1e-6f,
                                                      .shape = shape } };
        const qn_op attend = { .kind = QN_OP_ATTENTION,
                               .layer = layer,
                               .attention = { .queries = b->q, .out = b->attention, .shape = shape } };
        const qn_op out = { .kind = QN_OP_ATTENTION_COMBINE,
                            .layer = layer,
                            .attention_combine = { .in = b->attention, .queries = b->queries, .shape = shape } };
        add_gemms(b, norm,
                  (struct wanted[]){ { matrix(b, s->type, s->gated ? 2 * q : q, s->embd), b->queries, false },
                                     { matrix(b, s->type, kv, s->embd), b->k, false },
                                     { matrix(b, s->type, kv, s->embd), b->v, false } },
                  3, false);
        assert_ok(qn_plan_add(b->plan, &store));
        assert_ok(qn_plan_add(b->plan, &attend));
        add_gemms(b, out, &(struct wanted){ matrix(b, s->type, s->embd, q), b->x, false }, 1, true);
    }
    const qn_type down = s->odd && layer == 2 ? s->odd : s->type;
    add_gemms(b, norm,
              (struct wanted[]){ { matrix(b, s->type, s->ff, s->embd), b->gate, false },
                                 { matrix(b, s->type, s->ff, s->embd), b->up, false } },
              2, false);
    add_gemms(b, (qn_op){ .kind = QN_OP_SWIGLU, .layer = layer, .swiglu = { .gate = b->gate, .up = b->up } },
              &(struct wanted){ matrix(b, down, s->embd, s->ff), b->x, false }, 1, true);
}

static inline void build_plan(qn_plan *plan, const struct shape *s)
{
    struct builder b = { .shape = s, .plan = plan, .next = 4096 };
    const size_t q = s->heads * s->head_dim, inner = s->v_heads * s->head, width = 2 * s->k_heads * s->head + inner;
    const size_t widths[] = { s->embd, q,    s->gated ? 2 * q : q, s->kv * s->head_dim, s->kv * s->head_dim, q,
                              s->ff,   s->ff };
    int *const ids[] = { &b.x, &b.q, &b.queries, &b.k, &b.v, &b.attention, &b.gate, &b.up };
    const size_t delta_widths[] = { width, width, inner, s->v_heads, s->v_heads, inner };
    int *const delta_ids[] = { &b.qkv, &b.conv, &b.z, &b.alpha, &b.beta, &b.o };
    plan->n_vocab = 100;
    plan->n_layers = s->n_layers;
    plan->heads = (qn_attention_shape){ .n_heads = s->heads,
                                        .n_kv_heads = s->kv,
                                        .head_dim = s->head_dim,
                                        .n_rot = 64,
                                        .rope = QN_ROPE_TYPE_NEOX,
                                        .scale = 1,
                                        .gated = s->gated };
    for (size_t i = 0; i < COUNT(ids); i++)
        assert_ok(qn_plan_buffer_new(plan, widths[i], ids[i]));
    assert_ok(qn_plan_alloc_floats(plan, 1 << 16, &b.vector));
    assert_ok(qn_alloc(&plan->frequencies, 32, sizeof(double), "test"));
    if (s->interval > 1) {
        assert_ok(qn_alloc(&plan->is_recurrent, s->n_layers, sizeof *plan->is_recurrent, "test"));
        plan->recurrent = (qn_recurrent_shape){ s->k_heads, s->v_heads, s->head, s->head, 4 };
        for (size_t i = 0; i < s->n_layers; i++)
            plan->is_recurrent[i] = (i + 1) % s->interval != 0;
        for (size_t i = 0; i < COUNT(delta_ids); i++)
            assert_ok(qn_plan_buffer_new(plan, delta_widths[i], delta_ids[i]));
    }
    assert_ok(qn_plan_add(plan, &(qn_op){ .kind = QN_OP_EMBED,
                                          .layer = -1,
                                          .embed = { .out = b.x, .table = matrix(&b, s->type, 100, s->embd) } }));
    for (size_t i = 0; i < s->n_layers; i++)
        add_layer(&b, (int)i);
    add_gemms(&b, (qn_op){ .kind = QN_OP_LOGIT_NORM, .layer = -1, .norm = { .in = b.x, .weight = b.vector } },
              &(struct wanted){ matrix(&b, s->type, 100, s->embd), -1, false }, 1, false);
    assert_ok(qn_plan_validate(plan));
}

#endif
