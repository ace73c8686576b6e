/* What all shaders share: addresses, fp16, exp, and the order of sums. All arithmetic is `precise`, and no result depends
 * on the size of subgroups: sums are in ascending order in a lane, and lanes are added by a tree in shared memory or
 * one after the other in one lane.
 *
 * An address is a uvec2, low word first: 64-bit integers are a feature that not every device has. fp16 values are read
 * as words: neither are 16-bit types. Their conversion keeps denormals, which unpackHalf2x16 may flush to zero. */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require

#ifndef LANES
#define LANES 64
#endif

#ifndef HAS_LAYOUT
layout(local_size_x = LANES) in;
#endif

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Addresses { uvec2 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vec4s { vec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer UVec4s { uvec4 at[]; };

/* Returns address + n * bytes. */
uvec2 advance(uvec2 address, uint n, uint bytes)
{
    uint high, low, carry;
    umulExtended(n, bytes, high, low);
    low = uaddCarry(address.x, low, carry);
    return uvec2(low, address.y + high + carry);
}

bool is_null(uvec2 address)
{
    return address.x == 0 && address.y == 0;
}

float half_to_float(uint h)
{
    const uint exponent = h >> 10 & 31, mantissa = h & 1023, sign = (h & 0x8000) << 16;
    const float denormal = float(mantissa) * 5.9604644775390625e-8; /* 2^-24 */
    return uintBitsToFloat(sign | (exponent == 0 ? floatBitsToUint(denormal) : exponent + 112 << 23 | mantissa << 13));
}

vec2 halves_to_floats(uint word)
{
    return vec2(half_to_float(word & 0xffff), half_to_float(word >> 16));
}

/* Rounds to nearest, ties to even; saturates at 65504. */
uint float_to_half(float x)
{
    const uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x477fe000)
        return sign | 0x7bff;
    if (magnitude < 0x38800000) { /* a denormal: a multiple of 2^-24; what is added has its last bit there */
        precise float shifted = uintBitsToFloat(magnitude) + 0.5;
        return sign | floatBitsToUint(shifted) - 0x3f000000;
    }
    return sign | magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1) >> 13;
}

uint floats_to_halves(vec2 x)
{
    return float_to_half(x.x) | float_to_half(x.y) << 16;
}

/* e^x by a polynomial, with the same bits on every device: exp() differs between drivers. Below -87 it is 0. */
float exp_of(float x)
{
    precise const float n = floor(clamp(x, -87.0, 88.0) * 1.44269504 + 0.5);
    precise const float r = clamp(x, -87.0, 88.0) - n * 0.693359375 + n * 2.12194440e-4;
    precise float y = r * 1.9875691500e-4 + 1.3981999507e-3;
    y = y * r + 8.3334519073e-3;
    y = y * r + 4.1665795894e-2;
    y = y * r + 1.6666665459e-1;
    y = y * r + 5.0000001201e-1;
    y = y * (r * r) + r + 1.0;
    y = y * uintBitsToFloat(uint(int(n) + 127) << 23);
    return x < -87.0 ? 0.0 : y;
}

shared float lanes[LANES];

/* The sum of all lanes' values, in every lane. */
float sum_of_lanes(float x)
{
    const uint lane = gl_LocalInvocationIndex;
    lanes[lane] = x;
    barrier();
    for (uint half_ = LANES / 2; half_ > 0; half_ /= 2) {
        if (lane < half_) {
            precise const float sum = lanes[lane] + lanes[lane + half_];
            lanes[lane] = sum;
        }
        barrier();
    }
    const float sum = lanes[0];
    barrier();
    return sum;
}
