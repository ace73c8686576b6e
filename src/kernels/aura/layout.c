/* Stores and loads codes of one position in a page, in the layout described in aura.h. */
#include "kernels/aura/aura.h"

#include <math.h>
#include <string.h>

enum { VECTOR = 64, LANE = 4 };

/* The bits of a code in one plane: `width` bits from bit `from` on. */
struct plane {
    unsigned width, from;
};

static const struct plane low_planes[9] = {
    [2] = { 2, 0 }, [3] = { 2, 0 }, [4] = { 4, 0 }, [6] = { 4, 0 }, [8] = { 8, 0 }
};
static const struct plane high_planes[9] = { [3] = { 1, 2 }, [6] = { 2, 4 } };

/* Returns the number of codes of a unit: the number that the vector of the narrowest plane holds. */
static size_t unit_codes(unsigned bits)
{
    return 32 / (high_planes[bits].width ? high_planes[bits].width : low_planes[bits].width);
}

static size_t unit_bytes(unsigned bits)
{
    return 2 * unit_codes(bits) * bits;
}

/* Returns the byte offset of code i of a unit's lane, relative to the lane of its first vector, and its lowest bit in
 * *shift. */
static size_t byte_in_unit(size_t i, struct plane plane, bool high, unsigned *shift)
{
    static const size_t bytes[4] = { 0, 2, 1, 3 };
    const size_t run = i / 4, runs = 8 / plane.width; /* index of the group of four codes; groups per vector */
    *shift = (unsigned)(run % runs) * plane.width;
    return (high ? VECTOR : run / runs * 2 * VECTOR) + bytes[i % 4];
}

static unsigned code_at(const uint8_t *lane, size_t i, unsigned bits)
{
    unsigned code = 0;
    for (int high = 0; high < 2; high++) {
        const struct plane plane = high ? high_planes[bits] : low_planes[bits];
        unsigned shift;
        if (!plane.width)
            break;
        const uint8_t *byte = lane + byte_in_unit(i, plane, high, &shift);
        code |= (*byte >> shift & ((1u << plane.width) - 1)) << plane.from;
    }
    return code;
}

size_t qn_aura_key_code_bytes(size_t dim, unsigned bits)
{
    return QN_PAGE * LANE * qn_aura_row_words(dim, bits);
}

size_t qn_aura_value_code_bytes(size_t dim, unsigned bits)
{
    return QN_PAGE * dim * bits / 8;
}

size_t qn_aura_key_page_bytes(size_t dim, unsigned bits)
{
    return qn_aura_key_code_bytes(dim, bits) + QN_PAGE * sizeof(float);
}

size_t qn_aura_value_page_bytes(size_t dim, unsigned bits)
{
    return qn_aura_value_code_bytes(dim, bits) + QN_PAGE * sizeof(float);
}

/* Returns the offset of a position's lane in the first vector of dimension d's unit. */
static size_t key_lane(size_t position, size_t d, size_t dim, unsigned bits)
{
    const size_t tile_bytes = QN_AURA_TILE * LANE * qn_aura_row_words(dim, bits);
    return position / QN_AURA_TILE * tile_bytes + d / unit_codes(bits) * unit_bytes(bits) +
           position % QN_AURA_TILE * LANE;
}

static size_t value_lane(size_t position, size_t d, size_t dim, unsigned bits)
{
    const size_t columns = dim / QN_AURA_TILE;
    return (position / unit_codes(bits) * columns + d / QN_AURA_TILE) * unit_bytes(bits) + d % QN_AURA_TILE * LANE;
}

/* Returns four codes in the byte order of a lane: 0, 2, 1, 3. */
static uint32_t pack_quad(const uint8_t *codes)
{
    return codes[0] | (uint32_t)codes[2] << 8 | (uint32_t)codes[1] << 16 | (uint32_t)codes[3] << 24;
}

/* Returns one plane's bits of the codes of a lane: at most 8 / width groups of four. */
static uint32_t pack_lane(const uint8_t *codes, size_t n_runs, struct plane plane)
{
    const uint32_t mask = ((1u << plane.width) - 1) * 0x01010101u;
    uint32_t lane = 0;
    for (size_t run = 0; run < n_runs; run++)
        lane |= (pack_quad(codes + 4 * run) >> plane.from & mask) << run * plane.width;
    return lane;
}

void qn_aura_store_key(uint8_t *page_data, size_t position, const uint8_t *codes, float scale, size_t dim,
                       unsigned bits)
{
    const size_t unit = unit_codes(bits);
    for (size_t d = 0; d < dim; d += unit) {
        uint8_t *lane = page_data + key_lane(position, d, dim, bits);
        const size_t n_runs = (dim - d < unit ? dim - d : unit) / 4;
        for (int high = 0; high < 2; high++) {
            const struct plane plane = high ? high_planes[bits] : low_planes[bits];
            const size_t runs = plane.width ? 8 / plane.width : n_runs;
            for (size_t run = 0; plane.width && run < n_runs; run += runs) {
                unsigned shift;
                const size_t at = byte_in_unit(4 * run, plane, high, &shift);
                const uint32_t word = pack_lane(codes + d + 4 * run, n_runs - run < runs ? n_runs - run : runs, plane);
                memcpy(lane + at, &word, sizeof word);
            }
        }
    }
    memcpy(page_data + qn_aura_key_code_bytes(dim, bits) + position * sizeof scale, &scale, sizeof scale);
}

void qn_aura_store_value(uint8_t *page_data, size_t position, const uint8_t *codes, float scale, size_t dim,
                         unsigned bits)
{
    for (int high = 0; high < 2; high++) {
        const struct plane plane = high ? high_planes[bits] : low_planes[bits];
        unsigned shift;
        if (!plane.width)
            break;
        const size_t at = byte_in_unit(position % unit_codes(bits), plane, high, &shift);
        const unsigned mask = (1u << plane.width) - 1;
        for (size_t column = 0; column < dim; column += QN_AURA_TILE) {
            uint8_t *byte = page_data + value_lane(position, column, dim, bits) + at;
            for (size_t i = 0; i < QN_AURA_TILE; i++, byte += LANE)
                *byte = (uint8_t)((*byte & ~(mask << shift)) | (codes[column + i] >> plane.from & mask) << shift);
        }
    }
    memcpy(page_data + qn_aura_value_code_bytes(dim, bits) + position * sizeof scale, &scale, sizeof scale);
}

void qn_aura_load_key(const uint8_t *page_data, size_t position, uint8_t *codes, float *scale, size_t dim,
                      unsigned bits)
{
    for (size_t d = 0; d < dim; d++)
        codes[d] = (uint8_t)code_at(page_data + key_lane(position, d, dim, bits), d % unit_codes(bits), bits);
    memcpy(scale, page_data + qn_aura_key_code_bytes(dim, bits) + position * sizeof *scale, sizeof *scale);
}

void qn_aura_load_value(const uint8_t *page_data, size_t position, uint8_t *codes, float *scale, size_t dim,
                        unsigned bits)
{
    for (size_t d = 0; d < dim; d++)
        codes[d] = (uint8_t)code_at(page_data + value_lane(position, d, dim, bits), position % unit_codes(bits), bits);
    memcpy(scale, page_data + qn_aura_value_code_bytes(dim, bits) + position * sizeof *scale, sizeof *scale);
}

void qn_aura_store_position(const qn_aura_kernels *kernels, const qn_aura_codec *key_codec,
                            const qn_aura_codec *value_codec, uint8_t *keys, uint8_t *values, size_t position,
                            const float *key, const float *value)
{
    uint8_t codes[QN_AURA_MAX_DIM];
    float scale;
    const bool value_ok = qn_aura_encode_rotated(kernels, value_codec, value, codes, &scale);
    qn_aura_store_value(values, position, codes, scale, value_codec->dim, value_codec->bits);
    const bool key_ok = qn_aura_encode_rotated(kernels, key_codec, key, codes, &scale);
    qn_aura_store_key(keys, position, codes, key_ok && value_ok ? scale : NAN, key_codec->dim, key_codec->bits);
}
