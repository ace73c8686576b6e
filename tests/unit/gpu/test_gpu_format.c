/* The layout of pool items on a GPU: offsets, sizes, and the pool's classes. */
#include "helper_gpu.h"

/* ---- Recurrent layers ---- */

TEST(sizes_of_recurrent_layers)
{
    const qn_recurrent_shape shape = { 16, 48, 128, 128, 4 }, no_history = { 16, 48, 128, 128, 1 };
    const size_t history = 48 * 128 * 128 * 4, state = history + 3 * (2 * 16 * 128 + 48 * 128) * 4;
    const qn_gpu_recurrent_layout l = qn_gpu_recurrent_layout_of(&shape);
    assert_int_equal(l.history, history);
    assert_int_equal(l.state_layer_bytes, state);
    assert_int_equal(qn_gpu_recurrent_layout_of(&no_history).state_layer_bytes, history);
    /* 48 layers of a 27B model: a sequence takes at most 245 MB. */
    assert_true(48 * (state + l.open.bytes) <= 245000000);
}

/* The arrays of an open chunk follow one another; a head's last group of values may be a part of one. */
TEST(arrays_of_open_chunks)
{
    const qn_recurrent_shape shapes[] = { { 2, 4, 128, 128, 4 }, { 1, 2, 48, 80, 2 } };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const qn_recurrent_shape *s = &shapes[i];
        const qn_gdn_open_layout o = qn_gpu_recurrent_layout_of(s).open;
        const size_t groups = s->head_v / 64 + (s->head_v % 64 != 0), width = qn_recurrent_width(s);
        assert_int_equal(o.keys, 0);
        assert_int_equal(o.values, s->n_k_heads * 64 * s->head_k * 2);
        assert_int_equal(o.scales, o.values + s->n_v_heads * 64 * s->head_v * 2);
        assert_int_equal(o.decays, o.scales + s->n_v_heads * 64 * groups * 4);
        assert_int_equal(o.inputs, o.decays + s->n_v_heads * 64 * 4);
        assert_int_equal(o.bytes, o.inputs + (s->taps - 1 + QN_GDN_DROPPED_ROWS) * width * 4);
    }
}

TEST(offsets_of_recurrent_layers)
{
    bool is_recurrent[] = { true, false, true, true };
    const qn_plan plan = { .n_layers = 4, .is_recurrent = is_recurrent, .recurrent = { 2, 4, 64, 64, 4 } },
                  none = { 0 };
    const qn_gpu_recurrent_layout l = qn_gpu_recurrent_layout_of(&plan.recurrent);
    const size_t indices[] = { 0, 1, 1, 2, 3 };
    for (int layer = 0; layer <= 4; layer++)
        assert_int_equal(qn_gpu_recurrent_index(&plan, layer), indices[layer]);
    assert_int_equal(qn_gpu_recurrent_index(&none, 4), 0);
    assert_int_equal(qn_gpu_state_offset(&plan, 3), 2 * l.state_layer_bytes);
    const qn_gdn_open_layout o = qn_gpu_open_layout(&plan, 3);
    assert_int_equal(o.keys, 2 * l.open.bytes + l.open.keys);
    assert_int_equal(o.values, 2 * l.open.bytes + l.open.values);
    assert_int_equal(o.scales, 2 * l.open.bytes + l.open.scales);
    assert_int_equal(o.decays, 2 * l.open.bytes + l.open.decays);
    assert_int_equal(o.inputs, 2 * l.open.bytes + l.open.inputs);
    assert_int_equal(o.bytes, l.open.bytes);
}

/* ---- Pages ---- */

TEST(rows)
{
    assert_int_equal(qn_gpu_row_bytes(128, 16), 256);
    assert_int_equal(qn_gpu_row_bytes(64, 3), 24);
    assert_int_equal(qn_gpu_row_bytes(80, 3), 32);
    assert_int_equal(qn_gpu_row_bytes(96, 2), 24);
}

/* All arrays of all layers are in the items, aligned, and none overlaps the next. */
static void check_items(const char *golden, const char *name)
{
    label("%s, %s", golden, name);
    open_gpu_of(golden, false);
    const qn_gpu_format *f = gpu_format(name);
    const size_t heads = f->saved.n_heads, dim = f->saved.head_dim, f16_rows = 64 * dim * 2;
    const bool codes = qn_gpu_has_codes(f);
    uint64_t end = 0, f16_end = 0;
    size_t n_attention = 0;
    for (size_t layer = 0; layer < fake_gpu.plan.n_layers; layer++) {
        if (fake_gpu.plan.is_recurrent && fake_gpu.plan.is_recurrent[layer]) {
            assert_int_equal(fake_gpu.slots[layer], qn_gpu_recurrent_index(&fake_gpu.plan, (int)layer));
            continue;
        }
        const qn_gpu_layer_cache c = qn_gpu_layer_cache_of(f, layer);
        assert_int_equal(fake_gpu.slots[layer], n_attention++);
        assert_int_equal(c.key_head, 64 * f->kv.key_row);
        assert_int_equal(c.value_head, 64 * f->kv.value_row);
        const struct {
            uint64_t at;
            size_t bytes;
        } arrays[] = { { c.keys, heads * c.key_head },
                       { c.values, heads * c.value_head },
                       { c.key_scales, heads * 64 * 4 },
                       { c.value_scales, heads * 64 * 4 } },
          f16_arrays[] = { { c.f16_keys, heads * f16_rows },
                           { c.f16_values, heads * f16_rows },
                           { c.means, heads * dim * 4 } };
        for (size_t i = 0; i < (codes ? 4 : 2); i++) {
            assert_true(arrays[i].at >= end && arrays[i].at % 256 == 0);
            end = arrays[i].at + arrays[i].bytes;
        }
        for (size_t i = 0; i < 3; i++) {
            assert_true(codes ? f16_arrays[i].at >= f16_end && f16_arrays[i].at % 256 == 0 : f16_arrays[i].at == 0);
            f16_end = codes ? f16_arrays[i].at + f16_arrays[i].bytes : 0;
        }
        assert_int_equal(c.scale_head, codes ? 64 * 4 : 0);
        assert_int_equal(c.f16_head, codes ? f16_rows : 0);
    }
    assert_true(end <= f->page_stride && end + 1024 > f->page_stride);
    assert_true(f16_end <= f->f16_page_stride);
    assert_int_equal(f->page_base, qn_pool_base(f->cache.pages));
    if (codes)
        assert_int_equal(f->f16_page_base, qn_pool_base(f->cache.f16_pages));
    else
        assert_null(f->cache.f16_pages);
    if (f->saved.n_recurrent) {
        assert_true(f->saved.n_recurrent * f->recurrent.state_layer_bytes <= qn_pool_stride(fake_gpu.states));
        assert_true(f->saved.n_recurrent * f->recurrent.open.bytes <= qn_pool_stride(fake_gpu.open_chunks));
    } else {
        assert_null(fake_gpu.states);
    }
    close_gpu();
}

TEST(items_hold_all_layers)
{
    check_items("qwen3.q1_0", "f16");
    check_items("llama.q1_0", "aura3");
    check_items("qwen35.q1_0", "f16");
    check_items("qwen35-rotated.pq2_0", "aura4v2");
}

/* The bytes in use: page 0 and the positions of the open page are fp16, complete pages from 1 on codes. */
TEST(bytes)
{
    open_gpu_of("qwen35.q1_0", false);
    const qn_gpu_format *f16 = gpu_format("f16"), *codes = gpu_format("aura4v2");
    const qn_saved_layout *s = &f16->saved;
    const size_t rows = s->n_attention * s->n_heads, row = rows * s->head_dim * 4,
                 coded = rows * (s->head_dim / 2 + s->head_dim / 4 + 8), means = rows * s->head_dim * 4,
                 fixed = s->n_recurrent * (f16->recurrent.state_layer_bytes + f16->recurrent.open.bytes);
    assert_int_equal(qn_gpu_format_bytes(f16, 0), fixed);
    assert_int_equal(qn_gpu_format_bytes(f16, 130), fixed + 130 * row);
    assert_int_equal(qn_gpu_format_bytes(codes, 63), fixed + 63 * row);
    assert_int_equal(qn_gpu_format_bytes(codes, 64), fixed + 64 * row + means);
    assert_int_equal(qn_gpu_format_bytes(codes, 127), fixed + 127 * row + means);
    assert_int_equal(qn_gpu_format_bytes(codes, 130), fixed + 66 * row + 64 * coded + means);
    assert_true(qn_gpu_same_cache(f16, f16));
    assert_false(qn_gpu_same_cache(f16, codes));
    close_gpu();
}

/* A block drafter's layers have heads of their own, in the same pages after the model's; only fp16. */
TEST(layers_of_a_block_drafter)
{
    const uint32_t slots[] = { 0, 1, 2, 3, 4 };
    const qn_plan plan = {
        .n_layers = 5,
        .heads = { .n_heads = 4, .n_kv_heads = 2, .head_dim = 64 },
        .head = { .draft = 1, .block = 8, .n_layers = 3, .heads = { .n_heads = 6, .n_kv_heads = 3, .head_dim = 128 } }
    };
    const qn_kv_format *f16, *codes;
    qn_gpu_format f;
    assert_ok(qn_kv_format_named("f16", &f16));
    assert_ok(qn_kv_format_named("aura4", &codes));
    assert_ok(qn_gpu_format_init(&plan, f16, slots, &f));
    uint64_t end = 0;
    for (size_t layer = 0; layer < 5; layer++) {
        const qn_gpu_layer_cache c = qn_gpu_layer_cache_of(&f, layer);
        const uint64_t head = (uint64_t)(layer < 2 ? 64 : 128) * 64 * 2, heads = layer < 2 ? 2 : 3;
        assert_true(c.key_head == head && c.value_head == head);
        assert_true(c.keys >= end && c.keys % 256 == 0 && c.values >= c.keys + heads * head && c.values % 256 == 0);
        end = c.values + heads * head;
    }
    assert_int_equal(qn_gpu_format_bytes(&f, 10), 10 * 4 * (2 * 2 * 64 + 3 * 3 * 128));
    qn_gpu_format_free(&f);
    assert_int_equal(qn_gpu_format_init(&plan, codes, slots, &f), QN_ERR_UNSUPPORTED);
    assert_non_null(strstr(qn_error_text(), "aura4"));
    qn_gpu_format_free(&f);
}

/* Sizes that overflow are errors, not small pages. */
TEST(sizes_that_do_not_fit)
{
    const qn_kv_format *f16;
    uint32_t *slots = NULL;
    qn_plan plan = { .n_layers = 2, .heads = { .n_kv_heads = SIZE_MAX / 64, .head_dim = 64 } };
    qn_gpu_format f;
    assert_ok(qn_kv_format_named("f16", &f16));
    assert_ok(qn_gpu_layer_slots(&plan, &slots));
    assert_fails(qn_gpu_format_init(&plan, f16, slots, &f), QN_ERR_MEMORY, "pages of 2 layers of");
    qn_gpu_format_free(&f);
    plan.heads.n_kv_heads = SIZE_MAX / (2 * 64 * 64 * 2 * 2) + 1; /* a page fits for one layer, not for two */
    assert_fails(qn_gpu_format_init(&plan, f16, slots, &f), QN_ERR_MEMORY, "do not fit");
    qn_gpu_format_free(&f);
    qn_free(slots);
    bool is_recurrent[] = { true, true };
    plan.is_recurrent = is_recurrent;
    plan.recurrent = (qn_recurrent_shape){ SIZE_MAX / 64, SIZE_MAX / 64, 64, 64, 4 };
    slots = NULL;
    assert_fails(qn_gpu_layer_slots(&plan, &slots), QN_ERR_MEMORY, "recurrent state");
    assert_null(slots);
}

/* ---- The pool ---- */

TEST(budgets)
{
    const uint64_t gib = (uint64_t)1 << 30;
    assert_int_equal(qn_gpu_pool_budget(100 * gib), 90 * gib);
    assert_int_equal(qn_gpu_pool_budget(5 * gib), 4 * gib);
    assert_int_equal(qn_gpu_pool_budget(gib), gib / 2);
    assert_int_equal(qn_gpu_pool_budget(0), 0);
    assert_int_equal(qn_gpu_pool_idle(32 * gib), 2 * gib);
}

static int refuse_after; /* reservations of addresses until one fails */

static qn_status refusing_reserve(void *context, size_t bytes, uint64_t *address)
{
    return refuse_after-- > 0 ? gpu_reserve(context, bytes, address) : qn_fail(QN_ERR_MEMORY, "addresses: refused");
}

/* Without addresses for the fp16 pages, the pages' class is removed again. */
TEST(classes_are_added_together)
{
    const qn_pool_memory memory = { NULL, GPU_GRANULE, refusing_reserve, gpu_unreserve, gpu_commit, gpu_release, NULL };
    open_gpu_of("qwen3.q1_0", false);
    qn_pool *pool;
    qn_gpu_format f;
    const qn_kv_format *format;
    assert_ok(qn_kv_format_named("aura4", &format));
    assert_ok(qn_gpu_format_init(&fake_gpu.plan, format, fake_gpu.slots, &f));
    assert_ok(qn_pool_create(&memory, GPU_BUDGET, 0, &pool));
    for (int n = 0; n < 2; n++) {
        refuse_after = n;
        assert_fails(qn_gpu_format_add_pages(pool, &f), QN_ERR_MEMORY, "refused");
        assert_true(!f.cache.pages && !f.cache.f16_pages && !f.page_base && !f.page_stride);
    }
    refuse_after = 2;
    assert_ok(qn_gpu_format_add_pages(pool, &f));
    assert_true(f.cache.pages && f.cache.f16_pages && f.page_stride && f.f16_page_stride);
    qn_pool_free(pool); /* with its two classes: no address is left */
    qn_gpu_format_free(&f);
    close_gpu();
}
