/* The sequences of a step: where their states and open chunks are in the pool (gpu/recurrent_layout.h). */
#define CHUNK 64

layout(constant_id = 1) const uint DROPPED = 1; /* the most rows that a sequence may drop: QN_GDN_DROPPED_ROWS */

struct Sequence {
    uvec2 from, to, open; /* the state before the step, and after it; the open chunk */
    uint state_position;  /* of `from`; 0: a state of zeros, which is not read */
    uint position;        /* of the first row */
    uint begin, end;      /* rows of the step */
};

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Sequences { Sequence at[]; };

/* The address of word `word` of an array that begins `at` bytes after an item's start. */
uvec2 item_word(uvec2 granules, uint shift, uvec2 item, uint at, uint word)
{
    return address_in_pool(granules, shift, advance(advance(item, 1, at), word, 4));
}

/* Returns the position of the state after a step that ends at `end`. */
uint state_position_after(uint state_position, uint end)
{
    return end > state_position + CHUNK ? (end - 1) / CHUNK * CHUNK : state_position;
}
