/* The convolution of a row, and its gates. The file that includes it has TAPS, weights and where inputs are. */

/* The inputs of four channels at TAPS positions up to the row's. All loads are independent of each other. */
void load_inputs(Sequence s, uint row, uint channel, uint width, out vec4 inputs[TAPS])
{
    const uint before = row - s.begin, position = s.position + before, kept = TAPS - 1;
    uvec2 at[TAPS];
    if (before < kept) {
        [[unroll]] for (uint t = 0; t < TAPS; t++) {
            const uint back = kept - t, from = position - back;
            const bool is_open = from >= s.state_position;
            const uint word =
                (is_open ? from % (kept + DROPPED) : from + kept - s.state_position) * width + channel;
            const bool is_stored = before < back && position >= back;
            at[t] = advance(advance(is_open ? s.open : s.from, 1, is_open ? inputs_at : history_at), word, 4);
            at[t] = address_in_pool(granules, shift, is_stored ? at[t] : s.open);
        }
        [[unroll]] for (uint t = 0; t < TAPS; t++) {
            const uint back = kept - t;
            const uvec2 in_step = advance(qkv, (before < back ? row : row - back) * width + channel, 4);
            inputs[t] = Vec4s(before < back && position >= back ? at[t] : in_step).at[0];
            inputs[t] = position >= back ? inputs[t] : vec4(0);
        }
    } else {
        [[unroll]] for (uint t = 0; t < TAPS; t++)
            inputs[t] = Vec4s(advance(qkv, (row - (kept - t)) * width + channel, 4)).at[0];
    }
}

/* SiLU of the convolution of four channels. */
vec4 convolve(Sequence s, uint row, uint channel, uint width)
{
    vec4 taps[TAPS], inputs[TAPS];
    [[unroll]] for (uint t = 0; t < TAPS; t++)
        taps[t] = Vec4s(advance(weights, t * width + channel, 4)).at[0];
    load_inputs(s, row, channel, width, inputs);
    precise vec4 sum = vec4(0);
    [[unroll]] for (uint t = 0; t < TAPS; t++)
        sum += taps[t] * inputs[t];
    return vec4(silu(sum.x), silu(sum.y), silu(sum.z), silu(sum.w));
}

float squares_of(vec4 x)
{
    precise float squares = x.x * x.x;
    squares += x.y * x.y;
    squares += x.z * x.z;
    squares += x.w * x.w;
    return squares;
}
