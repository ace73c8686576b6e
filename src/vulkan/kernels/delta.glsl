/* What both kernels of the delta rule share: the state's two planes (gpu/state_planes.h). */
#define VALUES 64 /* of a workgroup: QN_GDN_SCALE_VALUES */
#define MAX_KEYS 256 /* QN_VK_MAX_RECURRENT_HEAD */
#define LO_SCALE 4096.0

/* Rounds towards zero; saturates. */
uint float_to_half_down(float x)
{
    const uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x477fe000)
        return sign | 0x7bff;
    if (magnitude < 0x38800000)
        return sign | uint(uintBitsToFloat(magnitude) * 16777216.0);
    return sign | magnitude - 0x38000000 >> 13;
}

/* Splits 4 values into the two planes. */
void split(vec4 x, out uvec2 hi, out uvec2 lo)
{
    hi = lo = uvec2(0);
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const uint upper = float_to_half(x[e]);
        precise const float rest = (x[e] - half_to_float(upper)) * LO_SCALE;
        hi[e / 2] |= upper << 16 * (e % 2);
        lo[e / 2] |= float_to_half_down(rest) << 16 * (e % 2);
    }
}
