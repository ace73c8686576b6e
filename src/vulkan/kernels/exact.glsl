/* Integers of 64 bits, and float operations with the rounding of the host, whatever the device does: a fused
 * multiply-add, a division, the exponential of kernels/exp.h. A 64-bit integer is a uvec2, low word first. */

/* ---- Integers ---- */

uvec2 add64(uvec2 a, uvec2 b)
{
    uint carry;
    const uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 sub64(uvec2 a, uvec2 b)
{
    uint borrow;
    const uint low = usubBorrow(a.x, b.x, borrow);
    return uvec2(low, a.y - b.y - borrow);
}

bool less64(uvec2 a, uvec2 b)
{
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

uvec2 min64(uvec2 a, uvec2 b)
{
    return less64(b, a) ? b : a;
}

/* n: up to 63. */
uvec2 shift_left(uvec2 a, uint n)
{
    if (n >= 32)
        return uvec2(0, a.x << n - 32);
    return n == 0 ? a : uvec2(a.x << n, a.y << n | a.x >> 32 - n);
}

uvec2 shift_right(uvec2 a, uint n)
{
    if (n >= 32)
        return uvec2(a.y >> n - 32, 0);
    return n == 0 ? a : uvec2(a.x >> n | a.y << 32 - n, a.y >> n);
}

uint bits_of(uvec2 a)
{
    return a.y != 0 ? 33 + uint(findMSB(a.y)) : a.x != 0 ? 1 + uint(findMSB(a.x)) : 0;
}

/* The upper 64 bits of a product. */
uvec2 multiply_high(uvec2 a, uvec2 b)
{
    uint low_high, low_low, middle_high, middle_low, other_high, other_low, high_high, high_low;
    umulExtended(a.x, b.x, low_high, low_low);
    umulExtended(a.x, b.y, middle_high, middle_low);
    umulExtended(a.y, b.x, other_high, other_low);
    umulExtended(a.y, b.y, high_high, high_low);
    const uvec2 carried = add64(add64(uvec2(low_high, 0), uvec2(middle_low, 0)), uvec2(other_low, 0));
    const uvec2 upper = add64(uvec2(middle_high, 0), uvec2(other_high, 0));
    return add64(add64(uvec2(high_low, high_high), upper), uvec2(carried.y, 0));
}

/* ---- Floats ---- */

/* a + b = sum + error */
float sum_with_error(float a, float b, out float error)
{
    precise const float sum = a + b, other = sum - a, rest = (a - (sum - other)) + (b - other);
    error = rest;
    return sum;
}

float upper_half(float a)
{
    precise const float scaled = 4097.0 * a, difference = scaled - a, upper = scaled - difference;
    return upper;
}

/* a * b + c, rounded once. Method: Boldo and Melquiond, Emulation of a FMA and correctly rounded sums (2008): the sum of
 * the errors is rounded to odd. Products and errors are not denormal. */
float fused(float a, float b, float c)
{
    precise const float product = a * b, a_high = upper_half(a), a_low = a - a_high, b_high = upper_half(b),
                        b_low = b - b_high;
    precise const float product_error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    float small_error, large_error, odd_error;
    const float small = sum_with_error(c, product_error, small_error), large = sum_with_error(product, small, large_error);
    float odd = sum_with_error(small_error, large_error, odd_error);
    const uint bits = floatBitsToUint(odd);
    if (odd_error != 0 && (bits & 1) == 0)
        odd = uintBitsToFloat((odd_error > 0) == (odd > 0) ? bits + 1 : bits - 1);
    precise const float result = large + odd;
    return result;
}

/* x / y for normal numbers, rounded to nearest even: the device may be 2.5 ulp away. */
float divide(float x, float y)
{
    precise const float near = x / y;
    const uint a = floatBitsToUint(x), b = floatBitsToUint(y), divisor = b & 0x7fffff | 0x800000;
    const int a_exponent = int(a >> 23 & 255), b_exponent = int(b >> 23 & 255);
    int exponent = a_exponent - b_exponent + 127;
    if (a_exponent == 0 || a_exponent == 255 || b_exponent == 0 || b_exponent == 255 || exponent < 2 || exponent > 253)
        return near;
    uint rest = a & 0x7fffff | 0x800000, quotient = 0;
    for (uint i = 0; i < 26; i++) {
        const bool fits = rest >= divisor;
        quotient = quotient << 1 | uint(fits);
        rest = (fits ? rest - divisor : rest) << 1;
    }
    if (quotient < 1u << 25) {
        quotient <<= 1;
        exponent--;
        quotient |= uint(rest >= divisor); /* the next bit */
        rest = rest >= divisor ? rest - divisor : rest;
    }
    uint mantissa = quotient >> 2;
    const uint lost = quotient & 3 | uint(rest != 0);
    mantissa += uint(lost > 2 || (lost == 2 && (mantissa & 1) != 0));
    return uintBitsToFloat((a ^ b) & 0x80000000 | uint(exponent) * 0x800000 + mantissa - 0x800000);
}

/* 1/720, 1/120, 1/24, 1/6, 1/2, 1, 1 */
const uint series[7] = { 0x3ab60b61, 0x3c088889, 0x3d2aaaab, 0x3e2aaaab, 0x3f000000, 0x3f800000, 0x3f800000 };

/* qn_exp, with the same bits. */
float exp_like_host(float x)
{
    x = clamp(x, -86.0, 88.0);
    precise const float scaled = x * 1.44269504;
    const float n = roundEven(scaled);
    precise const float near = x - n * 0.693359375; /* the product is exact */
    const float r = fused(n, 2.12194440e-4, near);
    float y = uintBitsToFloat(0x39500d01); /* 1/5040 */
    [[dont_unroll]] for (uint i = 0; i < 7; i++)
        y = fused(y, r, uintBitsToFloat(series[i]));
    return uintBitsToFloat(floatBitsToUint(y) + (uint(int(n)) << 23));
}
