#version 450
/* The token of each row: a workgroup for each. Greedy rows take the largest logit of all slices. Of the others, the bins of
 * sample_histogram.comp tell in which bin a sum of weights, or a number of tokens, is reached: the tokens of that bin, and
 * of those before it if they are few, are sorted, which gives the token. A bin of too many tokens is divided into
 * ranges of keys, until few are left. */
#extension GL_GOOGLE_include_directive : require
#define HAS_LAYOUT
#define LANES WORKGROUP
layout(constant_id = 0) const uint WORKGROUP = 128;
layout(local_size_x_id = 0) in;
#include "common.glsl"
#include "sample.glsl"

#define PARTS 512 /* bins, ranges of keys, or sorted tokens */
#define OF_GROUP 16

uint row;
Scale scale;
Floats row_logits;

/* Parts in descending order of their keys: tokens, and sums of weights. */
shared uint counts[PARTS], low[PARTS], high[PARTS];
shared uint group_counts[PARTS / OF_GROUP], group_low[PARTS / OF_GROUP], group_high[PARTS / OF_GROUP];
shared uint key_low[PARTS], key_high[PARTS]; /* of the listed tokens, descending */
shared uint n_listed;

void barrier_of_memory()
{
    memoryBarrierShared();
    barrier();
}

/* ---- Sums ---- */

/* Tokens before a place in descending order, and the sum of their weights. */
struct Sums {
    uint n;
    uvec2 weight;
};

/* A goal: a number of tokens, or a sum of weights, 1 or more. */
struct Goal {
    bool is_count;
    uint n;
    uvec2 weight;
};

bool is_reached(Goal goal, Sums s)
{
    return goal.is_count ? s.n >= goal.n : !less64(s.weight, goal.weight);
}

Sums plus(Sums s, uint n, uint low_, uint high_)
{
    return Sums(s.n + n, add64(s.weight, uvec2(low_, high_)));
}

shared uint found_part, found_n, found_low, found_high;

/* Finds the part in which a goal is reached, PARTS if it is not; *before: the sums before the parts, then those before
 * the part that was found. All lanes call it, when the parts are complete. */
uint find_part(Goal goal, inout Sums before)
{
    const uint lane = gl_LocalInvocationIndex;
    barrier_of_memory();
    for (uint group = lane; group < PARTS / OF_GROUP; group += LANES) {
        Sums s = Sums(0, uvec2(0));
        for (uint i = group * OF_GROUP; i < (group + 1) * OF_GROUP; i++)
            s = plus(s, counts[i], low[i], high[i]);
        group_counts[group] = s.n;
        group_low[group] = s.weight.x;
        group_high[group] = s.weight.y;
    }
    barrier_of_memory();
    if (lane == 0) {
        Sums s = before;
        uint group = 0;
        for (; group < PARTS / OF_GROUP; group++) {
            const Sums next = plus(s, group_counts[group], group_low[group], group_high[group]);
            if (is_reached(goal, next))
                break;
            s = next;
        }
        uint part = group * OF_GROUP;
        for (; part < PARTS; part++) {
            const Sums next = plus(s, counts[part], low[part], high[part]);
            if (is_reached(goal, next))
                break;
            s = next;
        }
        found_part = part;
        found_n = s.n;
        found_low = s.weight.x;
        found_high = s.weight.y;
    }
    barrier_of_memory();
    before = Sums(found_n, uvec2(found_low, found_high));
    return found_part;
}

void clear_parts()
{
    barrier_of_memory();
    for (uint i = gl_LocalInvocationIndex; i < PARTS; i += LANES)
        counts[i] = low[i] = high[i] = 0;
    barrier_of_memory();
}

void load_bins()
{
    State state = state_of(row);
    barrier_of_memory();
    for (uint i = gl_LocalInvocationIndex; i < PARTS; i += LANES) {
        counts[i] = state.counts[i];
        low[i] = state.low[i];
        high[i] = state.high[i];
    }
    barrier_of_memory();
}

void add_to_part(uint part, uvec2 weight)
{
    const uint before = atomicAdd(low[part], weight.x);
    atomicAdd(counts[part], 1);
    atomicAdd(high[part], weight.y + uint(before + weight.x < before));
}

/* The sums of all bins. */
Sums sum_bins()
{
    Sums all = Sums(0, uvec2(0));
    load_bins();
    find_part(Goal(true, 0xffffffff, uvec2(0)), all);
    return all;
}

/* ---- Listed tokens: those of a range ---- */

/* Tokens of bins [first, last] whose ordered logits, and whose numbers, are within bounds. */
struct Range {
    uint first, last;
    uint least, most;
    uint from, to;
    Sums before;
};

Range listed;

bool is_in(Range r, float x, uint token)
{
    const uint bin = bin_of(scale, x), at = ordered(x);
    return bin >= r.first && bin <= r.last && at >= r.least && at <= r.most && token >= r.from && token <= r.to;
}

/* ---- Passes over the tokens of a range ---- */

#define LIST 0   /* into counts and low: keys; n_listed */
#define BOUND 1  /* least_ordered, most_ordered */
#define DIVIDE 2 /* adds them to parts of `step` logits, or of `step` tokens if all have one logit */
#define END 3    /* `end`: the lane's largest key with a raw weight less than min_p */
#define SUM 4    /* sum_low, sum_high: of the weights of tokens before `end` */
#define AT_A_TIME 8 /* logits that a lane has in flight */

shared uint least_ordered, most_ordered, sum_low, sum_high;
uint step;
float least_weight;
uvec2 end;

void add_to_sum(uint low_, uint high_)
{
    const uint before = atomicAdd(sum_low, low_);
    atomicAdd(sum_high, high_ + uint(before + low_ < before));
}

void visit(uint mode, Range r, float x, uint token)
{
    const uvec2 key = key_of(x, token);
    if (mode == LIST) {
        const uint at = atomicAdd(n_listed, 1);
        if (at < PARTS) {
            counts[at] = key.x;
            low[at] = key.y;
        }
        return;
    }
    if (mode == BOUND) {
        atomicMin(least_ordered, key.y);
        atomicMax(most_ordered, key.y);
        return;
    }
    const float raw = raw_weight(scale, x);
    const uvec2 weight = units_of(scale, raw);
    if (mode == DIVIDE)
        add_to_part((r.least == r.most ? token - r.from : r.most - key.y) / step, weight);
    else if (mode == END && raw < least_weight && less64(end, key))
        end = key;
    else if (mode == SUM && less64(end, key))
        add_to_sum(weight.x, weight.y);
}

void pass_over(uint mode, Range r)
{
    const uint lane = gl_LocalInvocationIndex;
    barrier_of_memory();
    if (lane == 0) {
        n_listed = mode == LIST ? 0 : n_listed;
        least_ordered = 0xffffffff;
        most_ordered = sum_low = sum_high = 0;
    }
    barrier_of_memory();
    for (uint first = lane; first < n; first += AT_A_TIME * LANES) {
        uint found = 0;
        float x[AT_A_TIME];
        for (uint k = 0; k < AT_A_TIME; k++)
            x[k] = first + k * LANES < n ? row_logits.at[first + k * LANES] : 0.0;
        for (uint k = 0; k < AT_A_TIME; k++)
            found |= uint(is_in(r, x[k], first + k * LANES)) << k;
        [[dont_unroll]] for (; found != 0; found &= found - 1) {
            const uint token = first + uint(findLSB(found)) * LANES;
            visit(mode, r, row_logits.at[token], token);
        }
    }
    barrier_of_memory();
}

/* Lists the tokens of a range, at most PARTS, in the order of their keys. */
void list(Range r)
{
    pass_over(LIST, r);
    for (uint i = gl_LocalInvocationIndex; i < n_listed; i += LANES) {
        const uvec2 key = uvec2(counts[i], low[i]);
        uint rank = 0;
        for (uint j = 0; j < n_listed; j++)
            rank += uint(less64(key, uvec2(counts[j], low[j])));
        key_low[rank] = key.x;
        key_high[rank] = key.y;
    }
    barrier_of_memory();
    listed = r;
}

/* The parts are the listed tokens. */
void load_listed()
{
    clear_parts();
    for (uint i = gl_LocalInvocationIndex; i < n_listed; i += LANES) {
        const uvec2 weight = units_of(scale, raw_weight(scale, logit_of(key_high[i])));
        counts[i] = 1;
        low[i] = weight.x;
        high[i] = weight.y;
    }
}

bool is_listed(uint first, uint last)
{
    return first >= listed.first && last <= listed.last && listed.least == 0;
}

/* ---- Ranges of too many tokens ---- */

/* Narrows a range to the part of it in which the goal is reached; returns its tokens. */
uint narrow(Goal goal, inout Range r)
{
    const bool is_one = r.least == r.most; /* logit: by tokens */
    step = (is_one ? r.to - r.from : r.most - r.least) / PARTS + 1;
    clear_parts();
    pass_over(DIVIDE, r);
    const uint part = find_part(goal, r.before);
    if (part == PARTS)
        return 0;
    if (is_one) {
        r.from += part * step;
        r.to = min(r.to, r.from + (step - 1));
    } else {
        r.most -= part * step;
        r.least = r.most - r.least < step ? r.least : r.most - (step - 1);
    }
    return counts[part];
}

/* ---- The token at which a goal is reached ---- */

/* Returns whether it is; *weight: the sum of the weights through the token. Both stay as they are if it is not. */
bool find_token(Goal goal, inout uvec2 weight, inout uint token)
{
    Sums before = Sums(0, uvec2(0));
    load_bins();
    const uint bin = find_part(goal, before);
    if (bin == PARTS)
        return false;
    if (!is_listed(bin, bin)) {
        const uint of_bin = counts[bin];
        const bool is_few = before.n + of_bin <= PARTS;
        Range r = Range(is_few ? 0 : bin, bin, 0, 0xffffffff, 0, n - 1, Sums(0, uvec2(0)));
        uint left = is_few ? before.n + of_bin : of_bin;
        if (!is_few)
            r.before = before;
        if (left > PARTS) {
            pass_over(BOUND, r);
            r.least = least_ordered;
            r.most = most_ordered;
        }
        while (left > PARTS)
            left = narrow(goal, r);
        if (left == 0)
            return false;
        list(r);
    }
    load_listed();
    before = listed.before;
    const uint at = find_part(goal, before);
    if (at == PARTS)
        return false;
    weight = add64(before.weight, uvec2(low[at], high[at]));
    token = ~key_low[at];
    return true;
}

/* ---- min_p ---- */

/* The least of `kept` and the sum of the weights of the tokens before the first one whose raw weight is less than min_p.
 * Tokens of bins before first_edge have more, those after last_edge less. */
uvec2 apply_min_p(Params p, uvec2 kept)
{
    const uint lane = gl_LocalInvocationIndex, edge = min(p.first_edge, PARTS);
    const Range r = Range(p.first_edge, p.last_edge, 0, 0xffffffff, 0, n - 1, Sums(0, uvec2(0)));
    load_bins();
    if (lane == 0)
        sum_low = sum_high = 0;
    barrier_of_memory();
    for (uint i = lane; i < edge; i += LANES)
        add_to_sum(low[i], high[i]);
    barrier_of_memory();
    const uvec2 before = uvec2(sum_low, sum_high);
    if (!less64(before, kept))
        return kept;
    least_weight = p.min_p;
    end = uvec2(0);
    pass_over(END, r);
    end = max_of_lanes(end);
    pass_over(SUM, r);
    return min64(kept, add64(before, uvec2(sum_low, sum_high)));
}

/* ---- top_p ---- */

#define DOUBLE_BITS 53

/* An integer with a fraction's bits as a double: rounded to nearest even, times 2^exponent. */
uvec2 rounded(uvec2 x, bool has_more, inout int exponent)
{
    const uint bits = bits_of(x);
    if (bits <= DOUBLE_BITS)
        return x;
    const uint shift = bits - DOUBLE_BITS;
    const uvec2 upper = shift_right(x, shift), lost = sub64(x, shift_left(upper, shift)),
                half_ = shift_left(uvec2(1, 0), shift - 1);
    exponent += int(shift);
    const bool is_up = less64(half_, lost) || (lost == half_ && (has_more || (upper.x & 1) != 0));
    return is_up ? add64(upper, uvec2(1, 0)) : upper;
}

/* mantissa * m as a double, for a mantissa of up to 54 bits and m of 24. */
uvec2 multiply_double(uvec2 mantissa, uint m, inout int exponent)
{
    uint high_high, high_low, low_high, low_low;
    umulExtended(mantissa.x, m, low_high, low_low);
    umulExtended(mantissa.y, m, high_high, high_low);
    const uvec2 upper = add64(uvec2(high_low, high_high), uvec2(low_high, 0)); /* of 46 bits; the lower 32 are low_low */
    const uint shift = min(64 - bits_of(upper), 32);
    const uvec2 x = add64(shift_left(upper, shift), uvec2(low_low >> 32 - shift, 0));
    exponent += 32 - int(shift);
    return rounded(x, shift < 32 && low_low << shift != 0, exponent);
}

/* The least integer, at least 1, that is no less, as a double, than the double mantissa * 2^exponent. */
uvec2 least_reaching(uvec2 mantissa, int exponent)
{
    if (mantissa == uvec2(0) || exponent <= -64)
        return uvec2(1, 0);
    if (bits_of(mantissa) > DOUBLE_BITS) { /* 2^53 */
        mantissa = shift_right(mantissa, 1);
        exponent++;
    }
    if (exponent <= 0) { /* up to 2^53: integers are exact */
        const uvec2 whole = shift_right(mantissa, uint(-exponent)), back = shift_left(whole, uint(-exponent));
        const uvec2 least = back == mantissa ? whole : add64(whole, uvec2(1, 0));
        return least == uvec2(0) ? uvec2(1, 0) : least;
    }
    while (exponent > 0 && bits_of(mantissa) < DOUBLE_BITS) {
        mantissa = shift_left(mantissa, 1);
        exponent--;
    }
    const uvec2 value = shift_left(mantissa, uint(exponent));
    if (exponent == 0)
        return value;
    if (mantissa == uvec2(0, 1u << 20)) /* a power of two: below it doubles are denser */
        return exponent == 1 ? value : sub64(value, shift_left(uvec2(1, 0), uint(exponent - 2)));
    const uvec2 least = sub64(value, shift_left(uvec2(1, 0), uint(exponent - 1)));
    return (mantissa.x & 1) == 0 ? least : add64(least, uvec2(1, 0));
}

/* The least sum with (double)sum >= (double)fraction * (double)total. */
uvec2 sum_of_fraction(float fraction, uvec2 total)
{
    const uint bits = floatBitsToUint(fraction);
    int exponent = 0;
    const uvec2 mantissa = rounded(total, false, exponent);
    if (bits >> 31 != 0 || bits >> 23 == 0)
        return uvec2(1, 0);
    exponent += int(bits >> 23) - 150;
    const uvec2 product = multiply_double(mantissa, bits & 0x7fffff | 0x800000, exponent);
    return min64(least_reaching(product, exponent), total);
}

/* ---- The draw ---- */

/* The goals in turn: top_k, top_p, the draw. */
uint draw(Params p, uint best)
{
    uint token = best;
    uvec2 kept = sum_bins().weight;
    [[dont_unroll]] for (uint i = 0; i < 3; i++) {
        Goal goal = Goal(i == 0, p.top_k, uvec2(0));
        if (i == 1) {
            goal.weight = sum_of_fraction(p.top_p, kept);
            if (p.min_p > 0)
                kept = apply_min_p(p, kept);
        } else if (i == 2) {
            goal.weight = add64(multiply_high(p.random, kept), uvec2(1, 0));
        }
        if (i == 0 && p.top_k == 0 || i == 1 && !less64(goal.weight, kept))
            continue;
        uvec2 weight = kept;
        find_token(goal, weight, token);
        kept = min64(kept, weight);
    }
    return token;
}

void main()
{
    row = gl_WorkGroupID.x;
    Params p = params_of(row);
    if (p.kind == 0)
        return;
    const uvec2 best = max_of_slices(row);
    const bool is_finite = is_finite_key(best);
    uint token = ~best.x;
    scale = scale_of(p, best);
    row_logits = Floats(advance(logits, row, 4 * n));
    listed = Range(1, 0, 0, 0, 0, 0, Sums(0, uvec2(0)));
    if (p.kind == DRAW && is_finite)
        token = draw(p, token);
    if (gl_LocalInvocationIndex != 0)
        return;
    Result result = Result(advance(results, row, RESULT_BYTES));
    result.best = best;
    result.token = is_finite ? int(token) : -1;
    if (!is_null(tokens))
        Words(tokens).at[row] = is_finite ? token : 0;
}
