/* Allocation of the key-value cache, where in it a session's positions lie, and which lengths it can go back to; its layouts
 * are kernels/attention/attention.h's and kernels/aura/aura.h's. */
#include "cache/kv.h"

#include "base/memory.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/aura/aura.h"

#include <string.h>

_Static_assert((int)QN_AURA_BLOCK == (int)QN_KEY_BLOCK, "the plan cuts both formats into the same blocks");
_Static_assert(QN_KEY_BLOCK % QN_KV_RUN == 0 && QN_KV_RUN % QN_KEY_TILE == 0, "a run is within a block, and whole tiles");
_Static_assert((int)QN_KV_RUN == (int)QN_GDN_CHUNK, "a checkpoint's recurrent memory and halves go back to the same lengths");

static const qn_kv_format formats[] = { { "f16", 0, 0 },     { "aura8", 8, 8 },   { "aura6", 6, 6 }, { "aura4", 4, 4 },
                                        { "aura4v3", 4, 3 }, { "aura4v2", 4, 2 }, { "aura3", 3, 3 }, { "aura2", 2, 2 } };

qn_status qn_kv_format_named(const char *name, const qn_kv_format **format)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0) {
            *format = &formats[i];
            return QN_OK;
        }
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "cache format '%s' is not supported (f16, aura8, aura6, aura4, aura4v3, aura4v2, aura3, aura2)", name);
}

/* The part of a head in a block: keys or values. */
static size_t key_part_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.keys ? qn_aura_key_part_bytes(head_dim, codecs.keys->bits) : QN_KEY_BLOCK * head_dim * sizeof(uint16_t);
}

static size_t value_part_bytes(size_t head_dim, qn_kv_codecs codecs)
{
    return codecs.values ? qn_aura_value_part_bytes(head_dim, codecs.values->bits) : QN_KEY_BLOCK * head_dim * sizeof(uint16_t);
}

static size_t attention_layers(const qn_kv_shape *shape)
{
    size_t n = 0;
    for (size_t layer = 0; layer < shape->n_layers; layer++)
        n += !shape->is_recurrent || !shape->is_recurrent[layer];
    return n;
}

uint64_t qn_kv_position_bytes(const qn_kv_shape *shape, qn_kv_codecs codecs)
{
    const size_t row_pair =
        (key_part_bytes(shape->head_dim, codecs) + value_part_bytes(shape->head_dim, codecs)) / QN_KEY_BLOCK;
    return (uint64_t)attention_layers(shape) * shape->n_heads * row_pair;
}

/* ---- Allocation ---- */

/* What a cache of codes has besides them. */
static qn_status create_halves(qn_kv *kv, size_t n_batch)
{
    qn_kv_view *view = &kv->view;
    size_t rows;
    view->n_open = (n_batch + QN_KV_RUN - 1) / QN_KV_RUN + 1;
    if (!qn_mul_size(view->n_slots, view->n_heads * 2 * kv->head_dim * sizeof(uint16_t), &rows))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu layers of %zu heads do not fit in memory", view->n_slots,
                       view->n_heads);
    QN_TRY(qn_alloc(&kv->halves, (1 + view->n_open) * QN_KV_RUN, rows, "key-value cache"));
    QN_TRY(qn_alloc(&kv->means, view->n_slots * view->n_heads, kv->head_dim * sizeof *kv->means, "key-value cache"));
    view->halves = kv->halves;
    view->means = kv->means;
    return QN_OK;
}

static qn_status create(qn_kv *kv, const qn_kv_shape *shape, size_t n_ctx, size_t n_batch)
{
    qn_kv_view *view = &kv->view;
    size_t block_bytes, bytes;
    QN_TRY(qn_alloc(&kv->slots, shape->n_layers, sizeof *kv->slots, "key-value cache"));
    for (size_t layer = 0; layer < shape->n_layers; layer++)
        if (!shape->is_recurrent || !shape->is_recurrent[layer])
            kv->slots[layer] = (uint32_t)view->n_slots++;
    if (!qn_mul_size(view->n_slots, view->n_heads * (view->key_bytes + view->value_bytes), &block_bytes) ||
        !qn_mul_size(block_bytes, qn_round_up(n_ctx, QN_KEY_BLOCK) / QN_KEY_BLOCK, &bytes))
        return qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", n_ctx);
    QN_TRY(qn_alloc(&kv->memory, bytes, 1, "key-value cache"));
    /* Not under the first block, which few conversations fill. */
    if (bytes > block_bytes)
        qn_advise_huge(kv->memory + block_bytes, bytes - block_bytes);
    view->memory = kv->memory;
    view->slots = kv->slots;
    return view->key_codec ? create_halves(kv, n_batch) : QN_OK;
}

qn_status qn_kv_create(qn_kv *kv, const qn_kv_shape *shape, size_t n_ctx, size_t n_batch, qn_kv_codecs codecs)
{
    *kv = (qn_kv){ .view = { .n_heads = shape->n_heads,
                             .key_bytes = key_part_bytes(shape->head_dim, codecs),
                             .value_bytes = value_part_bytes(shape->head_dim, codecs),
                             .key_codec = codecs.keys,
                             .value_codec = codecs.values },
                   .head_dim = shape->head_dim,
                   .keeps_last = codecs.keys && shape->is_recurrent };
    const qn_status status = create(kv, shape, n_ctx, n_batch);
    if (status != QN_OK)
        qn_kv_free(kv);
    return status;
}

void qn_kv_free(qn_kv *kv)
{
    qn_free(kv->memory);
    qn_free(kv->halves);
    qn_free(kv->means);
    qn_free(kv->slots);
    *kv = (qn_kv){ 0 };
}

/* ---- Runs ---- */

/* The codes that `length` positions need: of all complete runs but the first. */
static size_t n_codes(size_t length)
{
    return length > QN_KV_RUN ? length / QN_KV_RUN * QN_KV_RUN - QN_KV_RUN : 0;
}

void qn_kv_appended(qn_kv *kv, size_t length)
{
    if (!kv->view.key_codec || !length)
        return;
    const size_t last = (length - 1) / QN_KV_RUN, from = last >= kv->view.n_open ? last - kv->view.n_open + 1 : 0;
    kv->open_from = (uint32_t)(from > kv->open_from ? from : kv->open_from);
}

/* The first run that is not complete, or whose halves are kept although it is. */
static size_t open_run(const qn_kv *kv, size_t length)
{
    return (length && kv->keeps_last ? length - 1 : length) / QN_KV_RUN;
}

void qn_kv_filled(qn_kv *kv, size_t length)
{
    kv->open_from = (uint32_t)open_run(kv, length);
}

/* Whether all that `length` positions need is held where halves are held from run `from` on. */
static bool holds(size_t length, uint32_t from)
{
    const size_t run = length / QN_KV_RUN;
    return length % QN_KV_RUN == 0 || run == 0 || run >= from;
}

size_t qn_kv_reach(const qn_kv *kv, size_t length)
{
    return !kv->view.key_codec || holds(length, kv->open_from) ? length : length / QN_KV_RUN * QN_KV_RUN;
}

void qn_kv_cut(qn_kv *kv, size_t length)
{
    const uint32_t run = (uint32_t)(length / QN_KV_RUN);
    kv->open_from = run < kv->open_from ? run : kv->open_from;
}

/* Halves of one run in all layers, which follow one another. */
static size_t run_halves(const qn_kv *kv)
{
    return kv->view.n_slots * kv->view.n_heads * 2 * QN_KV_RUN * kv->head_dim;
}

static uint16_t *halves_of(const qn_kv *kv, size_t length)
{
    const size_t run = (length - 1) / QN_KV_RUN, place = run ? 1 + (run - 1) % kv->view.n_open : 0;
    return kv->halves + place * run_halves(kv);
}

qn_status qn_kv_open_new(qn_kv_open *open, const qn_kv *kv)
{
    *open = (qn_kv_open){ 0 };
    return kv->view.key_codec ? qn_alloc(&open->halves, run_halves(kv), sizeof *open->halves, "checkpoint") : QN_OK;
}

void qn_kv_open_free(qn_kv_open *open)
{
    qn_free(open->halves);
    *open = (qn_kv_open){ 0 };
}

void qn_kv_open_copy(qn_kv_open *to, const qn_kv_open *from, const qn_kv *kv)
{
    if (to->halves)
        memcpy(to->halves, from->halves, run_halves(kv) * sizeof *to->halves);
}

void qn_kv_open_keep(qn_kv_open *open, const qn_kv *kv, size_t held)
{
    if (open->halves)
        memcpy(open->halves, halves_of(kv, held), run_halves(kv) * sizeof *open->halves);
}

void qn_kv_open_take(const qn_kv_open *open, qn_kv *kv, size_t held)
{
    if (!open->halves)
        return;
    memcpy(halves_of(kv, held), open->halves, run_halves(kv) * sizeof *open->halves);
    kv->open_from = (uint32_t)((held - 1) / QN_KV_RUN);
}

/* ---- Parts ---- */

/* A head's keys or values, found by counting. */
struct found {
    uint8_t *data;
    bool is_keys;
    size_t held; /* positions of it, or codes */
};

/* Counted in the order of memory: blocks, layers with attention, keys before values, heads. False when its block begins at
 * `length` or later. */
static bool find_head(const qn_kv *kv, size_t index, size_t length, struct found *f)
{
    const qn_kv_view *view = &kv->view;
    const size_t per_slot = 2 * view->n_heads, per_block = view->n_slots * per_slot;
    const size_t first = per_block ? index / per_block * QN_KEY_BLOCK : 0, within = index % per_slot;
    if (!per_block || first >= length)
        return false;
    f->held = length - first < QN_KEY_BLOCK ? length - first : QN_KEY_BLOCK;
    f->is_keys = within < view->n_heads;
    f->data = kv->memory + index / per_slot * view->n_heads * (view->key_bytes + view->value_bytes) +
              (f->is_keys ? within * view->key_bytes
                          : view->n_heads * view->key_bytes + (within - view->n_heads) * view->value_bytes);
    return true;
}

/* Halves of the first run, and of the one that is open, counted in the order of memory. */
static bool find_half(const qn_kv *kv, size_t index, size_t length, struct found *f)
{
    const size_t per_run = 2 * kv->view.n_slots * kv->view.n_heads, open_index = open_run(kv, length);
    if (index >= 2 * per_run)
        return false;
    const bool is_first = index < per_run;
    f->held = is_first ? (length < QN_KV_RUN ? length : QN_KV_RUN) : open_index ? length - open_index * QN_KV_RUN : 0;
    f->is_keys = index % 2 == 0;
    f->data =
        (uint8_t *)((is_first || !f->held ? kv->halves : halves_of(kv, length)) + index % per_run * QN_KV_RUN * kv->head_dim);
    return true;
}

static size_t half_bytes(const qn_kv *kv, const struct found *f)
{
    return (f->is_keys ? qn_round_up(f->held, QN_KEY_TILE) : f->held) * kv->head_dim * sizeof(uint16_t);
}

/* Codes of a head's block, or their scales. */
static bool find_codes(const qn_kv *kv, size_t index, size_t length, uint8_t **data, size_t *size)
{
    const qn_kv_view *view = &kv->view;
    struct found f;
    if (!find_head(kv, index / 2, n_codes(length), &f))
        return false;
    const size_t codes = f.is_keys ? qn_aura_key_code_bytes(kv->head_dim, view->key_codec->bits)
                                   : qn_aura_value_code_bytes(kv->head_dim, view->value_codec->bits);
    *data = f.data + (index % 2 ? codes : 0);
    *size = index % 2 ? f.held * sizeof(float) : codes / QN_KEY_BLOCK * f.held;
    return true;
}

bool qn_kv_part(const qn_kv *kv, size_t part, size_t length, uint8_t **data, size_t *size)
{
    const size_t n_heads = kv->view.n_slots * kv->view.n_heads, n_halves = 4 * n_heads;
    struct found f;
    if (!kv->view.key_codec) {
        if (!find_head(kv, part, length, &f))
            return false;
        *data = f.data;
        *size = half_bytes(kv, &f);
        return true;
    }
    if (part == 0) {
        *data = (uint8_t *)kv->means;
        *size = length < QN_KV_RUN ? 0 : n_heads * kv->head_dim * sizeof *kv->means;
        return true;
    }
    if (part > n_halves)
        return find_codes(kv, part - 1 - n_halves, length, data, size);
    (void)find_half(kv, part - 1, length, &f);
    *data = f.data;
    *size = half_bytes(kv, &f);
    return true;
}

void qn_kv_copy(qn_kv *to, const qn_kv *from, size_t length)
{
    uint8_t *data, *source;
    size_t size;
    for (size_t part = 0; qn_kv_part(from, part, length, &source, &size); part++)
        if (qn_kv_part(to, part, length, &data, &size) && size)
            memcpy(data, source, size);
    if (from->halves)
        memcpy(to->halves, from->halves, (1 + from->view.n_open) * run_halves(from) * sizeof *from->halves);
    to->open_from = from->open_from;
}

static void clear_tile(const struct found *f, size_t head_dim)
{
    const size_t first = f->held % QN_KEY_TILE;
    uint16_t *tile = (uint16_t *)(void *)f->data + f->held / QN_KEY_TILE * QN_KEY_TILE * head_dim;
    for (size_t d = 0; f->is_keys && first && d < head_dim; d++)
        memset(tile + d * QN_KEY_TILE + first, 0, (QN_KEY_TILE - first) * sizeof *tile);
}

void qn_kv_trim(const qn_kv *kv, size_t length)
{
    const qn_kv_view *view = &kv->view;
    struct found f;
    if (!view->key_codec) {
        for (size_t i = length / QN_KEY_BLOCK * view->n_slots * 2 * view->n_heads; find_head(kv, i, length, &f); i++)
            clear_tile(&f, kv->head_dim);
        return;
    }
    for (size_t i = 0; find_half(kv, i, length, &f); i++)
        clear_tile(&f, kv->head_dim);
}

uint64_t qn_kv_bytes(const qn_kv *kv, size_t length)
{
    const qn_kv_view *view = &kv->view;
    const uint64_t pairs = (uint64_t)view->n_slots * view->n_heads;
    const size_t row_pair = (view->key_bytes + view->value_bytes) / QN_KEY_BLOCK;
    if (!view->key_codec)
        return pairs * row_pair * length;
    const uint64_t f16_page_bytes = pairs * (length - n_codes(length)) * 2 * kv->head_dim * sizeof *kv->halves;
    return pairs * row_pair * n_codes(length) + f16_page_bytes +
           (length < QN_KV_RUN ? 0 : pairs * kv->head_dim * sizeof *kv->means);
}
