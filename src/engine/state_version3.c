/* Converts the contents of a session file of version 3 from a GPU to the layout of the CPU, which every device restores
 * from. */
#include "engine/state_version3.h"

#include "base/memory.h"
#include "kernels/attention/attention.h"

#include <string.h>

enum { PAGE = QN_KV_PAGE, LAYER_ALIGN = 256 };

/* The contents in the CPU's layout. */
struct image {
    qn_extent extent;
    size_t length; /* tokens of the file */
    qn_kv_layout kv;
    qn_recurrent_layout recurrent; /* zeros without recurrent layers */
    qn_kv_view view;
    qn_recurrent_view recurrent_view;
    uint8_t *pages, *f16_pages;  /* all complete pages; page 0 and the open page */
    uint32_t *table, *f16_table; /* [pages of the sequence] */
    float *state;                /* then the open chunk */
    uint8_t *layer;              /* of the file */
    size_t next_region, next_array;
};

/* ---- Sizes ---- */

static size_t n_quantized(size_t length)
{
    return length > PAGE ? length / PAGE * PAGE - PAGE : 0;
}

static uint64_t attention_layer_bytes(const qn_kv_layout *kv, size_t length)
{
    const qn_kv_view *view = &kv->view;
    const uint64_t row = kv->head_dim * sizeof(uint16_t);
    if (!view->key_codec)
        return view->n_heads * 2 * length * row;
    const uint64_t code_row = (qn_aura_row_words(kv->head_dim, view->key_codec->bits) +
                               qn_aura_row_words(kv->head_dim, view->value_codec->bits)) *
                                  sizeof(uint32_t) +
                              2 * sizeof(float),
                   mean = length < PAGE ? 0 : kv->head_dim * sizeof(float);
    return view->n_heads * (n_quantized(length) * code_row + (length - n_quantized(length)) * 2 * row + mean);
}

static size_t recurrent_layer_bytes(const qn_recurrent_shape *s)
{
    const size_t floats = s->n_v_heads * s->head_v * s->head_k + s->taps * qn_recurrent_width(s);
    return qn_round_up(floats * sizeof(float), LAYER_ALIGN);
}

/* The layouts of a session's model. Free with free_layouts also after a failure. */
static qn_status create_layouts(const qn_session *session, struct image *image)
{
    const qn_plan *plan = &session->model->plan;
    const qn_kv_shape shape = { .is_recurrent = plan->is_recurrent,
                                .n_layers = plan->n_layers,
                                .n_heads = plan->heads.n_kv_heads,
                                .head_dim = plan->heads.head_dim };
    qn_kv_codecs codecs;
    QN_TRY(qn_model_kv_codecs(session->model, session->format, &codecs));
    QN_TRY(qn_kv_layout_create(&image->kv, &shape, codecs));
    return session->is_recurrent
               ? qn_recurrent_layout_create(&plan->recurrent, plan->is_recurrent, plan->n_layers, &image->recurrent)
               : QN_OK;
}

static void free_image(struct image *image)
{
    qn_kv_layout_free(&image->kv);
    qn_recurrent_layout_free(&image->recurrent);
    qn_free(image->pages);
    qn_free(image->f16_pages);
    qn_free(image->table);
    qn_free(image->f16_table);
    qn_free(image->state);
    qn_free(image->layer);
}

qn_extent qn_state_version3_extent(const qn_session *session, uint32_t length)
{
    if (!session->is_recurrent)
        return (qn_extent){ .length = length };
    if (length < PAGE)
        return (qn_extent){ 0 };
    return (qn_extent){ .length = length, .state_position = length / PAGE * PAGE, .shortest = length };
}

qn_status qn_state_version3_bytes(const qn_session *session, uint32_t length, uint64_t *bytes)
{
    struct image image = { 0 };
    const qn_status status = create_layouts(session, &image);
    if (status == QN_OK)
        *bytes = image.kv.view.n_kv_layers * attention_layer_bytes(&image.kv, length) +
                 image.recurrent.n_layers * recurrent_layer_bytes(&image.recurrent.shape);
    free_image(&image);
    return status;
}

static qn_status allocate(struct image *image)
{
    const size_t n = (image->length + PAGE - 1) / PAGE, attention = attention_layer_bytes(&image->kv, image->length),
                 recurrent = recurrent_layer_bytes(&image->recurrent.shape);
    image->view = image->kv.view;
    QN_TRY(qn_alloc(&image->pages, n, image->view.page_stride, "session"));
    QN_TRY(qn_alloc(&image->f16_pages, 2, image->view.f16_stride, "session"));
    QN_TRY(qn_alloc(&image->table, n, sizeof *image->table, "session"));
    QN_TRY(qn_alloc(&image->f16_table, n, sizeof *image->f16_table, "session"));
    QN_TRY(qn_alloc(&image->layer, attention > recurrent ? attention : recurrent, 1, "session"));
    for (size_t r = 0; r < n; r++) {
        image->table[r] = (uint32_t)r;
        image->f16_table[r] = r != 0;
    }
    image->view.pages = image->pages;
    image->view.table = image->table;
    image->view.f16_pages = image->f16_pages;
    image->view.f16_table = image->f16_table;
    if (!image->recurrent.n_layers)
        return QN_OK;
    const size_t state_bytes = qn_recurrent_state_item_bytes(&image->recurrent);
    QN_TRY(qn_alloc(&image->state, state_bytes + qn_recurrent_chunk_item_bytes(&image->recurrent), 1, "session"));
    image->recurrent_view = (qn_recurrent_view){ .layout = &image->recurrent,
                                                 .state = image->state,
                                                 .open_chunk = image->state + state_bytes / sizeof *image->state,
                                                 .state_position = image->extent.state_position };
    return QN_OK;
}

/* ---- Attention layers ---- */

/* Keys of a page, row by row in the file, in tiles of QN_KEY_TILE positions on the CPU. */
static void convert_keys(uint16_t *tiles, const uint16_t *rows, size_t dim, size_t n)
{
    for (size_t p = 0; p < n; p++)
        for (size_t d = 0; d < dim; d++)
            tiles[p / QN_KEY_TILE * dim * QN_KEY_TILE + d * QN_KEY_TILE + p % QN_KEY_TILE] = rows[p * dim + d];
}

static void convert_f16(const struct image *image, size_t layer)
{
    const size_t dim = image->kv.head_dim, n = image->length;
    const uint16_t *rows = (const uint16_t *)(const void *)image->layer;
    for (size_t i = 0; i < 2 * image->view.n_heads; i++, rows += n * dim)
        for (size_t page = 0; page * PAGE < n; page++) {
            const size_t held = n - page * PAGE < PAGE ? n - page * PAGE : PAGE;
            if (i < image->view.n_heads)
                convert_keys(qn_kv_keys(&image->view, layer, page, i), rows + page * PAGE * dim, dim, held);
            else
                memcpy(qn_kv_values(&image->view, layer, page, i - image->view.n_heads), rows + page * PAGE * dim,
                       held * dim * sizeof *rows);
        }
}

/* The codes of keys or values of all heads, and their scales. Codes of position 0 are those of page 1. */
static void convert_codes(const struct image *image, size_t layer, bool is_keys, const uint32_t *words, const float *scales)
{
    const qn_aura_codec *codec = is_keys ? image->view.key_codec : image->view.value_codec;
    const size_t n = n_quantized(image->length), row = qn_aura_row_words(codec->dim, codec->bits);
    uint8_t codes[QN_AURA_MAX_DIM];
    for (size_t i = 0; i < image->view.n_heads * n; i++) {
        const size_t head = i / n, p = i % n, page = 1 + p / PAGE;
        qn_aura_unpack(codes, words + i * row, codec->dim, codec->bits);
        if (is_keys)
            qn_aura_store_key(qn_kv_keys(&image->view, layer, page, head), p % PAGE, codes, scales[i], codec->dim, codec->bits);
        else
            qn_aura_store_value(qn_kv_values(&image->view, layer, page, head), p % PAGE, codes, scales[i], codec->dim,
                                codec->bits);
    }
}

/* The first n positions of an fp16 page of all heads. Returns the end of its rows. */
static const uint16_t *convert_f16_page(const struct image *image, size_t layer, size_t page, size_t n, const uint16_t *rows)
{
    const size_t dim = image->kv.head_dim, heads = image->view.n_heads;
    for (size_t head = 0; n && head < heads; head++) {
        convert_keys(qn_kv_f16_keys(&image->view, layer, page, head), rows + head * n * dim, dim, n);
        memcpy(qn_kv_f16_values(&image->view, layer, page, head), rows + (heads + head) * n * dim, n * dim * sizeof *rows);
    }
    return rows + 2 * heads * n * dim;
}

static void convert_aura(const struct image *image, size_t layer)
{
    const qn_kv_view *view = &image->view;
    const size_t dim = image->kv.head_dim, n = image->length, rows = view->n_heads * n_quantized(n);
    const uint32_t *keys = (const uint32_t *)(const void *)image->layer,
                   *values = keys + rows * qn_aura_row_words(dim, view->key_codec->bits);
    const float *key_scales = (const float *)(const void *)(values + rows * qn_aura_row_words(dim, view->value_codec->bits));
    convert_codes(image, layer, true, keys, key_scales);
    convert_codes(image, layer, false, values, key_scales + rows);
    const uint16_t *f16 = (const uint16_t *)(const void *)(key_scales + 2 * rows);
    f16 = convert_f16_page(image, layer, 0, n < PAGE ? n : PAGE, f16);
    f16 = convert_f16_page(image, layer, n / PAGE, n < PAGE ? 0 : n % PAGE, f16);
    for (size_t head = 0; n >= PAGE && head < view->n_heads; head++)
        memcpy(qn_kv_key_mean(view, layer, head), (const float *)(const void *)f16 + head * dim, dim * sizeof(float));
}

/* ---- Recurrent layers ---- */

static void convert_recurrent(const struct image *image, size_t index)
{
    const qn_recurrent_shape *s = &image->recurrent.shape;
    const qn_recurrent_layer layer = qn_recurrent_layer_at(&image->recurrent_view, index);
    const size_t head = s->head_v * s->head_k, width = qn_recurrent_width(s), begin = image->extent.state_position;
    const float *state = (const float *)(const void *)image->layer, *inputs = state + s->n_v_heads * head;
    for (size_t i = 0; i < s->n_v_heads * head; i++)
        layer.state[i / head * head + i % s->head_k * s->head_v + i % head / s->head_k] = state[i];
    for (size_t p = image->length - (s->taps - 1); p < image->length; p++)
        memcpy(p < begin ? layer.history + (p + s->taps - 1 - begin) * width : layer.conv_inputs + (p - begin) * width,
               inputs + p % s->taps * width, width * sizeof *inputs);
}

/* ---- Reading ---- */

static qn_status read_layers(struct image *image, const qn_plan *plan, qn_memory_region_fn read, void *context)
{
    const bool is_kept = image->extent.length != 0;
    const size_t bytes = attention_layer_bytes(&image->kv, image->length);
    for (size_t layer = 0; layer < plan->n_layers; layer++) {
        if (plan->is_recurrent && plan->is_recurrent[layer])
            continue;
        QN_TRY(read(context, image->layer, bytes));
        if (is_kept)
            (image->view.key_codec ? convert_aura : convert_f16)(image, layer);
    }
    for (size_t i = 0; i < image->recurrent.n_layers; i++) {
        QN_TRY(read(context, image->layer, recurrent_layer_bytes(&image->recurrent.shape)));
        if (is_kept)
            convert_recurrent(image, i);
    }
    return QN_OK;
}

/* Gives the device the next region of the image. */
static qn_status supply(void *context, void *data, size_t bytes)
{
    struct image *image = context;
    qn_kv_region region;
    size_t count;
    const void *from;
    if (qn_kv_find_region(&image->kv, &image->view, image->next_region, &image->extent, &region)) {
        image->next_region++;
        from = region.data;
    } else {
        from = qn_recurrent_array(&image->recurrent_view, image->next_array / QN_RECURRENT_ARRAYS,
                                  image->next_array % QN_RECURRENT_ARRAYS, &count);
        image->next_array++;
    }
    if (bytes)
        memcpy(data, from, bytes);
    return QN_OK;
}

qn_status qn_state_version3_read(qn_session *session, uint32_t length, qn_memory_region_fn read, void *context)
{
    struct image image = { .extent = qn_state_version3_extent(session, length), .length = length };
    qn_status status = create_layouts(session, &image);
    if (status == QN_OK)
        status = allocate(&image);
    if (status == QN_OK)
        status = read_layers(&image, &session->model->plan, read, context);
    if (status == QN_OK && image.extent.length)
        status = session->memory->vtable->deserialize(session->memory, &image.extent, supply, &image);
    free_image(&image);
    return status;
}
