/* Products of the rows of a block, k or q, with 64 items: keys of the chunk, or values of the state. A lane has 4 rows,
 * of k or of q, and 4 items; a sum is in ascending order of keys. The file that includes it says what items and rows
 * are. */
layout(constant_id = 0) const uint ROWS = 16; /* 16 or 32 */
#define QUADS 16        /* of items */
#define TILE_KEYS 16    /* of all items and rows that are in shared memory at a time; heads have a multiple of it */
#define TILE_ROW 17     /* fours of items, and one, so that lanes write different banks */
const uint ROW_QUADS = ROWS / 4, SCORE_ROW = ROW_QUADS + (ROWS > 16 ? 1 : 0);
const uint UNITS = 64 * TILE_KEYS / 8, LANE_UNITS = UNITS / LANES + (UNITS % LANES == 0 ? 0 : 1); /* 8 keys of an item */

shared vec4 tile[TILE_KEYS * TILE_ROW];                 /* [keys][items] */
shared vec4 row_tile[TILE_KEYS * (2 * ROW_QUADS + 1)];  /* [keys][k rows, q rows] */
shared vec4 log_decays[CHUNK / 4];

uint part, first_row, quad; /* of the lane's products: 0: k, 1: q; its rows of a block; its items */
vec4 sums[4];               /* [rows][items] */

/* What a lane has loaded of the next tile, as memory has it: fp16 words, or the bits of floats; and 4 keys of a row. */
uvec4 loaded_a[LANE_UNITS], loaded_b[LANE_UNITS];
vec4 loaded_row;

/* Loads 8 keys of an item, from `at` on; whether it is fp16; the address of row r of the block, of its k or q. */
void load_item(uint item, uint at, out uvec4 a, out uvec4 b);
bool is_half(uint item);
uvec2 row_address(uint r, bool is_key);

uint lane()
{
    return gl_LocalInvocationIndex;
}

vec4 floats_of(uvec2 halves)
{
    return vec4(halves_to_floats(halves.x), halves_to_floats(halves.y));
}

void find_products()
{
    part = lane() / (4 * ROWS);
    first_row = lane() % (4 * ROWS) / QUADS * 4;
    quad = lane() % QUADS;
}

uint unit_item(uint u)
{
    return (u * LANES + lane()) % 64;
}

uint unit_key(uint u)
{
    return (u * LANES + lane()) / 64 * 8;
}

/* A lane has 4 keys of one of the 2 ROWS rows; a tile has as many fours of them as there are lanes. */
void load_tile(uint n_items, uint n, uint tile_at)
{
    [[unroll]] for (uint u = 0; u < LANE_UNITS; u++)
        if (unit_key(u) < TILE_KEYS)
            load_item(min(unit_item(u), n_items - 1), tile_at + unit_key(u), loaded_a[u], loaded_b[u]);
    const uint at = tile_at + lane() / (2 * ROWS) * 4;
    loaded_row = Vec4s(advance(row_address(min(lane() % ROWS, n - 1), lane() % (2 * ROWS) < ROWS), at, 4)).at[0];
}

void store_tile()
{
    [[unroll]] for (uint u = 0; u < LANE_UNITS; u++) {
        const uint item = unit_item(u);
        const vec4 a = is_half(item) ? floats_of(loaded_a[u].xy) : uintBitsToFloat(loaded_a[u]),
                   b = is_half(item) ? floats_of(loaded_a[u].zw) : uintBitsToFloat(loaded_b[u]);
        [[unroll]] for (uint w = 0; w < 4 && unit_key(u) < TILE_KEYS; w++) {
            tile[(unit_key(u) + w) * TILE_ROW + item / 4][item % 4] = a[w];
            tile[(unit_key(u) + 4 + w) * TILE_ROW + item / 4][item % 4] = b[w];
        }
    }
    const uint row = lane() % (2 * ROWS), at = lane() / (2 * ROWS) * 4;
    [[unroll]] for (uint w = 0; w < 4; w++)
        row_tile[(at + w) * (2 * ROW_QUADS + 1) + row / 4][row % 4] = loaded_row[w];
}

void add_products(vec4 rows, vec4 items)
{
    [[unroll]] for (uint r = 0; r < 4; r++) {
        precise const vec4 sum = fma(vec4(rows[r]), items, sums[r]);
        sums[r] = sum;
    }
}

/* sums = products of the lane's rows, of n, and items. The next tile is on its way while one is multiplied. */
void multiply(uint n_items, uint n, uint head_k)
{
    const bool is_idle = first_row >= n || 4 * quad >= n_items;
    [[unroll]] for (uint r = 0; r < 4; r++)
        sums[r] = vec4(0);
    load_tile(n_items, n, 0);
    for (uint tile_at = 0; tile_at < head_k; tile_at += TILE_KEYS) {
        barrier();
        store_tile();
        barrier();
        if (tile_at + TILE_KEYS < head_k)
            load_tile(n_items, n, tile_at + TILE_KEYS);
        if (!is_idle)
            [[unroll]] for (uint key = 0; key < TILE_KEYS; key++)
                add_products(row_tile[key * (2 * ROW_QUADS + 1) + part * ROW_QUADS + first_row / 4],
                             tile[key * TILE_ROW + quad]);
    }
}
