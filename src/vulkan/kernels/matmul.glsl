/* What the kernels of integer matmuls share: arguments, codes as bytes, the norm's factor, and writing results. The file
 * that includes it has TOKENS, the rows of activations of a workgroup. */
#define TILE_ROWS 4 /* QN_VK_TILE_ROWS */
#define OUTS 4
layout(constant_id = 0) const uint BITS = 1;        /* of a weight: 1, 2, 4, 8 */
layout(constant_id = 2) const uint GROUP_SHIFT = 7; /* log2 of the weights of a scale */
layout(constant_id = 3) const uint PLANES = 1;      /* of the activations */
layout(constant_id = 6) const uint IS_NORMED = 0;   /* the activations are those of an RMS norm */
const uint PER_WORD = 8 / BITS;                           /* fours of columns */
const int ZERO_POINT = BITS == 4 ? 8 : BITS == 8 ? 0 : 1; /* codes of 1 bit count as 0 and 2, those of 8 are signed */

layout(push_constant) uniform Args {
    uvec2 codes, scales, acts;
    uvec2 outs[OUTS]; /* with an epilogue: [1] Rotated (gemv.comp), [2] the activations that it writes, [3] the weight of
                         the norm, or Heads (gemv.comp) */
    uint first_tiles[OUTS], n_rows[OUTS], strides[OUTS];
    uint n_cols, n_tokens, n_tiles;
    uint accumulate; /* bit i: of out i */
    float eps;       /* of the norm of the activations */
};

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Codes { ivec4 at[]; };

#include "acts.glsl"

#define SQUARE_PARTS 32
#define READ 8 /* numbers that a lane reads from shared memory before it adds them */

shared float square_parts[TOKENS * SQUARE_PARTS];

#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int signed_dot(int a, int b, spirv_literal int format); /* OpSDotKHR; format 0: four int8 */

int dot_of(int a, int b)
{
    return signed_dot(a, b, 0);
}
#else
int dot_of(int a, int b)
{
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += bitfieldExtract(a, i, 8) * bitfieldExtract(b, i, 8);
    return sum;
}
#endif

/* Four codes, as bytes: number i of those in `word`. */
int codes_of(uint word, uint i)
{
    if (BITS == 8)
        return int(word);
    const uint at = i % PER_WORD * BITS;
    if (BITS == 1)
        return int((at == 0 ? word << 1 : word >> at - 1) & 0x02020202);
    return int(word >> at & (BITS == 2 ? 0x03030303 : 0x0f0f0f0f));
}

/* Adds the squares of the norm's input: one of the parts of a row. */
void add_squares(uint part, uint first_token, uint blocks)
{
    const uint token = first_token + part / SQUARE_PARTS;
    if (IS_NORMED == 0 || part >= TOKENS * SQUARE_PARTS || token >= n_tokens)
        return;
    Vec4s squares =
        Vec4s(advance(advance(acts, token, act_row_bytes(n_cols, PLANES)), 1, act_squares_at(blocks, PLANES)));
    precise float sum = 0;
    for (uint i = part % SQUARE_PARTS; i < blocks; i += SQUARE_PARTS) {
        const vec4 four = squares.at[i];
        sum += four.x;
        sum += four.y;
        sum += four.z;
        sum += four.w;
    }
    square_parts[part] = sum;
}

/* The norm's factor for token t of the workgroup. */
float factor_of(uint t)
{
    if (IS_NORMED == 0)
        return 1;
    precise float sum = 0;
    [[dont_unroll]] for (uint i = 0; i < SQUARE_PARTS; i += READ) {
        float read[READ];
        [[unroll]] for (uint q = 0; q < READ; q++)
            read[q] = square_parts[t * SQUARE_PARTS + i + q];
        [[unroll]] for (uint q = 0; q < READ; q++)
            sum += read[q];
    }
    precise const float mean = sum / float(n_cols) + eps;
    precise const float factor = 1.0 / sqrt(mean);
    return factor;
}

/* Returns where a result goes; null after the last row of a matrix. adds: to what is there. */
uvec2 address_of(uint tile, uint r, uint token, out bool adds)
{
    uint o = 0;
    for (uint i = 1; i < OUTS; i++)
        o = tile >= first_tiles[i] ? i : o;
    const uint row = (tile - first_tiles[o]) * TILE_ROWS + r;
    adds = (accumulate >> o & 1) != 0;
    return row < n_rows[o] ? advance(advance(outs[o], token, 4 * strides[o]), row, 4) : uvec2(0);
}

