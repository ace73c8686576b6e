/* The part of the matmul that all instruction sets share: activation buffers, selection of the kernels, loops over
 * tiles. */
#include "kernels/matmul/matmul.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "kernels/matmul/blocks.h"
#include "kernels/matmul/packed.h"
#include "kernels/matmul/tiles.h"

#include <string.h>

qn_status qn_acts_create(qn_acts *acts, size_t max_rows, size_t n_cols, unsigned layouts, bool hilo)
{
    *acts = (qn_acts){
        .n_cols = n_cols, .n_super = n_cols / QN_SUPER + (n_cols % QN_SUPER != 0), .max_rows = max_rows, .hilo = hilo
    };
    size_t groups, values;
    if (!qn_mul_size(max_rows, acts->n_super * QN_SUPER_GROUPS, &groups) || !qn_mul_size(max_rows, n_cols, &values))
        return qn_fail(QN_ERR_MEMORY, "activations: %zu rows of %zu do not fit in memory", max_rows, n_cols);
    qn_status status = QN_OK;
    for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS && status == QN_OK; layout++)
        if (layouts & 1u << layout) {
            status = qn_alloc(&acts->codes[layout], groups, QN_QUANT_GROUP, "activation codes");
            if (status == QN_OK && hilo)
                status = qn_alloc(&acts->codes_lo[layout], groups, QN_QUANT_GROUP, "activation codes");
        }
    if (status == QN_OK && layouts & ~(1u << QN_ACT_F32)) {
        status = qn_alloc(&acts->scale, groups, sizeof *acts->scale, "activation scales");
        if (status == QN_OK)
            status = qn_alloc(&acts->sum, groups, sizeof *acts->sum, "activation sums");
        if (status == QN_OK)
            status = qn_alloc(&acts->sum_upper, groups, sizeof *acts->sum_upper, "activation sums");
    }
    if (status == QN_OK && layouts & 1u << QN_ACT_F32)
        status = qn_alloc(&acts->values, values, sizeof *acts->values, "activations");
    if (status == QN_OK && layouts & 1u << QN_ACT_LUT)
        status = qn_alloc(&acts->lut, groups, QN_GROUP_LUT_BYTES, "activation tables");
    if (status == QN_OK && hilo && layouts & 1u << QN_ACT_LUT)
        status = qn_alloc(&acts->lut_lo, groups, QN_GROUP_LUT_BYTES, "activation tables");
    const size_t token_tiles = qn_act_token_tiles(acts);
    if (status == QN_OK && layouts & 1u << QN_ACT_BLOCKS) {
        status = qn_alloc(&acts->factor, groups, sizeof *acts->factor, "activation factors");
        if (status == QN_OK)
            status = qn_alloc(&acts->block_scale, groups / QN_BLOCK_GROUPS, sizeof(float), "activation scales");
        if (status == QN_OK)
            status = qn_alloc(&acts->block_sum, groups / QN_BLOCK_GROUPS, sizeof(int32_t), "activation sums");
    }
    if (layouts & 1u << QN_ACT_BLOCK_TILES) {
        const size_t tiles = token_tiles * qn_act_blocks(acts) + 1; /* GEMMs read two at a time */
        if (status == QN_OK)
            status = qn_alloc(&acts->block_tiles, tiles, sizeof *acts->block_tiles, "activation tiles");
        if (status == QN_OK)
            status = qn_alloc(&acts->block_tiles_hi, tiles, sizeof *acts->block_tiles_hi, "activation tiles");
    }
    if (layouts & 1u << QN_ACT_TILES) {
        const size_t tiles = token_tiles * acts->n_super * QN_SUPER_GROUPS;
        if (status == QN_OK)
            status = qn_alloc(&acts->tiles, tiles, sizeof *acts->tiles, "activation tiles");
        if (status == QN_OK && hilo)
            status = qn_alloc(&acts->tiles_lo, tiles, sizeof *acts->tiles_lo, "activation tiles");
    }
    if (status != QN_OK)
        qn_acts_free(acts);
    return status;
}

void qn_acts_free(qn_acts *acts)
{
    for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
        qn_free(acts->codes[layout]);
        qn_free(acts->codes_lo[layout]);
    }
    qn_free(acts->scale);
    qn_free(acts->sum);
    qn_free(acts->sum_upper);
    qn_free(acts->values);
    qn_free(acts->lut);
    qn_free(acts->lut_lo);
    qn_free(acts->tiles);
    qn_free(acts->tiles_lo);
    qn_free(acts->factor);
    qn_free(acts->block_scale);
    qn_free(acts->block_sum);
    qn_free(acts->block_tiles);
    qn_free(acts->block_tiles_hi);
    *acts = (qn_acts){ 0 };
}

/* Returns whether n_tokens tokens with block tiles are multiplied on matrix units, by all matrices that read them. */
static bool multiplies_block_tiles(const qn_matmul_kernels *kernels, const qn_acts *acts, size_t n_tokens)
{
    const bool reads_bits = acts->lut || acts->codes[QN_ACT_1BIT] || acts->codes[QN_ACT_2BIT];
    return acts->block_tiles && kernels->gemm_blocks &&
           n_tokens >= (reads_bits ? kernels->min_block_tokens : kernels->min_ternary_tokens);
}

void qn_acts_select(qn_acts *acts, const qn_matmul_kernels *kernels, size_t n_tokens)
{
    const bool many = acts->block_tiles ? multiplies_block_tiles(kernels, acts, n_tokens)
                                        : kernels->gemm_tiles && n_tokens >= kernels->min_tile_tokens;
    acts->skip_tiles = !many;
    acts->skip_codes = many && (acts->tiles || acts->block_tiles) && acts->only_tiles;
}

void qn_matmul_kernels_init(qn_matmul_kernels *kernels, unsigned cpu)
{
    qn_matmul_init_ref(kernels);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_matmul_init_avx2(kernels);
#ifdef QN_HAVE_AVXVNNI
    if (cpu & QN_CPU_AVXVNNI)
        qn_matmul_init_avxvnni(kernels);
#endif
    if (cpu & QN_CPU_AVX512)
        qn_matmul_init_avx512(kernels);
#ifdef QN_HAVE_AMX
    if (cpu & QN_CPU_AMX)
        qn_matmul_init_amx(kernels);
#endif
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_matmul_init_neon(kernels);
    if (cpu & QN_CPU_DOTPROD)
        qn_matmul_init_neondot(kernels);
    if (cpu & QN_CPU_I8MM)
        qn_matmul_init_i8mm(kernels);
#endif
    (void)cpu;
}

static const qn_matmul_format *find_format(const qn_matmul_kernels *kernels, const qn_type_info *type)
{
    for (size_t i = 0; i < kernels->n_formats; i++)
        if (kernels->formats[i].type == type->type)
            return &kernels->formats[i];
    return NULL;
}

const qn_packed_kernel *qn_matmul_packed(const qn_matmul_kernels *kernels, const qn_type_info *type)
{
    const qn_matmul_format *format = find_format(kernels, type);
    return format && format->packed.gemm_packed ? &format->packed : NULL;
}

/* The layouts of activations with factors. Rows as stored have no GEMV. */
static unsigned block_layouts(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights)
{
    const qn_packed_kernel *kind = weights->packed ? qn_matmul_packed(kernels, weights->stored.type) : NULL;
    unsigned layouts = 1u << QN_ACT_BLOCKS | (kernels->gemm_blocks ? 1u << QN_ACT_BLOCK_TILES : 0);
    if (kind)
        layouts |= 1u << kind->layout;
    if (!kind || weights->stored.n_rows % QN_PANEL_ROWS)
        layouts |= 1u << qn_act_layout_of(weights->stored.type);
    return layouts;
}

unsigned qn_matmul_act_layouts(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, bool blocks)
{
    const qn_type_info *type = weights->stored.type;
    const qn_matmul_format *format = find_format(kernels, type);
    unsigned layouts = 1u << qn_act_layout_of(type);
    if (blocks && kernels->block_scales && qn_type_has_blocks(type))
        return block_layouts(kernels, weights);
    if (kernels->pair_rows && !(layouts & 1u << QN_ACT_F32))
        layouts |= 1u << QN_ACT_PLAIN;
    if (format && format->gemv)
        layouts |= 1u << format->layout;
    const unsigned tiles = kernels->gemm_tiles && qn_tiles_multiply_type(type) ? 1u << QN_ACT_TILES : 0;
    layouts |= tiles;
    if (!weights->packed)
        return layouts;
    const qn_packed_kernel *kind = &format->packed;
    const bool only = kind->max_tokens == SIZE_MAX && weights->stored.n_rows % QN_PANEL_ROWS == 0;
    return 1u << kind->layout | (kind->gemm_batch ? 1u << QN_ACT_PLAIN : 0) | (only ? tiles : layouts);
}

static size_t tile_scratch(const qn_matmul_kernels *kernels, size_t n_cols)
{
    const size_t n_super = (n_cols + QN_SUPER - 1) / QN_SUPER;
    return kernels->tile_rows * n_super * sizeof(qn_super_block) +
           qn_round_up(kernels->tile_rows * kernels->tile_tokens * sizeof(float), QN_ALIGN);
}

size_t qn_matmul_scratch(const qn_matmul_kernels *kernels, size_t n_cols)
{
    const size_t n_super = (n_cols + QN_SUPER - 1) / QN_SUPER;
    size_t bytes = tile_scratch(kernels, n_cols) + qn_round_up(QN_PANEL_ROWS * QN_UNPACKED_ROW_BYTES(n_cols), QN_ALIGN);
    if (kernels->gemm_tiles)
        bytes += qn_tile_panel_bytes(n_super) + qn_tile_gemm_scratch();
    if (kernels->gemm_blocks)
        bytes += qn_block_gemm_scratch();
    return bytes > QN_BATCH_SCRATCH ? bytes : QN_BATCH_SCRATCH;
}

#define SUPER_FITS(ID, weights, bytes, ...)                                                                            \
    _Static_assert(QN_SUPER / (weights) * (bytes) <= QN_MAX_SUPER_BYTES, #ID ": more bytes than QN_MAX_SUPER_BYTES");
QN_BLOCK_LAYOUTS(SUPER_FITS)

/* Unpacks a super-block. One that the row does not fill is padded with blocks of zero bytes, for readers of full
 * super-blocks. */
static void unpack_super(const qn_matmul_kernels *kernels, const qn_matmul_format *format, const qn_type_info *type,
                         const uint8_t *blocks, size_t n_blocks, qn_super_block *out)
{
    uint8_t padded[QN_MAX_SUPER_BYTES];
    if (!format) {
        kernels->unpack(type, blocks, n_blocks, out);
        return;
    }
    if (n_blocks * type->block_weights < QN_SUPER) {
        memset(padded, 0, sizeof padded);
        blocks = memcpy(padded, blocks, n_blocks * type->block_bytes);
    }
    format->unpack(blocks, out);
}

static void unpack_tile(const qn_matmul_kernels *kernels, const qn_matrix *weights, size_t row, size_t n_rows,
                        qn_super_block *unpacked)
{
    const size_t n_super = (weights->n_cols + QN_SUPER - 1) / QN_SUPER;
    const size_t super_blocks = QN_SUPER / weights->type->block_weights;
    const size_t n_blocks = weights->n_cols / weights->type->block_weights;
    const qn_matmul_format *format = find_format(kernels, weights->type);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t s = 0; s < n_super; s++) {
            const size_t first = s * super_blocks, left = n_blocks - first;
            unpack_super(kernels, format, weights->type,
                         weights->data + (row + r) * weights->row_bytes + first * weights->type->block_bytes,
                         left < super_blocks ? left : super_blocks, &unpacked[r * n_super + s]);
        }
    if (kernels->pair_rows)
        kernels->pair_rows(weights->type, unpacked, n_rows, n_super);
}

/* Up to GEMV_MAX_TOKENS tokens, one GEMV per token over GEMV_BLOCK_ROWS rows, which stay in L1, is faster than
 * unpacking those rows. */
enum { GEMV_MAX_TOKENS = 4, GEMV_BLOCK_ROWS = 32 };

static void gemv_by_token(qn_gemv_fn gemv, const qn_matrix *weights, const qn_acts *acts, size_t n_tokens,
                          size_t row_begin, size_t row_end, bool accumulate, float *out, size_t out_stride)
{
    const size_t step = n_tokens == 1 ? row_end - row_begin : GEMV_BLOCK_ROWS;
    for (size_t row = row_begin, end; row < row_end; row = end) {
        end = row_end - row < step ? row_end : row + step;
        for (size_t token = 0; token < n_tokens; token++)
            gemv(weights, row, end, acts, token, accumulate, out + token * out_stride);
    }
}

/* Returns the number of tokens whose activations fit L2 (512 KiB assumed) during the loop over rows; a multiple of
 * every tile_tokens. Unpacking the rows again for the next block of tokens costs less than reading activations from
 * beyond L2. */
static size_t tokens_per_l2(const qn_acts *acts)
{
    const size_t token_bytes = acts->n_super * (QN_SUPER * (acts->hilo ? 2 : 1) + 3 * sizeof(float) * QN_SUPER_GROUPS);
    const size_t tokens = (512 << 10) / token_bytes / 12 * 12;
    return tokens > 12 ? tokens : 12;
}

static void store_tile(const float *tile, size_t tile_rows, size_t n_rows, size_t n_tokens, bool accumulate, float *out,
                       size_t out_stride)
{
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t r = 0; r < n_rows; r++) {
            float *to = out + t * out_stride + r;
            *to = accumulate ? *to + tile[t * tile_rows + r] : tile[t * tile_rows + r];
        }
}

static bool uses_batch(const qn_packed_kernel *kind, const qn_acts *acts, size_t n_tokens)
{
    return kind->gemm_batch && !acts->factor && (!acts->hilo || kind->hilo) && n_tokens >= kind->min_batch &&
           n_tokens <= kind->max_tokens;
}

size_t qn_matmul_panels_together(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                                 size_t n_tokens)
{
    const qn_packed_kernel *kind = weights->packed ? qn_matmul_packed(kernels, weights->stored.type) : NULL;
    return kind && uses_batch(kind, acts, n_tokens) ? QN_BATCH_ROWS / QN_PANEL_ROWS : 2;
}

/* Multiplies packed rows. The activations of a block of tokens stay in L2 during the loop over rows. */
static void matmul_packed(const qn_packed_kernel *kind, const qn_packed_matrix *weights, const qn_acts *acts,
                          size_t n_tokens, size_t row_begin, size_t row_end, bool accumulate, float *out,
                          size_t out_stride, void *scratch)
{
    if (uses_batch(kind, acts, n_tokens)) {
        kind->gemm_batch(weights, row_begin, row_end - row_begin, acts, 0, n_tokens, accumulate, out, out_stride,
                         scratch);
        return;
    }
    const size_t group_bytes = kind->layout == QN_ACT_LUT ? QN_GROUP_LUT_BYTES : QN_QUANT_GROUP;
    size_t step = (512 << 10) / (acts->n_super * QN_SUPER_GROUPS * group_bytes) / QN_PANEL_TOKENS * QN_PANEL_TOKENS;
    step = step ? step : QN_PANEL_TOKENS;
    for (size_t first = 0, n; first < n_tokens; first += n) {
        n = n_tokens - first < step ? n_tokens - first : step;
        kind->gemm_packed(weights, row_begin, row_end - row_begin, acts, first, n, accumulate, out, out_stride);
    }
}

/* Multiplies rows as stored: GEMM tiles, or one GEMV per token for few tokens. */
static void matmul_stored(const qn_matmul_kernels *kernels, const qn_matrix *weights, const qn_acts *acts,
                          size_t n_tokens, size_t row_begin, size_t row_end, bool accumulate, float *out,
                          size_t out_stride, void *scratch)
{
    const bool is_float = qn_act_layout_of(weights->type) == QN_ACT_F32;
    const size_t tile_rows = kernels->tile_rows, tile_tokens = kernels->tile_tokens;
    const qn_matmul_format *format = find_format(kernels, weights->type);
    const bool blocks = acts->factor && qn_type_has_blocks(weights->type); /* no GEMV has their arithmetic */
    const qn_gemv_fn gemv = !format || blocks ? NULL : acts->hilo ? format->gemv_hilo : format->gemv;
    if (gemv && n_tokens <= GEMV_MAX_TOKENS) {
        gemv_by_token(gemv, weights, acts, n_tokens, row_begin, row_end, accumulate, out, out_stride);
        return;
    }
    qn_super_block *unpacked = scratch;
    float *tile = (float *)(unpacked + tile_rows * acts->n_super);
    const size_t token_block = is_float ? n_tokens : tokens_per_l2(acts);
    for (size_t begin = 0, end; begin < n_tokens; begin = end) {
        end = n_tokens - begin < token_block ? n_tokens : begin + token_block;
        for (size_t row = row_begin; row < row_end; row += tile_rows) {
            const size_t n_rows = row_end - row < tile_rows ? row_end - row : tile_rows;
            if (!is_float)
                unpack_tile(kernels, weights, row, n_rows, unpacked);
            for (size_t first = begin; first < end; first += tile_tokens) {
                const size_t n = end - first < tile_tokens ? end - first : tile_tokens;
                if (is_float)
                    kernels->gemm_float(weights, row, n_rows, acts, first, n, tile);
                else
                    kernels->gemm(weights->type, unpacked, n_rows, acts, first, n, tile);
                store_tile(tile, tile_rows, n_rows, n, accumulate, out + first * out_stride + row, out_stride);
            }
        }
    }
}

/* Unpacks rows [row, row + n_rows) as stored to a panel of codes. */
static void fill_tile_panel(const qn_matmul_kernels *kernels, const qn_matrix *weights, size_t row, size_t n_rows,
                            void *memory, qn_tile_panel *panel)
{
    const size_t super_blocks = QN_SUPER / weights->type->block_weights;
    const size_t n_blocks = weights->n_cols / weights->type->block_weights;
    const qn_matmul_format *format = find_format(kernels, weights->type);
    qn_super_block block;
    qn_tile_panel_begin(panel, weights->type, n_rows, weights->n_cols, memory);
    for (size_t s = 0; s < panel->n_super; s++) /* the outer loop: lines of a super-block stay in L1 */
        for (size_t r = 0; r < n_rows; r++) {
            const size_t first = s * super_blocks, left = n_blocks - first;
            unpack_super(kernels, format, weights->type,
                         weights->data + (row + r) * weights->row_bytes + first * weights->type->block_bytes,
                         left < super_blocks ? left : super_blocks, &block);
            kernels->put_tile(panel, r, s, &block);
        }
}

bool qn_matmul_uses_tiles(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                          size_t n_tokens)
{
    if (acts->factor && qn_type_has_blocks(weights->stored.type))
        return multiplies_block_tiles(kernels, acts, n_tokens);
    return acts->tiles && n_tokens >= kernels->min_tile_tokens && kernels->gemm_tiles &&
           qn_tiles_multiply_type(weights->stored.type);
}

/* The number of rows from `row` on that are in its panel and before row_end. */
static size_t rows_of_panel(size_t row, size_t row_end)
{
    const size_t end = row / QN_TILE_PANEL_ROWS * QN_TILE_PANEL_ROWS + QN_TILE_PANEL_ROWS;
    return (row_end < end ? row_end : end) - row;
}

/* Returns the number of panels of the first of the fewest calls, nearly equal, for rows [row, row_end). */
static size_t panels_of_call(size_t row, size_t row_end)
{
    const size_t n = (row_end - 1) / QN_TILE_PANEL_ROWS - row / QN_TILE_PANEL_ROWS + 1,
                 n_calls = (n + QN_BLOCK_MAX_PANELS - 1) / QN_BLOCK_MAX_PANELS;
    return (n + n_calls - 1) / n_calls;
}

/* multiply_tiles of types with blocks: some panels at a time. */
static void multiply_blocks(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                            size_t n_tokens, size_t row_begin, size_t row_end, bool accumulate, float *out,
                            size_t out_stride, void *scratch)
{
    const qn_matrix *stored = &weights->stored;
    const size_t n_packed = weights->packed ? stored->n_rows / QN_PANEL_ROWS * QN_PANEL_ROWS : 0;
    for (size_t row = row_begin, next = row; row < row_end; row = next) {
        qn_block_panel panels[QN_BLOCK_MAX_PANELS];
        const size_t most = panels_of_call(row, row_end);
        size_t n_panels = 0;
        for (; n_panels < most && next < row_end; next += panels[n_panels++].n_rows) {
            const size_t in_panel = next % QN_PANEL_ROWS;
            panels[n_panels] =
                (qn_block_panel){ .type = stored->type,
                                  .n_rows = rows_of_panel(next, row_end),
                                  .n_blocks = stored->n_cols / QN_BLOCK,
                                  .packed =
                                      next < n_packed ? weights->packed + (next - in_panel) * stored->row_bytes : NULL,
                                  .packed_row = in_panel,
                                  .stored = stored->data + next * stored->row_bytes,
                                  .row_bytes = stored->row_bytes };
        }
        for (size_t first = 0, n; first < n_tokens; first += n) {
            n = n_tokens - first < QN_TILE_MAX_TOKENS ? n_tokens - first : QN_TILE_MAX_TOKENS;
            kernels->gemm_blocks(panels, n_panels, acts, first, n, accumulate, out + row, out_stride, scratch);
        }
    }
}

/* Multiplies on matrix units. */
static void multiply_tiles(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                           size_t n_tokens, size_t row_begin, size_t row_end, bool accumulate, float *out,
                           size_t out_stride, void *scratch)
{
    const qn_matrix *stored = &weights->stored;
    if (acts->factor && qn_type_has_blocks(stored->type)) {
        multiply_blocks(kernels, weights, acts, n_tokens, row_begin, row_end, accumulate, out, out_stride, scratch);
        return;
    }
    const size_t n_packed = weights->packed ? stored->n_rows / QN_PANEL_ROWS * QN_PANEL_ROWS : 0;
    const size_t n_super = acts->n_super;
    const qn_packed_kernel *kind = qn_matmul_packed(kernels, stored->type);
    uint8_t *rows = (uint8_t *)scratch + tile_scratch(kernels, stored->n_cols);
    uint8_t *memory = rows + qn_round_up(QN_PANEL_ROWS * QN_UNPACKED_ROW_BYTES(stored->n_cols), QN_ALIGN);
    void *gemm_scratch = memory + qn_tile_panel_bytes(n_super);
    for (size_t row = row_begin, n_rows; row < row_end; row += n_rows) {
        qn_tile_panel panel;
        n_rows = rows_of_panel(row, row_end);
        if (row < n_packed) {
            qn_matrix unpacked = *stored;
            unpacked.data = rows;
            qn_matmul_unpack(weights, kind->packing, row / QN_PANEL_ROWS, rows);
            fill_tile_panel(kernels, &unpacked, row % QN_PANEL_ROWS, n_rows, memory, &panel);
        } else {
            fill_tile_panel(kernels, stored, row, n_rows, memory, &panel);
        }
        for (size_t first = 0, n; first < n_tokens; first += n) {
            n = n_tokens - first < QN_TILE_MAX_TOKENS ? n_tokens - first : QN_TILE_MAX_TOKENS;
            kernels->gemm_tiles(&panel, acts, first, n, accumulate, out + row, out_stride, gemm_scratch);
        }
    }
}

void qn_matmul_rows(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                    size_t n_tokens, size_t row_begin, size_t row_end, bool accumulate, float *out, size_t out_stride,
                    void *scratch)
{
    if (!n_tokens)
        return;
    const qn_matrix *stored = &weights->stored;
    if (qn_matmul_uses_tiles(kernels, weights, acts, n_tokens)) {
        multiply_tiles(kernels, weights, acts, n_tokens, row_begin, row_end, accumulate, out, out_stride, scratch);
        return;
    }
    const size_t n_packed = weights->packed ? stored->n_rows / QN_PANEL_ROWS * QN_PANEL_ROWS : 0;
    const size_t end = row_end < n_packed ? row_end : n_packed;
    const qn_packed_kernel *kind = row_begin < end ? qn_matmul_packed(kernels, stored->type) : NULL;
    if (kind && (acts->factor || n_tokens <= kind->max_tokens) && (!acts->hilo || kind->hilo)) {
        matmul_packed(kind, weights, acts, n_tokens, row_begin, end, accumulate, out, out_stride, scratch);
        row_begin = end;
    }
    for (; row_begin < end; row_begin += QN_PANEL_ROWS) {
        qn_matrix panel = *stored;
        uint8_t *rows = (uint8_t *)scratch + tile_scratch(kernels, stored->n_cols);
        panel.data = rows;
        qn_matmul_unpack(weights, kind->packing, row_begin / QN_PANEL_ROWS, rows);
        matmul_stored(kernels, &panel, acts, n_tokens, 0, QN_PANEL_ROWS, accumulate, out + row_begin, out_stride,
                      scratch);
    }
    if (row_begin < row_end)
        matmul_stored(kernels, stored, acts, n_tokens, row_begin, row_end, accumulate, out, out_stride, scratch);
}
