/* The three layouts of type 42: sizes decide between groups of 64 and of 128, contents between the two groups of
 * 128. */
#include "helper_random.h"

#include "base/f16.h"
#include "quant/q2_layout.h"

enum { ALIGNMENT = 32 };

/* Ternary weights with scales as models have them, in one of the layouts, padded to the alignment, then `extra` zero
 * bytes. */
static qn_q2_tensor make(qn_type type, const char *name, uint64_t width, uint64_t rows, size_t extra)
{
    const qn_type_info *info = qn_type_find((uint32_t)type);
    const uint64_t weights = width * rows, blocks = weights / info->block_weights;
    const size_t bytes = (size_t)blocks * info->block_bytes;
    const size_t available_bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + extra;
    uint8_t *data = calloc(1, available_bytes);
    assert_non_null(data);
    for (uint64_t b = 0; b < blocks; b++) {
        uint8_t *block = data + b * info->block_bytes;
        const uint16_t d = qn_f32_to_f16(0.01f + (float)(random_u32() % 1000) * 1e-4f);
        uint8_t *codes = type == QN_TYPE_OX2_0 ? block : block + 2;
        for (size_t i = 0; i < info->block_weights; i++)
            codes[i / 4] |= (uint8_t)(random_u32() % 3 << i % 4 * 2);
        memcpy(type == QN_TYPE_OX2_0 ? block + 32 : block, &d, sizeof d);
    }
    return (qn_q2_tensor){ name, strlen(name), data, available_bytes, width, weights };
}

static uint8_t *bytes_of(const qn_q2_tensor *t)
{
    return (uint8_t *)(uintptr_t)t->data;
}

static void release(qn_q2_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(bytes_of(&tensors[i]));
}

static void expect(const qn_q2_tensor *tensors, size_t n, qn_type expected)
{
    qn_type type = QN_TYPE_F32;
    const char *note = NULL;
    const qn_status status = qn_q2_find_layout(tensors, n, ALIGNMENT, "file", &type, &note);
    if (status)
        fail_msg("rejected: %s", qn_error_text());
    assert_int_equal(type, expected);
    assert_non_null(note);
}

static void expect_rejection(const qn_q2_tensor *tensors, size_t n, const char *fragment)
{
    qn_type type = QN_TYPE_F32;
    const char *note = NULL;
    assert_int_equal(qn_q2_find_layout(tensors, n, ALIGNMENT, "file", &type, &note), QN_ERR_FORMAT);
    assert_int_equal(type, QN_TYPE_F32);
    if (!strstr(qn_error_text(), fragment))
        fail_msg("'%s' does not contain '%s'", qn_error_text(), fragment);
}

static const qn_type layouts[] = { QN_TYPE_Q2_0, QN_TYPE_PQ2_0, QN_TYPE_OX2_0 };

TEST(whole_models)
{
    for (size_t k = 0; k < 3; k++) {
        qn_q2_tensor t[] = { make(layouts[k], "a", 1024, 64, 0), make(layouts[k], "b", 256, 1, 0),
                             make(layouts[k], "c", 128, 300, 0) };
        expect(t, 3, layouts[k]);
        expect(t, 1, layouts[k]);
        expect(t + 2, 1, layouts[k]);
        release(t, 3);
    }
}

/* Codes and scales that rule out mainline's layout are ignored if the size is mainline's. */
TEST(mainline_by_size_whatever_it_holds)
{
    qn_q2_tensor t = make(QN_TYPE_Q2_0, "a", 1024, 4, 0);
    memset(bytes_of(&t), 0xff, t.available_bytes);
    expect(&t, 1, QN_TYPE_Q2_0);
    release(&t, 1);

    /* valid blocks of 34 bytes are ignored if more than padding follows them */
    t = make(QN_TYPE_PQ2_0, "a", 1024, 4, 2 * ALIGNMENT);
    expect(&t, 1, QN_TYPE_Q2_0);
    release(&t, 1);
}

TEST(widths_of_64)
{
    qn_q2_tensor t[] = { make(QN_TYPE_Q2_0, "narrow", 192, 1, 0), make(QN_TYPE_Q2_0, "b", 128, 2, 0) };
    memset(bytes_of(&t[1]), 0xff, t[1].available_bytes);
    expect(t, 2, QN_TYPE_Q2_0);
    release(t, 2);

    /* 192 * 2 weights are a multiple of 128, but 192 per row is not */
    qn_q2_tensor old = make(QN_TYPE_PQ2_0, "odd.weight", 128, 60, 0);
    old.width = 192;
    expect_rejection(&old, 1, "odd.weight");
    release(&old, 1);
}

/* One block of 128 is 34 or 36 bytes: both fill 64 with padding. Then the scales decide, and mainline's layout is
 * tested first. */
TEST(tiny_tensors)
{
    for (size_t k = 0; k < 3; k++)
        for (uint64_t blocks = 1; blocks <= 6; blocks++) {
            label("%s, %u blocks", qn_type_find((uint32_t)layouts[k])->name, (unsigned)blocks);
            qn_q2_tensor t[40];
            for (size_t i = 0; i < 40; i++)
                t[i] = make(layouts[k], "tiny", 128 * blocks, 1, 0);
            expect(t, 40, layouts[k]);
            if (k == 0) { /* bad scales in every layout: still mainline's, which fits */
                memset(bytes_of(&t[3]), 0xff, t[3].available_bytes);
                expect(t, 40, QN_TYPE_Q2_0);
            }
            release(t, 40);
        }
}

/* Gaps between tensors, or bytes after the last one, do not affect the detection. */
TEST(gaps)
{
    for (size_t k = 0; k < 3; k++) {
        qn_q2_tensor t[] = { make(layouts[k], "a", 512, 40, 4096), make(layouts[k], "b", 512, 40, 100000) };
        expect(t, 2, layouts[k]);
        release(t, 2);
    }
    /* a gap after one tensor and none after another: the size of the latter decides */
    qn_q2_tensor t[] = { make(QN_TYPE_OX2_0, "a", 512, 40, 65536), make(QN_TYPE_OX2_0, "b", 512, 40, 0) };
    expect(t, 2, QN_TYPE_OX2_0);
    release(t, 2);
}

/* A gap after one tensor leaves space for blocks of 64 there; the tensors that they do not fit decide. */
TEST(a_gap_that_looks_like_the_other_layout)
{
    qn_q2_tensor t[] = { make(QN_TYPE_PQ2_0, "gap", 128, 64, 64 * 2), make(QN_TYPE_PQ2_0, "rest", 128, 4096, 0) };
    expect(t, 2, QN_TYPE_PQ2_0);
    release(t, 2);
}

TEST(too_small)
{
    qn_q2_tensor t = make(QN_TYPE_PQ2_0, "cut.weight", 1024, 64, 0);
    t.available_bytes -= ALIGNMENT;
    expect_rejection(&t, 1, "cut.weight");
    t.n_weights = 1ull << 62; /* no multiplication of sizes may overflow before the error is returned */
    t.width = 1ull << 62;
    expect_rejection(&t, 1, "cut.weight");
    release(&t, 1);

    /* each alone fits one layout, together they fit none */
    qn_q2_tensor two[] = { make(QN_TYPE_PQ2_0, "first", 1024, 64, 0), make(QN_TYPE_Q2_0, "second", 192, 64, 0) };
    expect_rejection(two, 2, "first");
    expect_rejection(two, 2, "second");
    release(two, 2);
}

TEST(neither_layout_plausible)
{
    for (size_t k = 1; k < 3; k++) {
        qn_q2_tensor t[] = { make(layouts[k], "good.weight", 1024, 200, 0),
                             make(layouts[k], "bad.weight", 1024, 200, 0) };
        uint8_t *block = bytes_of(&t[1]) + 5 * 34;
        block[(k == 1 ? 2 : 0) + 7] |= 3; /* a code 3 */
        expect_rejection(t, 2, "bad.weight");
        expect_rejection(t, 2, "neither layout");
        block[(k == 1 ? 2 : 0) + 7] &= 0xfc;
        expect(t, 2, layouts[k]);
        block[k == 1 ? 1 : 33] |= 0x80; /* a negative scale */
        expect_rejection(t, 2, "bad.weight");
        block[k == 1 ? 1 : 33] = 0x7c; /* an infinite one */
        block[k == 1 ? 0 : 32] = 0;
        expect_rejection(t, 2, "bad.weight");
        release(t, 2);
    }
}

TEST(both_layouts_plausible)
{
    qn_q2_tensor t = make(QN_TYPE_PQ2_0, "zero.weight", 1024, 200, 0);
    memset(bytes_of(&t), 0, t.available_bytes);
    expect_rejection(&t, 1, "zero.weight");
    expect_rejection(&t, 1, "each layout");
    release(&t, 1);
}

/* A first tensor that matches both layouts (a table whose unused rows are zero) leaves the decision to the others. */
TEST(one_odd_tensor)
{
    for (size_t k = 1; k < 3; k++) {
        qn_q2_tensor t[] = { make(layouts[k], "token_embd.weight", 1024, 2000, 0), make(layouts[k], "b", 1024, 40, 0) };
        memset(bytes_of(&t[0]), 0, t[0].available_bytes);
        expect(t, 2, layouts[k]);
        release(t, 2);
    }
}

/* With one large tensor among many small ones, at least 2000 blocks are tested: the bad block is number 2000 of the
 * last tensor. */
TEST(sample_is_large_enough)
{
    qn_q2_tensor t[101];
    for (size_t i = 0; i < 100; i++)
        t[i] = make(QN_TYPE_PQ2_0, "small", 128, 2, 0);
    t[100] = make(QN_TYPE_PQ2_0, "large.weight", 1280, 300, 0);
    expect(t, 101, QN_TYPE_PQ2_0);
    bytes_of(&t[100])[1999 * 34 + 1] |= 0x80;
    expect_rejection(t, 101, "large.weight");
    release(t, 101);
}
