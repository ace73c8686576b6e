/* The shaders' code, their grids, and rows of weights in their formats. */
#include "vulkan/kernels/kernels.h"

#include "base/f16.h"
#include "base/memory.h"
#include "gpu/f16_rows.h"
#include "gpu/recurrent_layout.h"
#include "plan/page.h"

#include <string.h>

/* ---- Code, as glslc has compiled it ---- */

static const uint32_t embed_code[] = {
#include "vulkan/kernels/spirv/embed.inc"
};
static const uint32_t rope_code[] = {
#include "vulkan/kernels/spirv/rope.inc"
};
static const uint32_t attention_code[] = {
#include "vulkan/kernels/spirv/attention.inc"
};
static const uint32_t combine_code[] = {
#include "vulkan/kernels/spirv/combine.inc"
};
static const uint32_t quantize_code[] = {
#include "vulkan/kernels/spirv/quantize.inc"
};
static const uint32_t gemv_code[] = {
#include "vulkan/kernels/spirv/gemv.inc"
};
static const uint32_t gemv_dot_code[] = {
#include "vulkan/kernels/spirv/gemv.dot.inc"
};
static const uint32_t matmul_code[] = {
#include "vulkan/kernels/spirv/matmul.inc"
};
static const uint32_t matmul_dot_code[] = {
#include "vulkan/kernels/spirv/matmul.dot.inc"
};
static const uint32_t matmul_tiles_code[] = {
#include "vulkan/kernels/spirv/matmul_tiles.inc"
};
static const uint32_t matmul_tiles_dot_code[] = {
#include "vulkan/kernels/spirv/matmul_tiles.dot.inc"
};
static const uint32_t matmul_matrix_code[] = {
#include "vulkan/kernels/spirv/matmul_matrix.inc"
};
static const uint32_t matmul_matrix_small_code[] = {
#include "vulkan/kernels/spirv/matmul_matrix.small.inc"
};
static const uint32_t matmul_f16_code[] = {
#include "vulkan/kernels/spirv/matmul_f16.inc"
};
static const uint32_t prepare_code[] = {
#include "vulkan/kernels/spirv/prepare.inc"
};
static const uint32_t conv_code[] = {
#include "vulkan/kernels/spirv/conv.inc"
};
static const uint32_t delta_code[] = {
#include "vulkan/kernels/spirv/delta.inc"
};
static const uint32_t delta_scores_code[] = {
#include "vulkan/kernels/spirv/delta_scores.inc"
};
static const uint32_t delta_row_code[] = {
#include "vulkan/kernels/spirv/delta_row.inc"
};
static const uint32_t append_code[] = {
#include "vulkan/kernels/spirv/append.inc"
};

enum kernel {
    EMBED,
    ROPE,
    QUANTIZE,
    ATTENTION,
    COMBINE,
    GEMV,
    GEMV_DOT,
    MATMUL,
    MATMUL_DOT,
    MATMUL_TILES,
    MATMUL_TILES_DOT,
    MATMUL_MATRIX,
    MATMUL_MATRIX_SMALL,
    MATMUL_F16,
    PREPARE,
    CONV,
    DELTA,
    DELTA_SCORES,
    DELTA_ROW,
    APPEND,
    N_KERNELS
};

#define SHADER(name, args)                                                                                             \
    {                                                                                                                  \
#name, name##_code, sizeof name##_code, sizeof(qn_vk_##args##_args)                                            \
    }

static const qn_vk_shader shaders[] = {
    [EMBED] = SHADER(embed, embed),
    [ROPE] = SHADER(rope, rope),
    [QUANTIZE] = SHADER(quantize, quantize),
    [COMBINE] = SHADER(combine, combine),
    [ATTENTION] = SHADER(attention, attention),
    [GEMV] = SHADER(gemv, matmul),
    [GEMV_DOT] = SHADER(gemv_dot, matmul),
    [MATMUL] = SHADER(matmul, matmul),
    [MATMUL_DOT] = SHADER(matmul_dot, matmul),
    [MATMUL_TILES] = SHADER(matmul_tiles, matmul),
    [MATMUL_TILES_DOT] = SHADER(matmul_tiles_dot, matmul),
    [MATMUL_MATRIX] = SHADER(matmul_matrix, matmul),
    [MATMUL_MATRIX_SMALL] = SHADER(matmul_matrix_small, matmul),
    [MATMUL_F16] = SHADER(matmul_f16, matmul),
    [PREPARE] = SHADER(prepare, prepare),
    [CONV] = SHADER(conv, conv),
    [DELTA] = SHADER(delta, delta),
    [DELTA_SCORES] = SHADER(delta_scores, delta),
    [DELTA_ROW] = SHADER(delta_row, delta_row),
    [APPEND] = SHADER(append, append),
};

#define FITS(name) _Static_assert(sizeof(qn_vk_##name##_args) <= QN_VK_MAX_ARGS, "arguments are push constants")
FITS(embed);
FITS(rope);
FITS(quantize);
FITS(attention);
FITS(combine);
FITS(matmul);
FITS(prepare);
FITS(conv);
FITS(delta);
FITS(delta_row);
FITS(append);

const qn_vk_shader *qn_vk_kernel(size_t i)
{
    return i < N_KERNELS ? &shaders[i] : NULL;
}

/* ---- Launches ---- */

/* Every device has 65535 groups in each dimension of a grid. */
enum { LANES = 64, MAX_GROUPS = 32768, MATMUL_TOKENS = QN_VK_FEW_ROWS, BLOCK = QN_VK_BLOCK };
enum { QUANTIZE_EXTRA = (BLOCK - QN_QUANT_GROUP) / 4 /* words of largest_of (quantize.glsl) after the values */ };
enum { F16_BITS = 16, WORD_BITS = 32, MAX_BLOCK = 256, SIGN = 0x80 };

static size_t blocks_of(size_t n_cols)
{
    return (n_cols + BLOCK - 1) / BLOCK;
}

static qn_vk_launch launch(enum kernel kernel, size_t x, size_t y)
{
    return (qn_vk_launch){ .shader = &shaders[kernel], .groups = { (uint32_t)x, (uint32_t)y, 1 } };
}

qn_vk_launch qn_vk_embed(const qn_vk_format *format, bool is_rotated, size_t n_rows, size_t width, size_t piece)
{
    qn_vk_launch l = launch(EMBED, (width + piece - 1) / piece, n_rows);
    l.constants[0] = format->bits;
    l.constants[1] = format->group_shift;
    l.constants[2] = is_rotated;
    l.constants[3] = (uint32_t)piece;
    return l;
}

qn_vk_launch qn_vk_rope(size_t n_rows, size_t n_heads)
{
    return launch(ROPE, n_heads, n_rows);
}

/* Keys and values for each layer. */
qn_vk_launch qn_vk_quantize(const qn_vk_codes *codes, size_t n_pages, size_t n_kv_heads, size_t n_layers)
{
    qn_vk_launch l = launch(QUANTIZE, n_pages, 2 * n_kv_heads);
    l.groups[2] = (uint32_t)n_layers;
    l.constants[0] = codes->key_bits;
    l.constants[1] = codes->value_bits;
    return l;
}

enum { SMALL_TILE = 4, LARGE_TILE = 8 }; /* queries */

static qn_vk_launch launch_attention(const qn_vk_codes *codes, size_t dim, uint32_t tile, bool has_splits)
{
    return (qn_vk_launch){ .shader = &shaders[ATTENTION],
                           .constants = { (uint32_t)dim, tile, codes->key_bits, codes->value_bits, has_splits } };
}

qn_vk_launch qn_vk_attention_splits(const qn_vk_codes *codes, size_t dim, size_t n_rows, size_t n_heads,
                                    size_t n_kv_heads, size_t n_splits, bool combines)
{
    const size_t group = n_heads / n_kv_heads, tile = combines || group <= SMALL_TILE ? SMALL_TILE : LARGE_TILE;
    qn_vk_launch l = launch_attention(codes, dim, (uint32_t)tile, true);
    l.groups[0] = (uint32_t)(n_kv_heads * ((group + tile - 1) / tile));
    l.groups[1] = (uint32_t)n_rows;
    l.groups[2] = (uint32_t)n_splits;
    l.constants[5] = combines;
    return l;
}

qn_vk_launch qn_vk_attention_rows(const qn_vk_codes *codes, size_t dim, size_t position, size_t n_rows, size_t n_heads,
                                  size_t n_kv_heads)
{
    const size_t of_page = (n_rows < QN_PAGE ? n_rows : QN_PAGE) * (n_heads / n_kv_heads);
    qn_vk_launch l = launch_attention(codes, dim, LARGE_TILE, false);
    l.groups[0] = (uint32_t)((of_page + LARGE_TILE - 1) / LARGE_TILE);
    l.groups[1] = (uint32_t)n_kv_heads;
    l.groups[2] = (uint32_t)((position + n_rows - 1) / QN_PAGE - position / QN_PAGE + 1);
    return l;
}

/* Words of the shared arrays of attention.comp, with `queries` of a tile and `results` that it may quantise: tile,
 * scores, weights, and eight numbers of a query; value_scales; codebooks; team_sums and lanes; is_last; head, and a
 * quarter as many of largest_of. */
static size_t attention_words(size_t dim, size_t queries, size_t results)
{
    enum { OF_QUERY = 2 * QN_PAGE + 8, CODEBOOKS = 512, SUMS = 2 * LANES, IS_LAST = 1 };
    return queries * (dim + OF_QUERY) + QN_PAGE + CODEBOOKS + SUMS + IS_LAST + results + results / 4 + QUANTIZE_EXTRA;
}

size_t qn_vk_attention_shared(size_t dim)
{
    enum { NO_RESULTS = 4 /* the least that an array has */ };
    const size_t rows = attention_words(dim, LARGE_TILE, NO_RESULTS),
                 combines = attention_words(dim, SMALL_TILE, SMALL_TILE * dim);
    return sizeof(float) * (rows > combines ? rows : combines);
}

qn_vk_launch qn_vk_combine(size_t n_rows, size_t n_heads)
{
    return launch(COMBINE, n_heads, n_rows);
}

/* Lanes of a team of matmul, and teams of a workgroup with an epilogue. */
enum { LEAST_TEAM = 8, EPILOGUE_TEAMS = QN_QUANT_GROUP / QN_VK_TILE_ROWS };
_Static_assert(EPILOGUE_TEAMS *QN_VK_TILE_ROWS == QN_VK_HEADS_UNIT, "a workgroup has rows of one head");

enum { SQUARE_PARTS = 32 /* of the sum of squares of a row of activations: matmul.glsl */ };

/* Bytes of the shared arrays of matmul.comp: parts; square_parts; values, inputs and a quarter as many of largest_of.
 * `extra`: more words of the latter. */
#define MATMUL_SHARED(tokens, parts, teams, extra)                                                                     \
    (sizeof(float) * ((tokens) * (teams)*QN_VK_TILE_ROWS * ((parts) + 1) + (tokens)*SQUARE_PARTS +                     \
                      (tokens) * (teams)*QN_VK_TILE_ROWS * 9 / 4 + (extra)))

enum { LEAST_SHARED = 16 << 10 /* of every device */ };
_Static_assert(MATMUL_SHARED(MATMUL_TOKENS, LEAST_TEAM, EPILOGUE_TEAMS, QUANTIZE_EXTRA) <= LEAST_SHARED,
               "every device has an epilogue");

/* Returns how many blocks of a lane are added together: all of them if two workgroups then have shared memory. */
static size_t passes_of(size_t n_cols, size_t tokens, size_t team, size_t teams, const qn_vk_features *features)
{
    enum { MOST = 48 << 10 };
    const size_t shared = features->shared_bytes < MOST ? features->shared_bytes : MOST;
    size_t passes = (blocks_of(n_cols) + team - 1) / team;
    while (passes > 1 && 2 * MATMUL_SHARED(tokens, passes * team, teams, QUANTIZE_EXTRA) > shared)
        passes--;
    return passes;
}

/* Returns the lanes of a team of matmul: the most that blocks keep busy and for which there is shared memory. */
static size_t team_of(size_t n_cols, size_t tokens, bool has_epilogue, const qn_vk_features *features)
{
    enum { MOST = 256 /* lanes of a workgroup */ };
    const size_t blocks = blocks_of(n_cols);
    size_t team = has_epilogue ? MOST / EPILOGUE_TEAMS : LANES;
    while (team > LEAST_TEAM &&
           (5 * blocks < 4 * qn_round_up(blocks, team) ||
            (has_epilogue && (team * EPILOGUE_TEAMS > features->lanes ||
                              MATMUL_SHARED(tokens, team, EPILOGUE_TEAMS, QUANTIZE_EXTRA) > features->shared_bytes))))
        team /= 2;
    return team;
}

/* Returns the rows of activations of a workgroup of matmul. */
static size_t tokens_of(size_t n_tokens)
{
    size_t tokens = 1;
    while (tokens < n_tokens && tokens < MATMUL_TOKENS)
        tokens *= 2;
    return tokens;
}

static qn_vk_launch matmul_launch(enum kernel kernel, size_t n_groups, size_t n_tokens, size_t tokens)
{
    const size_t x = n_groups < MAX_GROUPS ? n_groups : MAX_GROUPS;
    return (qn_vk_launch){ .shader = &shaders[kernel],
                           .groups = { (uint32_t)x, (uint32_t)((n_groups + x - 1) / x),
                                       (uint32_t)((n_tokens + tokens - 1) / tokens) } };
}

/* Squares of a workgroup of matmul_tiles or matmul_matrix, of `height` weight rows and 32 rows of activations. Each has
 * 32 lanes for each block of columns that is computed at the same time as others. */
struct squares {
    enum kernel kernel;
    size_t height;
    size_t rows, tokens; /* squares */
    size_t blocks;
};

/* Bytes of the shared arrays of matmul_tiles.comp and matmul_matrix.comp: of each block weights and activations as
 * bytes, and their scales; sums of squares; what results need. */
static size_t tiles_shared(const struct squares *s, size_t planes)
{
    enum { ROW = BLOCK + 16, SCALES = 4 * sizeof(float), GROUPS = 8 * sizeof(float), OF_RESULTS = 4 };
    const size_t rows = s->height * s->rows, tokens = QN_VK_SQUARE * s->tokens;
    return s->blocks * (rows * (ROW + SCALES) + tokens * (planes * ROW + GROUPS)) + OF_RESULTS * (rows + tokens) +
           tokens * SQUARE_PARTS * sizeof(float);
}

/* The most squares of a workgroup, by kernel. */
static struct squares most_squares(enum kernel kernel)
{
    switch (kernel) {
    case MATMUL_MATRIX: return (struct squares){ kernel, 2 * QN_VK_SQUARE, 2, 2, 1 };
    case MATMUL_MATRIX_SMALL: return (struct squares){ kernel, QN_VK_SQUARE, 1, 1, 4 };
    default: return (struct squares){ kernel, QN_VK_SQUARE, 4, 2, 1 };
    }
}

/* The results of a workgroup of gemv: four of a team, of one matrix or two. */
static size_t gemv_rows(size_t teams, qn_vk_epilogue epilogue)
{
    return teams * QN_VK_TILE_ROWS * (epilogue == QN_VK_EPILOGUE_SWIGLU ? 2 : 1);
}

/* Bytes of the shared arrays of gemv.comp, with `rows` results: parts; square_parts; inputs; head, and a quarter as
 * many of largest_of; lanes; is_last. */
static size_t gemv_shared(size_t rows, size_t parts, size_t teams, size_t lanes, const qn_vk_matmul_kind *kind)
{
    enum { IS_LAST = 1 };
    const size_t inputs = teams * QN_VK_TILE_ROWS;
    const size_t values = kind->epilogue == QN_VK_EPILOGUE_HEADS ? QN_VK_MAX_HEAD
                          : kind->rotated > inputs               ? kind->rotated
                                                                 : inputs;
    return sizeof(float) *
           (rows * (parts + 1) + SQUARE_PARTS + inputs + values + values / 4 + QUANTIZE_EXTRA + lanes + IS_LAST);
}

static bool is_gemv(const qn_vk_launch *l)
{
    return l->shader == &shaders[GEMV] || l->shader == &shaders[GEMV_DOT];
}

static bool is_tiles(const qn_vk_launch *l)
{
    const enum kernel kernel = (enum kernel)(l->shader - shaders);
    return kernel == MATMUL_TILES || kernel == MATMUL_TILES_DOT || kernel == MATMUL_MATRIX ||
           kernel == MATMUL_MATRIX_SMALL;
}

size_t qn_vk_matmul_shared(const qn_vk_launch *l)
{
    const uint32_t *c = l->constants;
    if (is_tiles(l)) {
        struct squares s = most_squares((enum kernel)(l->shader - shaders));
        s.rows = c[4];
        s.tokens = c[1];
        return tiles_shared(&s, c[3]);
    }
    const size_t teams = c[5] / c[4];
    const qn_vk_matmul_kind kind = { .epilogue = (qn_vk_epilogue)c[7], .rotated = c[1] };
    return is_gemv(l) ? gemv_shared(gemv_rows(teams, kind.epilogue), c[4] * c[9], teams, c[5], &kind)
                      : MATMUL_SHARED((size_t)c[1], c[4] * c[9], teams, QUANTIZE_EXTRA);
}

static size_t lanes_of(const struct squares *s)
{
    return QN_VK_SQUARE * s->rows * s->tokens * s->blocks;
}

static bool fits(const struct squares *s, size_t planes, const qn_vk_features *features)
{
    return lanes_of(s) <= features->lanes && tiles_shared(s, planes) <= features->shared_bytes;
}

/* Returns the squares of a workgroup; none if the device cannot have them. Small matrices have small workgroups, so
 * that a device with many processors has work for all. */
static struct squares squares_of(const qn_vk_matmul_args *args, size_t planes, const qn_vk_features *features)
{
    enum { ENOUGH = 256 /* workgroups */, FEW = 512 /* squares */ };
    const size_t n_rows = (size_t)args->n_tiles * QN_VK_TILE_ROWS;
    const bool is_small = args->n_tokens <= QN_VK_SQUARE && n_rows < FEW * QN_VK_SQUARE;
    struct squares s = most_squares(!features->matrix_depth ? (features->dot ? MATMUL_TILES_DOT : MATMUL_TILES)
                                    : is_small              ? MATMUL_MATRIX_SMALL
                                                            : MATMUL_MATRIX);
    if (s.kernel == MATMUL_MATRIX_SMALL && !fits(&s, planes, features))
        s = most_squares(MATMUL_MATRIX);
    if (args->n_tokens <= QN_VK_SQUARE)
        s.tokens = 1;
    const size_t tokens = (args->n_tokens + QN_VK_SQUARE * s.tokens - 1) / (QN_VK_SQUARE * s.tokens);
    while (s.rows > 1 && (n_rows / (s.height * s.rows) * tokens < ENOUGH || !fits(&s, planes, features)))
        s.rows /= 2;
    if (!fits(&s, planes, features))
        s.tokens = 1;
    if (!fits(&s, planes, features) && features->matrix_depth) {
        qn_vk_features others = *features;
        others.matrix_depth = 0;
        return squares_of(args, planes, &others);
    }
    return fits(&s, planes, features) ? s : (struct squares){ 0 };
}

static qn_vk_launch launch_tiles(const qn_vk_format *format, const qn_vk_features *features,
                                 const qn_vk_matmul_kind *kind, const qn_vk_matmul_args *args, const struct squares *s)
{
    const size_t rows = s->height / QN_VK_TILE_ROWS * s->rows;
    qn_vk_launch l =
        matmul_launch(s->kernel, (args->n_tiles + rows - 1) / rows, args->n_tokens, QN_VK_SQUARE * s->tokens);
    const uint32_t constants[] = { format->bits,    (uint32_t)s->tokens,    format->group_shift,
                                   kind->planes,    (uint32_t)s->rows,      (uint32_t)lanes_of(s),
                                   kind->is_normed, features->matrix_depth, (uint32_t)s->blocks };
    memcpy(l.constants, constants, sizeof constants);
    return l;
}

/* Returns the lanes of a team of gemv: those that need few passes over a row's blocks and are idle in none. */
static size_t gemv_team(size_t blocks, size_t teams, const qn_vk_features *features)
{
    enum { MOST = 256 /* lanes of a workgroup */, PASS = 4 /* what a pass costs, in blocks */ };
    const size_t lanes = features->lanes < MOST ? features->lanes : MOST;
    size_t best = LEAST_TEAM, least = SIZE_MAX;
    for (size_t team = LEAST_TEAM; team * teams <= lanes; team += LEAST_TEAM) {
        const size_t passes = (blocks + team - 1) / team, cost = passes * (team + PASS);
        if (cost < least) {
            best = team;
            least = cost;
        }
    }
    return best;
}

static qn_vk_launch launch_gemv(const qn_vk_format *format, const qn_vk_features *features,
                                const qn_vk_matmul_kind *kind, const qn_vk_matmul_args *args)
{
    enum { ENOUGH = 256 /* workgroups */, HALF_OF_SHARED = 24 << 10 };
    const size_t tiles = kind->epilogue == QN_VK_EPILOGUE_SWIGLU ? args->first_tiles[1] : args->n_tiles,
                 blocks = blocks_of(args->n_cols),
                 shared = features->shared_bytes / 2 < HALF_OF_SHARED ? features->shared_bytes / 2 : HALF_OF_SHARED;
    size_t teams = EPILOGUE_TEAMS;
    while (kind->epilogue == QN_VK_EPILOGUE_NONE && teams > 1 && tiles / teams < ENOUGH)
        teams /= 2;
    const size_t team = gemv_team(blocks, teams, features), rows = gemv_rows(teams, kind->epilogue);
    size_t passes = (blocks + team - 1) / team;
    while (passes > 1 && gemv_shared(rows, passes * team, teams, team * teams, kind) > shared)
        passes--;
    qn_vk_launch l = matmul_launch(features->dot ? GEMV_DOT : GEMV, (tiles + teams - 1) / teams, 1, 1);
    const uint32_t constants[] = { format->bits,    kind->rotated,  format->group_shift,
                                   kind->planes,    (uint32_t)team, (uint32_t)(team * teams),
                                   kind->is_normed, kind->epilogue, kind->next_planes,
                                   (uint32_t)passes };
    memcpy(l.constants, constants, sizeof constants);
    return l;
}

qn_vk_launch qn_vk_matmul(const qn_vk_format *format, const qn_vk_features *features, const qn_vk_matmul_kind *kind,
                          const qn_vk_matmul_args *args)
{
    const size_t tokens = tokens_of(args->n_tokens);
    const bool has_epilogue = kind->epilogue != QN_VK_EPILOGUE_NONE;
    const size_t team = team_of(args->n_cols, tokens, has_epilogue, features),
                 lanes = has_epilogue ? team * EPILOGUE_TEAMS : LANES, teams = lanes / team;
    const size_t tiles = kind->epilogue == QN_VK_EPILOGUE_SWIGLU ? args->first_tiles[1] : args->n_tiles;
    qn_vk_launch l;
    if (format->bits == F16_BITS) {
        l = matmul_launch(MATMUL_F16, args->n_tiles, args->n_tokens, tokens);
        l.constants[0] = (uint32_t)tokens;
        return l;
    }
    if (args->n_tokens == 1)
        return launch_gemv(format, features, kind, args);
    const struct squares squares = squares_of(args, kind->planes, features);
    if (!has_epilogue && squares.rows && args->n_tokens > MATMUL_TOKENS)
        return launch_tiles(format, features, kind, args, &squares);
    l = matmul_launch(features->dot ? MATMUL_DOT : MATMUL, (tiles + teams - 1) / teams, args->n_tokens, tokens);
    const uint32_t constants[] = {
        format->bits,        (uint32_t)tokens,
        format->group_shift, kind->planes,
        (uint32_t)team,      (uint32_t)lanes,
        kind->is_normed,     kind->epilogue,
        kind->next_planes,   (uint32_t)passes_of(args->n_cols, tokens, team, teams, features)
    };
    memcpy(l.constants, constants, sizeof constants);
    return l;
}

size_t qn_vk_prepare_shared(size_t piece)
{
    enum { PREPARE_LANES = 128, LEAST_HEAD = 16, PARTS_OF_HEADS = 2 };
    return sizeof(float) *
           (piece + (piece / 4 + QUANTIZE_EXTRA) + (piece / LEAST_HEAD + PARTS_OF_HEADS) + PREPARE_LANES);
}

qn_vk_launch qn_vk_prepare(qn_vk_prepare_op op, bool is_rotated, size_t n_rows, size_t width, size_t piece)
{
    qn_vk_launch l = launch(PREPARE, (width + piece - 1) / piece, n_rows);
    l.constants[0] = op;
    l.constants[1] = is_rotated;
    l.constants[2] = (uint32_t)piece;
    return l;
}

/* The rows of inputs of an open chunk depend on it (gpu/recurrent_layout.h). */
static qn_vk_launch with_dropped(qn_vk_launch l)
{
    l.constants[1] = QN_GDN_DROPPED_ROWS;
    return l;
}

qn_vk_launch qn_vk_conv(size_t n_rows, size_t n_k_heads, size_t n_v_heads, size_t taps)
{
    qn_vk_launch l = with_dropped(launch(CONV, 2 * n_k_heads + n_v_heads, n_rows));
    l.constants[0] = (uint32_t)taps;
    return l;
}

enum { HIGH = 16 /* of two numbers in a word */ };

qn_vk_delta_layer qn_vk_delta_layer_of(const qn_vk_conv_args *conv, const qn_vk_prepare_args *norm, bool is_rotated)
{
    qn_vk_delta_layer layer = { .bias = conv->bias, .factor = conv->factor };
    if (norm) {
        layer.gate = norm->x2;
        layer.norm = norm->weight;
        layer.codes = norm->codes;
        layer.signs = is_rotated ? norm->signs : 0;
        layer.transform_factor = is_rotated ? norm->factor : 0;
    }
    return layer;
}

qn_vk_delta_row_args qn_vk_delta_row_args_of(const qn_vk_conv_args *conv, const qn_vk_delta_args *delta,
                                             const qn_vk_prepare_args *norm)
{
    qn_vk_delta_row_args args = { .qkv = delta->qkv,
                                  .decays = delta->decays,
                                  .betas = delta->betas,
                                  .y = delta->y,
                                  .sequences = delta->sequences,
                                  .granules = delta->granules,
                                  .shift = delta->shift,
                                  .state_at = delta->state_at,
                                  .keys_at = delta->keys_at,
                                  .values_at = delta->values_at,
                                  .scales_at = delta->scales_at,
                                  .decays_at = delta->decays_at,
                                  .heads = delta->k_heads | delta->v_heads << HIGH,
                                  .dims = delta->head_k | delta->head_v << HIGH,
                                  .scale = delta->scale };
    if (!conv)
        return args;
    args.qkv = conv->qkv;
    args.decays = conv->alpha;
    args.betas = conv->beta;
    args.convolved = conv->y;
    args.weights = conv->weights;
    args.history_at = conv->history_at;
    args.inputs_at = conv->inputs_at;
    if (norm) {
        args.eps = norm->eps;
        args.results = norm->planes | norm->repeats << HIGH;
    }
    return args;
}

qn_vk_launch qn_vk_delta_row(size_t n_sequences, size_t n_v_heads, size_t head_v, size_t taps)
{
    qn_vk_launch l = with_dropped(launch(DELTA_ROW, n_v_heads * QN_GDN_SCALE_GROUPS(head_v), n_sequences));
    l.constants[0] = (uint32_t)taps;
    return l;
}

static qn_vk_launch delta_launch(enum kernel kernel, size_t x, size_t y, size_t rows)
{
    enum { LANES_OF_ROW = 8 };
    qn_vk_launch l = launch(kernel, x, y);
    l.constants[0] = (uint32_t)rows;
    l.constants[2] = (uint32_t)(LANES_OF_ROW * rows);
    return l;
}

/* Returns the rows of a block. */
static size_t delta_rows(const qn_vk_features *features)
{
    enum { SMALL = 16, LARGE = 32, LARGE_LANES = 256, LARGE_SHARED = 48 << 10 };
    return features->shared_bytes >= LARGE_SHARED && features->lanes >= LARGE_LANES ? LARGE : SMALL;
}

qn_vk_launch qn_vk_delta_scores(size_t n_rows, size_t n_sequences, size_t n_k_heads, const qn_vk_features *features)
{
    const size_t rows = delta_rows(features);
    qn_vk_launch l = delta_launch(DELTA_SCORES, n_k_heads, n_rows / rows + 2, rows);
    l.groups[2] = (uint32_t)n_sequences;
    return l;
}

qn_vk_launch qn_vk_delta(size_t n_sequences, size_t n_v_heads, size_t head_v, const qn_vk_features *features)
{
    return delta_launch(DELTA, n_v_heads * QN_GDN_SCALE_GROUPS(head_v), n_sequences, delta_rows(features));
}

qn_vk_launch qn_vk_append(size_t n_sequences, size_t width, size_t n_k_heads, size_t n_v_heads)
{
    return with_dropped(launch(APPEND, (width + LANES - 1) / LANES + n_k_heads + n_v_heads, n_sequences));
}

/* ---- Formats of weights ---- */

static uint32_t log2_of(size_t power)
{
    uint32_t n = 0;
    while (power >> n > 1)
        n++;
    return n;
}

qn_vk_format qn_vk_format_of(const qn_type_info *type)
{
    const uint32_t shift = log2_of(type->block_weights);
    switch (type->type) {
    case QN_TYPE_Q1_0: return (qn_vk_format){ 1, shift };
    case QN_TYPE_Q2_0:
    case QN_TYPE_PQ2_0:
    case QN_TYPE_PTQ1_0:
    case QN_TYPE_OX2_0:
    case QN_TYPE_TQ1_0:
    case QN_TYPE_TQ2_0: return (qn_vk_format){ 2, shift };
    case QN_TYPE_Q4_0: return (qn_vk_format){ 4, shift };
    case QN_TYPE_Q8_0: return (qn_vk_format){ 8, shift };
    default: return (qn_vk_format){ F16_BITS, WORD_BITS - 1 };
    }
}

bool qn_vk_is_f16(const qn_type_info *type)
{
    return qn_vk_format_of(type).bits == F16_BITS;
}

size_t qn_vk_act_row_bytes(size_t width, size_t planes)
{
    enum { GROUPS = 48 /* bytes of the scales, sums and sums of squares of a block */ };
    return blocks_of(width) * (planes * BLOCK + GROUPS);
}

size_t qn_vk_code_words(const qn_vk_format *format, size_t n_cols)
{
    return format->bits == F16_BITS ? (n_cols + 1) / 2 : blocks_of(n_cols) * BLOCK * format->bits / WORD_BITS;
}

size_t qn_vk_scale_words(const qn_vk_format *format, size_t n_cols)
{
    return format->bits == F16_BITS ? 0 : ((blocks_of(n_cols) * BLOCK >> format->group_shift) + 1) / 2;
}

/* Puts the word of the codes from `column` on, a multiple of 32/bits, into a row of codes. */
static void put_word(uint32_t *codes, size_t n_cols, uint32_t bits, size_t column, const uint8_t *code)
{
    const size_t per_word = WORD_BITS / bits, word = column % BLOCK / per_word;
    uint32_t packed = 0;
    for (size_t i = 0; i < per_word; i++)
        packed |= (uint32_t)code[i] << (i % 4 * 8 + i / 4 * bits);
    codes[(word / 4 * blocks_of(n_cols) + column / BLOCK) * 4 + word % 4] = packed;
}

static void pack_blocks(const qn_type_info *type, const uint8_t *row, size_t n_cols, const qn_vk_format *format,
                        uint32_t *codes, uint32_t *scales)
{
    for (size_t b = 0; b < n_cols / type->block_weights; b++, row += type->block_bytes) {
        uint8_t block[MAX_BLOCK];
        float unused[MAX_BLOCK / QN_QUANT_GROUP];
        uint16_t scale;
        type->unpack(row, 1, block, unused, NULL, NULL);
        memcpy(&scale, row + type->scale_at, sizeof scale);
        scales[b / 2] |= (uint32_t)scale << 16 * (b % 2);
        for (size_t i = 0; i < type->block_weights; i++)
            block[i] = format->bits == 1   ? block[i] / 2 /* of Q1_0: 0 or 2 */
                       : format->bits == 8 ? block[i] ^ SIGN
                                           : block[i];
        for (size_t i = 0; i < type->block_weights; i += WORD_BITS / format->bits)
            put_word(codes, n_cols, format->bits, b * type->block_weights + i, block + i);
    }
}

void qn_vk_pack_row(const qn_type_info *type, const uint8_t *row, size_t n_cols, float *scratch, uint32_t *codes,
                    uint32_t *scales)
{
    const qn_vk_format format = qn_vk_format_of(type);
    memset(codes, 0, qn_vk_code_words(&format, n_cols) * sizeof *codes);
    memset(scales, 0, qn_vk_scale_words(&format, n_cols) * sizeof *scales);
    if (format.bits == F16_BITS)
        qn_gpu_f16_row(type, row, n_cols, scratch, (uint16_t *)codes);
    else
        pack_blocks(type, row, n_cols, &format, codes, scales);
}
