/* Activations as integers, as matmul.comp reads them: rows of blocks of 128 columns, of which each group of 32 has a
 * scale. The last block is filled with zeros.
 *
 *   codes   [planes][8][blocks] of 16 bytes: the 16 columns i of a block, as int8. With two planes a value is
 *           256 hi + lo; hi is the first plane
 *   groups  [4][blocks] of 8 bytes: the scale of a group, f32, and the sum of its integers
 *   squares [4][blocks] f32, after an RMS norm only: sums of squares of a group of the norm's input
 *
 * A value is its integer times the scale. After an RMS norm it lacks the norm's factor, by which the matmul multiplies
 * its results: so every group can be written by itself. */
#ifndef BLOCK
#define BLOCK 128
#define GROUP 32

uint act_blocks(uint width)
{
    return (width + BLOCK - 1) / BLOCK;
}

uint act_row_bytes(uint width, uint planes)
{
    return act_blocks(width) * (planes * BLOCK + 48);
}

uint act_groups_at(uint blocks, uint planes)
{
    return blocks * planes * BLOCK;
}

uint act_squares_at(uint blocks, uint planes)
{
    return blocks * (planes * BLOCK + 32);
}
#endif
