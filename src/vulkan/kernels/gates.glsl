/* Sigmoid, SiLU and softplus, from exp_of: the same bits on every device. */

float sigmoid(float x)
{
    precise const float divisor = 1.0 + exp_of(-x);
    precise const float y = 1.0 / divisor;
    return y;
}

float silu(float x)
{
    precise const float divisor = 1.0 + exp_of(-x);
    precise const float y = x / divisor;
    return y;
}

/* log(w), w >= 1: 2^e m with m in [0.7, 1.42), and log m = 2 atanh s with s = (m - 1) / (m + 1), as a series: the first
 * term that is left out is below 2^-27 of the sum. */
float log_of(float w)
{
    const uint bits = floatBitsToUint(w);
    const float upper = uintBitsToFloat(bits & 0x7fffff | 0x3f800000);
    const bool is_large = upper > 1.41421354;
    const float m = is_large ? 0.5 * upper : upper, e = float(int(bits >> 23) - (is_large ? 126 : 127));
    precise const float s = (m - 1.0) / (m + 1.0);
    precise const float z = s * s;
    precise float y = z * 0.111111112 + 0.142857149;
    y = y * z + 0.2;
    y = y * z + 0.333333343;
    y = 2.0 * s + 2.0 * s * z * y;
    y = y + e * 0.693147182;
    return y;
}

/* log(1 + e^x). The second term of the sum is what the addition of 1 has rounded away. */
float softplus(float x)
{
    precise const float u = exp_of(min(x, 21.0));
    precise const float w = 1.0 + u;
    precise const float y = log_of(w) + (u - (w - 1.0)) / w;
    return x > 20.0 ? x : y;
}

float log_decay_of(float alpha, float bias, float factor)
{
    precise const float x = alpha + bias;
    precise const float decay = softplus(x) * factor;
    return decay;
}
