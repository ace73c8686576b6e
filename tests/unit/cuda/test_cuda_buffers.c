/* The memory that a model takes on a GPU without sequences, with a fake driver. */
#include "helper_cuda_model.h"
#include "helper_plan.h"

#include "cuda/executor/model.h"

/* The shapes of a hybrid model of 27B weights of which there are four layers. */
static const struct shape of_27b = { .n_layers = 4,
                                     .interval = 4,
                                     .embd = 5120,
                                     .ff = 17408,
                                     .heads = 24,
                                     .kv = 4,
                                     .head_dim = 256,
                                     .gated = true,
                                     .k_heads = 16,
                                     .v_heads = 48,
                                     .head = 128,
                                     .type = QN_TYPE_Q1_0,
                                     .gates = QN_TYPE_F32 };

enum { ROWS = 2048, POSITIONS = 32768, VOCABULARY = 248320, MAX_USED = 64 };

static void set_up(struct cuda_fixture *x, size_t vocabulary)
{
    memset(x, 0, sizeof *x);
    build_plan(&x->plan, &of_27b);
    x->plan.n_vocab = vocabulary;
    x->hparams.n_layers = (uint32_t)of_27b.n_layers;
    x->hparams.head_dim = (uint32_t)of_27b.head_dim;
    create_device(x, 0);
}

/* With a context, kernels and graphs this leaves a scheduler of such a model without requests below 1.5 GB besides its
 * weights. */
TEST(a_workspace_is_small)
{
    struct cuda_fixture x;
    set_up(&x, VOCABULARY);
    const size_t before = fake.allocated;
    assert_ok(x.device->vtable->reserve(x.device, ROWS, POSITIONS));
    assert_in_range(fake.allocated - before, 1, (size_t)900 << 20);
    /* Steps that need no more allocate nothing. */
    const size_t allocated = fake.allocated;
    assert_ok(x.device->vtable->reserve(x.device, 1, POSITIONS));
    assert_ok(x.device->vtable->reserve(x.device, ROWS, 64));
    assert_int_equal(fake.allocated, allocated);
    free_device(&x);
}

/* ---- What shares memory ---- */

struct used {
    qn_cuda_buffer at[MAX_USED];
    size_t n;
};

static void use(struct used *u, qn_cuda_buffer buffer)
{
    for (size_t i = 0; i < u->n; i++)
        if (u->at[i].address == buffer.address && u->at[i].bytes == buffer.bytes)
            return; /* the same one */
    for (size_t i = 0; i < u->n; i++)
        if (u->at[i].address < buffer.address + buffer.bytes && buffer.address < u->at[i].address + u->at[i].bytes)
            fail_msg("buffers %zu and %zu overlap", i, u->n);
    assert_in_range(u->n, 0, MAX_USED - 1);
    u->at[u->n++] = buffer;
}

static void use_buffers_of(struct used *u, const qn_cuda_model *model, const qn_op *op)
{
    qn_op_operand operands[QN_OP_OPERANDS];
    const size_t n = qn_op_operands(op, operands);
    for (size_t i = 0; i < n; i++)
        if (!operands[i].is_acts && operands[i].index >= 0)
            use(u, model->workspace.buffers[operands[i].index]);
    if (op->kind == QN_OP_ATTENTION) {
        use(u, model->workspace.partials);
        use(u, model->workspace.maxima);
    } else if (op->kind == QN_OP_DELTA_RULE) {
        use(u, model->workspace.gates);
        use(u, model->workspace.delta_workspace);
    } else if (op->kind == QN_OP_LOGITS) {
        use(u, model->workspace.gathered);
        use(u, model->workspace.logits);
    }
}

/* From a norm, which reads the residual stream, to the next. */
TEST(parts_of_layers_have_their_buffers)
{
    struct cuda_fixture x;
    struct used used = { .n = 0 };
    set_up(&x, 1000);
    assert_ok(x.device->vtable->reserve(x.device, 100, POSITIONS));
    const qn_cuda_model *model = (const qn_cuda_model *)x.device;
    for (size_t i = 0; i < x.plan.n_ops; i++) {
        const qn_op *op = &x.plan.ops[i];
        if (op->kind == QN_OP_NORM || op->kind == QN_OP_LOGIT_NORM)
            used.n = 0;
        use(&used, model->workspace.scratch);
        use_buffers_of(&used, model, op);
    }
    for (size_t i = 0; i < x.plan.n_buffers; i++)
        assert_true(model->workspace.buffers[i].bytes >= 100 * x.plan.buffers[i].width * sizeof(float));
    free_device(&x);
}
