/* A model's weights on the device: matrices rearranged into tiles as they come (kernels/matmul/matmul_cuda.h), each once;
 * vectors, few and small, side by side. */
#include "device/cuda/model.h"

#include "base/memory.h"
#include "kernels/matmul/embed_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { VECTOR_UNIT = 64 }; /* floats: a vector begins at a multiple of 256 bytes */

/* ---- Areas ---- */

static bool is_product(const qn_op *op)
{
    return op->kind == QN_OP_MATMUL || op->kind == QN_OP_LOGITS;
}

/* The operation whose matrix is the embedding table, too; NULL for none. */
static const qn_op *output_of_table(const qn_plan *plan)
{
    const qn_op *embed = &plan->ops[0];
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == QN_OP_LOGITS && plan->ops[i].matrices[0].weights.data == embed->matrices[0].weights.data)
            return &plan->ops[i];
    return NULL;
}

static bool embeds(const qn_plan *plan)
{
    return qn_matmul_gpu_embeds(plan->ops[0].matrices[0].weights.type, plan->ops[0].inverse.block);
}

static bool has_areas(const qn_plan *plan, const qn_op *op)
{
    return is_product(op) || (op->kind == QN_OP_EMBED && embeds(plan) && !output_of_table(plan));
}

/* The product of the operation that this matrix can be part of, or a new one. */
static qn_cuda_product *product_for(qn_cuda_op *op, int acts, const qn_matmul_tiles *tiles)
{
    for (size_t i = 0; i < op->n_products; i++)
        if (op->products[i].acts == acts && qn_cuda_same_tiles(&op->products[i].area.tiles, tiles))
            return &op->products[i];
    qn_cuda_product *product = &op->products[op->n_products++];
    *product = (qn_cuda_product){ .area.tiles = *tiles, .acts = acts };
    return product;
}

static qn_status create_areas(qn_cuda_model *model, const qn_op *op, qn_cuda_op *to)
{
    for (size_t i = 0; i < op->n_matrices; i++) {
        const qn_matrix *weights = &op->matrices[i].weights;
        const qn_matmul_tiles tiles = qn_matmul_gpu_tiles(weights->type);
        qn_cuda_product *product = product_for(to, op->matrices[i].acts, &tiles);
        qn_matmul_area *area = &product->area;
        area->n_cols = weights->n_cols;
        product->matrices[area->n_outs] = i;
        area->outs[area->n_outs++] = (qn_matmul_out){ .first_tile = (uint32_t)area->n_tiles,
                                                      .n_rows = (uint32_t)weights->n_rows,
                                                      .accumulate = op->matrices[i].accumulate };
        area->n_tiles += qn_matmul_gpu_tile_count(weights->n_rows);
    }
    for (size_t i = 0; i < to->n_products; i++) {
        qn_cuda_product *product = &to->products[i];
        size_t bytes;
        QN_TRY(qn_matmul_gpu_bytes(&product->area.tiles, product->area.n_tiles, product->area.n_cols, &bytes));
        QN_TRY(qn_cuda_alloc(model->cuda, bytes, 1, "weights on the GPU", &product->memory));
        product->area.address = product->memory.address;
    }
    return QN_OK;
}

/* ---- Vectors ---- */

/* Vectors on their way: counted first, then put together and uploaded at once. */
struct vectors {
    uint8_t *host; /* NULL while counting */
    uint64_t address;
    size_t used;
};

static void add_vector(struct vectors *v, const void *data, size_t count, size_t size, uint64_t *address)
{
    *address = 0;
    if (!data)
        return;
    if (v->host)
        memcpy(v->host + v->used, data, count * size);
    *address = v->address + v->used;
    v->used += qn_round_up(count * size, VECTOR_UNIT * sizeof(float));
}

static void add_op_vectors(const qn_plan *plan, const qn_op *op, qn_cuda_op *to, struct vectors *v)
{
    const qn_recurrent_shape *r = &plan->recurrent;
    size_t n = 0, n2 = 0, n3 = 0;
    switch (op->kind) {
    case QN_OP_NORM:
    case QN_OP_LOGIT_NORM: n = plan->buffers[op->in].width; break;
    case QN_OP_HEADS: n = n2 = op->heads.head_dim; break;
    case QN_OP_CONV:
        n = r->taps * qn_recurrent_width(r);
        n2 = n3 = r->n_v_heads;
        break;
    case QN_OP_DELTA_OUT: n = r->head_v; break;
    case QN_OP_EMBED:
        add_vector(v, op->inverse.signs, op->inverse.block ? plan->buffers[op->out].width : 0, sizeof(float), &to->weight);
        return;
    default: break;
    }
    add_vector(v, n ? op->weight : NULL, n, sizeof(float), &to->weight);
    add_vector(v, n2 ? op->weight2 : NULL, n2, sizeof(float), &to->weight2);
    add_vector(v, n3 ? op->weight3 : NULL, n3, sizeof(float), &to->weight3);
}

static void add_vectors(qn_cuda_model *model, struct vectors *v)
{
    const qn_plan *plan = model->plan;
    v->used = 0;
    for (size_t i = 0; i < plan->n_ops; i++)
        add_op_vectors(plan, &plan->ops[i], &model->ops[i], v);
    for (size_t i = 0; i < plan->n_acts; i++)
        add_vector(v, plan->acts[i].rotation.block ? plan->acts[i].rotation.signs : NULL, plan->acts[i].width, sizeof(float),
                   &model->acts[i].signs);
    add_vector(v, plan->frequencies, plan->heads.n_rot / 2, sizeof(double), &model->frequencies);
}

static qn_status create_vectors(qn_cuda_model *model)
{
    struct vectors v = { 0 };
    add_vectors(model, &v);
    QN_TRY(qn_cuda_alloc(model->cuda, v.used, 1, "vectors on the GPU", &model->vectors));
    QN_TRY(qn_alloc(&v.host, v.used, 1, "vectors"));
    v.address = model->vectors.address;
    add_vectors(model, &v);
    const qn_status status = qn_cuda_upload(model->cuda, v.address, v.host, v.used, NULL, NULL);
    qn_free(v.host);
    return status;
}

/* Plans begin with the embedding. */
static void find_table(qn_cuda_model *model)
{
    const qn_op *output = output_of_table(model->plan);
    const qn_cuda_op *op = &model->ops[output ? output - model->plan->ops : 0];
    if (!embeds(model->plan))
        return;
    model->table = (qn_cuda_table){ .area = &op->products[0].area,
                                    .first_tile = op->products[0].area.outs[0].first_tile,
                                    .signs = model->ops[0].weight };
}

qn_status qn_cuda_weights_create(qn_cuda_model *model)
{
    QN_TRY(qn_alloc(&model->ops, model->plan->n_ops, sizeof *model->ops, "plan"));
    for (size_t i = 0; i < model->plan->n_ops; i++)
        if (has_areas(model->plan, &model->plan->ops[i]))
            QN_TRY(create_areas(model, &model->plan->ops[i], &model->ops[i]));
    QN_TRY(create_vectors(model));
    find_table(model);
    return QN_OK;
}

void qn_cuda_weights_free(qn_cuda_model *model)
{
    for (size_t i = 0; model->ops && i < model->plan->n_ops; i++)
        for (size_t p = 0; p < model->ops[i].n_products; p++)
            qn_cuda_release(model->cuda, &model->ops[i].products[p].memory);
    qn_cuda_release(model->cuda, &model->vectors);
    qn_cuda_release(model->cuda, &model->stage);
    qn_free(model->ops);
}

/* ---- Uploads ---- */

/* Rows of a type that the kernels do not read, as halves. */
struct conversion {
    const qn_matrix *weights;
    uint16_t *halves;
    float *scratch; /* [threads][n_cols] */
    qn_team *team;
};

static void convert_share(void *context, int thread)
{
    const struct conversion *c = context;
    const size_t n = c->weights->n_cols;
    size_t begin, end;
    qn_team_share(c->weights->n_rows, 1, thread, qn_team_size(c->team), &begin, &end);
    for (size_t row = begin; row < end; row++)
        qn_matmul_gpu_halves(c->weights->type, c->weights->data + row * c->weights->row_bytes, n,
                             c->scratch + (size_t)thread * n, c->halves + row * n);
}

static qn_status convert(const qn_cuda_model *model, const qn_matrix *weights, uint16_t **halves)
{
    struct conversion c = { .weights = weights, .team = model->team };
    size_t row;
    *halves = NULL;
    if (!qn_mul_size(weights->n_cols, sizeof *c.halves, &row))
        return qn_fail(QN_ERR_MEMORY, "weights: rows of %zu do not fit in memory", weights->n_cols);
    QN_TRY(qn_alloc(&c.scratch, (size_t)qn_team_size(model->team), weights->n_cols * sizeof *c.scratch, "weights"));
    const qn_status status = qn_alloc(&c.halves, weights->n_rows, row, "weights");
    if (status == QN_OK)
        qn_team_run(model->team, convert_share, &c);
    qn_free(c.scratch);
    *halves = c.halves;
    return status;
}

static qn_status stage_bytes(qn_cuda_model *model, size_t bytes)
{
    if (bytes <= model->stage.bytes && model->stage.address)
        return QN_OK;
    qn_cuda_release(model->cuda, &model->stage);
    return qn_cuda_alloc(model->cuda, bytes, 1, "weights on their way", &model->stage);
}

static qn_status upload_rows(qn_cuda_model *model, const qn_cuda_product *product, size_t out, const void *rows, size_t n_rows,
                             size_t row_bytes)
{
    qn_matmul_launch pack;
    QN_TRY(stage_bytes(model, n_rows * row_bytes));
    QN_TRY(qn_cuda_upload(model->cuda, model->stage.address, rows, n_rows * row_bytes, NULL, NULL));
    QN_TRY(
        qn_matmul_gpu_pack(&product->area, model->stage.address, row_bytes, n_rows, product->area.outs[out].first_tile, &pack));
    QN_TRY(qn_cuda_launch(model->cuda, model->stream, &pack.launch, &pack.args));
    return qn_cuda_stream_wait(model->cuda, model->stream); /* the next rows take the same place */
}

static qn_status upload_matrix(qn_cuda_model *model, qn_cuda_product *product, size_t out, const qn_matrix *weights)
{
    qn_cuda_product as = *product; /* matrices of one layout may be stored differently */
    as.area.tiles = qn_matmul_gpu_tiles(weights->type);
    if (!as.area.tiles.as_halves)
        return upload_rows(model, &as, out, weights->data, weights->n_rows, weights->row_bytes);
    uint16_t *halves;
    qn_status status = convert(model, weights, &halves);
    if (status == QN_OK)
        status = upload_rows(model, &as, out, halves, weights->n_rows, weights->n_cols * sizeof *halves);
    qn_free(halves);
    return status;
}

qn_status qn_cuda_weights_upload(qn_cuda_model *model, const uint8_t *data, bool *taken)
{
    *taken = false;
    for (size_t i = 0; i < model->plan->n_ops; i++) {
        const qn_op *op = &model->plan->ops[i];
        for (size_t p = 0; p < model->ops[i].n_products; p++) {
            qn_cuda_product *product = &model->ops[i].products[p];
            for (size_t out = 0; out < product->area.n_outs; out++) {
                const qn_matrix *weights = &op->matrices[product->matrices[out]].weights;
                if (weights->data != data)
                    continue;
                QN_TRY(upload_matrix(model, product, out, weights));
                *taken = true;
            }
        }
    }
    return QN_OK;
}
