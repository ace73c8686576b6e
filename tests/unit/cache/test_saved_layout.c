/* The layout of session files: codes have the size that the kernels give a page of them, regions cover every position
 * once, and what is not used is zeroed. */
#include "helper_assert.h"

#include "cache/saved_layout.h"
#include "kernels/attention/attention.h"
#include "kernels/aura/aura.h"

static const char *const formats[] = {
    "f16", "f32", "aura8", "aura6", "aura4", "aura4v3", "aura4v2", "aura3", "aura2"
};

/* Layers 1 and 3 of four are attention layers. */
static qn_saved_layout layout_of(const char *name, size_t head_dim)
{
    static bool is_recurrent[] = { true, false, true, false };
    const qn_plan plan = { .n_layers = 4,
                           .is_recurrent = is_recurrent,
                           .heads = { .n_kv_heads = 3, .head_dim = head_dim },
                           .recurrent = { .n_k_heads = 2, .n_v_heads = 4, .head_k = 16, .head_v = 32, .taps = 4 } };
    const qn_kv_format *format;
    assert_ok(qn_kv_format_named(name, &format));
    return qn_saved_layout_of(&plan, format);
}

/* The layers of a draft head, which has other heads than the trunk, are the last ones. */
TEST(heads_have_layouts_of_their_own)
{
    static bool is_recurrent[] = { true, false, true, false, false, false };
    const qn_plan plan = { .n_layers = 6,
                           .is_recurrent = is_recurrent,
                           .heads = { .n_kv_heads = 3, .head_dim = 64 },
                           .head = { .n_layers = 2, .heads = { .n_kv_heads = 1, .head_dim = 128 } } };
    const qn_extent extent = { .length = 2 * QN_PAGE + 5 };
    for (size_t f = 0; f < COUNT(formats); f++) {
        const qn_kv_format *format;
        qn_saved_region r;
        size_t n = 0;
        assert_ok(qn_kv_format_named(formats[f], &format));
        const qn_saved_layout l = qn_saved_layout_of_head(&plan, format);
        for (size_t i = 0; qn_saved_find_region(&l, &extent, i, &r); i++) {
            assert_true(r.part == QN_SAVED_MEANS || (r.layer >= 4 && r.layer < 6 && !r.head));
            n += r.bytes > 0;
        }
        label("%s: %zu", formats[f], n);
        assert_true(n >= 2 * 2 * 3);
        const qn_saved_layout none = qn_saved_layout_of_head(&(qn_plan){ .n_layers = 4 }, format);
        assert_int_equal(qn_saved_kv_bytes(&none, &extent), 0);
    }
}

TEST(codes_have_the_kernels_sizes)
{
    const qn_extent extent = { .length = 6 * QN_PAGE + 5 };
    for (size_t dim = 0; dim <= 1024; dim += 8)
        for (size_t f = 2; f < COUNT(formats); f++) {
            const qn_saved_layout l = layout_of(formats[f], dim);
            qn_saved_region r;
            if (!qn_aura_has_dim(dim)) {
                assert_int_equal(qn_aura_check_shape(dim, l.key_bits), QN_ERR_INVALID);
                continue;
            }
            label("%s, %zu", formats[f], dim);
            assert_ok(qn_aura_check_shape(dim, l.key_bits));
            for (size_t i = 0; qn_saved_find_region(&l, &extent, i, &r); i++) {
                if (r.part == QN_SAVED_KEY_CODES && r.bytes)
                    assert_int_equal(r.bytes, qn_aura_key_code_bytes(dim, l.key_bits));
                if (r.part == QN_SAVED_VALUE_CODES && r.bytes)
                    assert_int_equal(r.bytes, qn_aura_value_code_bytes(dim, l.value_bits));
            }
        }
}

/* Positions of each part, layer and head: all of them, each page once. */
TEST(regions_cover_all_positions)
{
    static const uint32_t lengths[] = { 0, 1, 63, 64, 65, 128, 129, 320, 321, 1000 };
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t n = 0; n < COUNT(lengths); n++) {
            const qn_saved_layout l = layout_of(formats[f], 64);
            const qn_extent extent = { .length = lengths[n] };
            size_t held[QN_SAVED_VALUE_SCALES + 1][4][3] = { 0 },
                                                coded = l.key_bits ? qn_kv_coded_positions(lengths[n]) : 0;
            uint64_t bytes = 0;
            qn_saved_region r;
            label("%s, %u", formats[f], (unsigned)lengths[n]);
            for (size_t i = 0; qn_saved_find_region(&l, &extent, i, &r); i++) {
                bytes += r.bytes;
                held[r.part][r.layer][r.head] += r.bytes ? r.held : 0;
                assert_true(r.part == QN_SAVED_MEANS || l.is_recurrent[r.layer] == false);
            }
            for (size_t layer = 1; layer < 4; layer += 2)
                for (size_t head = 0; head < 3; head++)
                    for (size_t part = QN_SAVED_KEYS; part <= QN_SAVED_VALUE_SCALES; part++)
                        assert_int_equal(held[part][layer][head], part <= QN_SAVED_VALUES ? lengths[n] - coded : coded);
            assert_int_equal(bytes, qn_saved_kv_bytes(&l, &extent));
            assert_int_equal(bytes + 2 * qn_saved_layer_bytes(&l.recurrent), qn_saved_bytes(&l, &extent));
        }
}

static void unused_positions(const char *format)
{
    enum { DIM = 64 };
    const qn_saved_layout l = layout_of(format, DIM);
    const size_t units = qn_saved_element_bytes(&l) / sizeof(uint16_t);
    for (size_t held = 1; held <= QN_PAGE; held++) {
        const qn_saved_region region = { .part = QN_SAVED_KEYS, .held = held },
                              values = { .part = QN_SAVED_VALUES, .held = held };
        const size_t end = (held + QN_KEY_TILE - 1) / QN_KEY_TILE * QN_KEY_TILE;
        uint16_t keys[2 * QN_PAGE * DIM];
        memset(keys, 0xff, sizeof keys);
        qn_saved_zero_tail(&l, &values, keys);
        assert_int_equal(keys[qn_saved_key_at(DIM, held % QN_PAGE, 0) * units], 0xffff);
        qn_saved_zero_tail(&l, &region, keys);
        for (size_t p = 0; p < QN_PAGE; p++)
            for (size_t d = 0; d < DIM; d++)
                for (size_t i = 0; i < units; i++)
                    assert_int_equal(keys[qn_saved_key_at(DIM, p, d) * units + i], p >= held && p < end ? 0 : 0xffff);
    }
}

TEST(unused_positions_are_zeroed)
{
    unused_positions("f16");
    unused_positions("f32");
}

/* An fp32 element takes twice an fp16 one. */
TEST(f32_regions_are_twice_as_large)
{
    const qn_extent extent = { .length = 2 * QN_PAGE + 17 };
    const qn_saved_layout f16 = layout_of("f16", 48), f32 = layout_of("f32", 48);
    qn_saved_region of16, of32;
    size_t i = 0;
    for (; qn_saved_find_region(&f16, &extent, i, &of16); i++) {
        assert_true(qn_saved_find_region(&f32, &extent, i, &of32));
        assert_int_equal(of32.part, of16.part);
        assert_int_equal(of32.bytes, 2 * of16.bytes);
    }
    assert_false(qn_saved_find_region(&f32, &extent, i, &of32));
}

/* Sizes that do not fit in memory are refused before they are computed. */
TEST(large_layers_are_refused)
{
    qn_recurrent_shape shape = { .n_k_heads = 16, .n_v_heads = 32, .head_k = 128, .head_v = 128, .taps = 4 };
    assert_ok(qn_saved_check_recurrent(&shape, 48));
    assert_int_equal(qn_saved_check_recurrent(&shape, SIZE_MAX / 2), QN_ERR_MEMORY);
    shape.head_v = SIZE_MAX / 64;
    assert_int_equal(qn_saved_check_recurrent(&shape, 1), QN_ERR_MEMORY);
}
