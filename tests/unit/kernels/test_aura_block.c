/* AURA pages, the layout of a cache: stores and loads of single positions, and attention over blocks of pages in
 * integers compared with float64 over the decoded rows. */
#include "helper_aura.h"

#include "base/cpu.h"
#include "kernels/kernels.h"

static qn_kernels kernels;

static int fill_kernels(void)
{
    qn_kernels_init(&kernels, qn_cpu_present());
    return 0;
}

/* The packed stream and a page contain the same codes at every position, in whatever order positions are written. A
 * store does not change the bits of other positions, a second store replaces the first, and no byte outside the page
 * is written. */
TEST(same_as_the_stream)
{
    for (size_t i = 0; i < N_DIMS; i++)
        for (size_t j = 0; j < N_BITS; j++) {
            label("dim %zu bits %u", aura_dims[i], aura_bits[j]);
            const size_t dim = aura_dims[i], words = qn_aura_row_words(dim, aura_bits[j]);
            const unsigned bits = aura_bits[j];
            const size_t key_bytes = qn_aura_key_page_bytes(dim, bits),
                         value_bytes = qn_aura_value_page_bytes(dim, bits);
            uint8_t *keys = memory(key_bytes + 64, 0x5a), *values = memory(value_bytes + 64, 0x5a), codes[512],
                    back[512];
            uint32_t *stream = memory(QN_PAGE * words * 4, 0);
            float scale;
            assert_true(key_bytes <= QN_PAGE * (4 * words + 4) && value_bytes <= QN_PAGE * (4 * words + 4));
            assert_true(key_bytes % 64 == 0 && value_bytes % 64 == 0);
            for (size_t n = 0; n < 8 * QN_PAGE; n++) {
                const size_t position = n * 77 % QN_PAGE;
                for (size_t d = 0; d < dim; d++)
                    codes[d] = (uint8_t)(uniform() * (double)(1u << bits));
                qn_aura_pack(stream + position * words, codes, dim, bits);
                qn_aura_store_key(keys, position, codes, (float)n, dim, bits);
                qn_aura_store_value(values, position, codes, (float)n + 0.5f, dim, bits);
            }
            for (size_t n = 7 * QN_PAGE; n < 8 * QN_PAGE; n++) {
                label("position %zu", n * 77 % QN_PAGE);
                const size_t position = n * 77 % QN_PAGE;
                qn_aura_unpack(codes, stream + position * words, dim, bits);
                qn_aura_load_key(keys, position, back, &scale, dim, bits);
                assert_memory_equal(back, codes, dim);
                assert_true(scale == (float)n);
                qn_aura_load_value(values, position, back, &scale, dim, bits);
                assert_memory_equal(back, codes, dim);
                assert_true(scale == (float)n + 0.5f);
            }
            for (size_t b = 0; b < 64; b++)
                assert_true(keys[key_bytes + b] == 0x5a && values[value_bytes + b] == 0x5a);
            free(keys);
            free(values);
            free(stream);
        }
}

/* One position's codes in the layout that aura.h describes, on which the look-ups of 4-bit codes rely. */
TEST(four_bits_by_hand)
{
    const size_t bytes = qn_aura_key_page_bytes(64, 4);
    uint8_t *part = memory(bytes, 0), codes[64];
    for (size_t d = 0; d < 64; d++)
        codes[d] = (uint8_t)(d % 8 + 1);
    qn_aura_store_key(part, 16 + 3, codes, 1, 64, 4);
    const uint8_t *lane = part + 64 * 8 + 3 * 4; /* second tile (a tile is 8 units of 64 bytes), fourth lane */
    for (size_t unit = 0; unit < 8; unit++, lane += 64)
        assert_true(lane[0] == 0x51 && lane[1] == 0x73 && lane[2] == 0x62 && lane[3] == 0x84);
    free(part);
}

/* A block whose pages are in descending order in memory. */
struct block_case {
    qn_aura_block block;
    uint8_t *keys, *values;
    float *decoded_keys, *decoded_values; /* [QN_AURA_BLOCK, dim], rotated back */
};

static uint8_t *key_page(const struct block_case *c, size_t position)
{
    const qn_aura_codec *codec = c->block.key_codec;
    return c->keys + (QN_AURA_BLOCK_PAGES - 1 - position / QN_PAGE) * qn_aura_key_page_bytes(codec->dim, codec->bits);
}

static uint8_t *value_page(const struct block_case *c, size_t position)
{
    const qn_aura_codec *codec = c->block.value_codec;
    return c->values +
           (QN_AURA_BLOCK_PAGES - 1 - position / QN_PAGE) * qn_aura_value_page_bytes(codec->dim, codec->bits);
}

static void store(const struct block_case *c, size_t position, const float *key, const float *value)
{
    const qn_aura_codec *key_codec = c->block.key_codec, *value_codec = c->block.value_codec;
    float rotated_rows[2][512];
    qn_aura_rotate(&kernels.aura, key_codec, rotated_rows[0], key);
    qn_aura_rotate(&kernels.aura, value_codec, rotated_rows[1], value);
    qn_aura_store_position(&kernels.aura, key_codec, value_codec, key_page(c, position), value_page(c, position),
                           position % QN_PAGE, rotated_rows[0], rotated_rows[1]);
}

/* Positions `stored` and later stay poisoned: codes of all ones, NaN scales; pages after them are NULL. */
static struct block_case new_block(size_t dim, unsigned key_bits, unsigned value_bits, size_t stored)
{
    struct block_case c = { .block = { .key_codec = new_codec(dim, key_bits),
                                       .value_codec = new_codec(dim, value_bits) } };
    c.keys = memory(QN_AURA_BLOCK_PAGES * qn_aura_key_page_bytes(dim, key_bits), 0xff);
    c.values = memory(QN_AURA_BLOCK_PAGES * qn_aura_value_page_bytes(dim, value_bits), 0xff);
    for (size_t j = 0; j < stored; j += QN_PAGE) {
        c.block.keys[j / QN_PAGE] = key_page(&c, j);
        c.block.values[j / QN_PAGE] = value_page(&c, j);
    }
    c.decoded_keys = normals(QN_AURA_BLOCK * dim, 1);
    c.decoded_values = normals(QN_AURA_BLOCK * dim, 1);
    for (size_t j = 0; j < stored; j++) {
        float *rows[2] = { c.decoded_keys + j * dim, c.decoded_values + j * dim };
        store(&c, j, rows[0], rows[1]);
        for (int i = 0; i < 2; i++) {
            const qn_aura_codec *codec = i ? c.block.value_codec : c.block.key_codec;
            uint8_t codes[512];
            float scale, y[512];
            (i ? qn_aura_load_value : qn_aura_load_key)((i ? value_page : key_page)(&c, j), j % QN_PAGE, codes, &scale,
                                                        dim, codec->bits);
            for (size_t d = 0; d < dim; d++)
                y[d] = codec->codebook[codes[d]] * scale;
            qn_aura_rotate_back(&kernels.aura, codec, rows[i], y);
        }
    }
    return c;
}

static void free_block(struct block_case *c)
{
    qn_aura_codec_free((qn_aura_codec *)c->block.key_codec);
    qn_aura_codec_free((qn_aura_codec *)c->block.value_codec);
    free(c->keys);
    free(c->values);
    free(c->decoded_keys);
    free(c->decoded_values);
}

static void attend(const struct block_case *c, const float *query, uint16_t visible, float *result, float *l)
{
    const size_t dim = c->block.key_codec->dim;
    int16_t quantized[512];
    float rotated[512], scale, m, out[512];
    qn_aura_rotate(&kernels.aura, c->block.key_codec, rotated, query);
    qn_aura_quantize_query(quantized, &scale, rotated, c->block.key_codec);
    kernels.aura.block(quantized, &scale, 1, &c->block, &visible, out, &m, l);
    for (size_t d = 0; d < dim; d++)
        out[d] /= *l;
    qn_aura_rotate_back(&kernels.aura, c->block.value_codec, result, out);
}

TEST(near_float64)
{
    static const uint16_t seen[] = { 256, 1, 100, 255, 17 };
    static const double sharpness[] = { 0, 1, 4 }; /* of the softmax: from uniform weights to nearly a single key */
    double worst = 0;
    for (size_t i = 0; i < N_DIMS; i++)
        for (size_t j = 0; j < N_BITS; j++) {
            const size_t dim = aura_dims[i], stored = seen[(i + j) % 5];
            label("dim %zu bits %u %u, %zu keys", dim, aura_bits[j], aura_bits[(i + j) % N_BITS], stored);
            struct block_case c = new_block(dim, aura_bits[j], aura_bits[(i + j) % N_BITS], stored);
            for (size_t k = 0; k < 3; k++) {
                float *query = normals(dim, sharpness[k] / sqrt((double)dim)), result[512], l;
                double exact[512];
                attend(&c, query, (uint16_t)stored, result, &l);
                attend_float64(query, c.decoded_keys, c.decoded_values, 0, stored, dim, 1, NAN, exact);
                const double off = relative(result, exact, dim);
                worst = off > worst ? off : worst;
                /* Rounding errors are half a unit, and mean magnitudes are 2500 units for centroids, 1000 for weights,
                 * 300 to 2500 for queries: 3e-4 of an output, and 1e-5 of |q| |k| for each score, which is up to 90
                 * here. */
                if (!(off < 1e-3))
                    fail_msg("sharpness %g: off by %g", sharpness[k], off);
                free(query);
            }
            free_block(&c);
        }
    print_message("largest error %.2g\n", worst);
}

/* Integer sums fit 32 bits in the worst cases: the largest codes, and queries and weights that are all equal or all but
 * one nearly 0. */
TEST(sums_fit)
{
    for (size_t j = 0; j < N_BITS; j++)
        for (int kind = 0; kind < 2; kind++) {
            label("bits %u, %s", aura_bits[j], kind ? "one key" : "equal keys");
            struct block_case c = new_block(512, aura_bits[j], aura_bits[j], QN_AURA_BLOCK);
            const float top = c.block.key_codec->codebook[(1u << aura_bits[j]) - 1];
            uint8_t codes[512];
            int16_t quantized[512];
            float query[512] = { 0 }, scale, out[512], m, l;
            const uint16_t visible = QN_AURA_BLOCK;
            memset(codes, (int)(1u << aura_bits[j]) - 1, sizeof codes);
            for (size_t p = 0; p < QN_AURA_BLOCK; p++) {
                qn_aura_store_key(key_page(&c, p), p % QN_PAGE, codes, 1, 512, aura_bits[j]);
                qn_aura_store_value(value_page(&c, p), p % QN_PAGE, codes, kind && p ? 1e-6f : 1, 512, aura_bits[j]);
            }
            for (size_t d = 0; d < 512; d++)
                query[d] = kind && d ? 1e-7f : 1;
            qn_aura_quantize_query(quantized, &scale, query, c.block.key_codec);
            kernels.aura.block(quantized, &scale, 1, &c.block, &visible, out, &m, &l);
            /* Roundings of half a unit: queries are 511 units here, weights 1023, centroids 8191. */
            assert_true(fabs((double)m / ((double)top * (kind ? 1 : 512)) - 1) < 1.5e-3);
            assert_true(l == 256);
            assert_true(fabs((double)out[0] / ((double)top * (kind ? 1 + 255e-6 : 256)) - 1) < 1.5e-3);
            assert_true(out[511] == out[0]);
            free_block(&c);
        }
}

/* A row that is not finite makes the results of queries that attend to it NaN, and no others; a query that is not
 * finite affects only its own result. */
TEST(not_finite)
{
    static const float bad[] = { NAN, INFINITY };
    for (int kind = 0; kind < 2; kind++)
        for (int is_value = 0; is_value < 2; is_value++) {
            label("%g in a %s", (double)bad[kind], is_value ? "value" : "key");
            struct block_case c = new_block(128, 4, 3, 100);
            float *row = normals(128, 1), *other = normals(128, 1), query[128], result[128], l;
            for (size_t d = 0; d < 128; d++)
                query[d] = other[d];
            row[5] = bad[kind];
            store(&c, 50, is_value ? other : row, is_value ? row : other);
            for (uint16_t visible = 49; visible <= 53; visible++) {
                label("%u visible", (unsigned)visible);
                attend(&c, query, visible, result, &l);
                for (size_t d = 0; d < 128; d++)
                    assert_true(isfinite(result[d]) == (visible <= 50));
            }
            query[3] = bad[kind];
            attend(&c, query, 10, result, &l);
            assert_true(isnan(result[0]) && isnan(result[127]));
            free(row);
            free(other);
            free_block(&c);
        }
}

TEST_GROUP(fill_kernels, NULL)
