/* Rejected arguments of the public Gated DeltaNet kernels: for each argument, the error names it, the value found and
 * the value expected, and nothing is written. */
#include "helper_gdn.h"

enum { TOKENS = 70, K_HEADS = 2, V_HEADS = 4, K = 32, V = 48, ROWS = TOKENS, CHUNKS = 2 };

/* Valid arguments for all functions; each case makes one of them invalid. */
typedef struct call {
    qn_gdn_shape shape;
    qn_view q, k, v, g, beta, gc, a, inverse, w, u, initial, h, v_new, final, o;
} call;

typedef qn_status (*function)(const call *c);

static qn_status call_count(const call *c)
{
    size_t n;
    return qn_gdn_chunk_count(&c->shape, &n);
}
static qn_status call_cumsum(const call *c)
{
    return qn_gdn_cumsum(&c->shape, c->g, c->gc);
}
static qn_status call_kkt(const call *c)
{
    return qn_gdn_kkt(&c->shape, c->k, c->beta, c->gc, c->a);
}
static qn_status call_inverse(const call *c)
{
    return qn_gdn_tril_inverse(&c->shape, c->a, c->inverse);
}
static qn_status call_w_u(const call *c)
{
    return qn_gdn_recompute_w_u(&c->shape, c->k, c->v, c->beta, c->gc, c->inverse, c->w, c->u);
}
static qn_status call_state_pass(const call *c)
{
    return qn_gdn_state_pass(&c->shape, c->k, c->w, c->u, c->gc, c->initial, c->h, c->v_new, c->final);
}
static qn_status call_output(const call *c)
{
    return qn_gdn_chunk_output(&c->shape, c->q, c->k, c->v_new, c->h, c->gc, c->o);
}
static qn_status call_chunk(const call *c)
{
    return qn_gdn_chunk(&c->shape, c->q, c->k, c->v, c->g, c->beta, c->initial, c->final, c->o);
}
static qn_status call_step(const call *c)
{
    return qn_gdn_step(&c->shape, c->q, c->k, c->v, c->g, c->beta, c->final, c->o);
}

static const function functions[] = { call_count,      call_cumsum, call_kkt,   call_inverse, call_w_u,
                                      call_state_pass, call_output, call_chunk, call_step };
enum { N_FUNCTIONS = COUNT(functions) };

/* The array arguments: name, field of struct call, valid element count. */
typedef struct argument {
    const char *name;
    size_t offset, count;
    bool typed; /* of type D, else f32 */
} argument;

#define ARGUMENT(name, count, typed)                                                                                   \
    {                                                                                                                  \
#name, offsetof(call, name), count, typed                                                                      \
    }
static const argument arguments[] = {
    ARGUMENT(q, ROWS *K_HEADS *K, true),     ARGUMENT(k, ROWS *K_HEADS *K, true),
    ARGUMENT(v, ROWS *V_HEADS *V, true),     ARGUMENT(g, ROWS *V_HEADS, false),
    ARGUMENT(beta, ROWS *V_HEADS, false),    ARGUMENT(gc, ROWS *V_HEADS, false),
    ARGUMENT(a, ROWS *V_HEADS * 64, false),  ARGUMENT(inverse, ROWS *V_HEADS * 64, false),
    ARGUMENT(w, ROWS *V_HEADS *K, true),     ARGUMENT(u, ROWS *V_HEADS *V, true),
    ARGUMENT(initial, V_HEADS *V *K, false), ARGUMENT(h, CHUNKS *V_HEADS *V *K, true),
    ARGUMENT(v_new, ROWS *V_HEADS *V, true), ARGUMENT(final, V_HEADS *V *K, false),
    ARGUMENT(o, ROWS *V_HEADS *V, true),
};
enum { N_ARGUMENTS = COUNT(arguments) };

static qn_view *argument_of(call *c, const argument *a)
{
    return (qn_view *)(void *)((char *)c + a->offset);
}

static call sound(void)
{
    call c = { .shape = { .batch = 1,
                          .tokens = TOKENS,
                          .k_heads = K_HEADS,
                          .v_heads = V_HEADS,
                          .head_k = K,
                          .head_v = V,
                          .scale = 1 } };
    for (size_t i = 0; i < N_ARGUMENTS; i++) {
        qn_view *view = argument_of(&c, &arguments[i]);
        *view = gdn_new(arguments[i].typed ? QN_DTYPE_BF16 : QN_DTYPE_F32, arguments[i].count);
        memset(view->data, 0, view->count * gdn_size(view->dtype));
    }
    return c;
}

static void release(call *c)
{
    for (size_t i = 0; i < N_ARGUMENTS; i++)
        gdn_free(*argument_of(c, &arguments[i]));
}

/* The function returns QN_ERR_INVALID with `text` in the message, and changes no array. */
static void refuses(const call *spoiled, function f, const char *text)
{
    call before = *spoiled;
    void *copies[N_ARGUMENTS];
    for (size_t i = 0; i < N_ARGUMENTS; i++) {
        const qn_view view = *argument_of(&before, &arguments[i]);
        const size_t bytes = view.data && view.count <= arguments[i].count ? view.count * 2 : 0; /* any type has 2 bytes
                                                                                                  */
        copies[i] = malloc(bytes + 1);
        memcpy(copies[i], view.data ? view.data : "", bytes);
    }
    assert_int_equal(f(spoiled), QN_ERR_INVALID);
    if (!strstr(qn_error_text(), text))
        fail_msg("'%s' is not in '%s'", text, qn_error_text());
    for (size_t i = 0; i < N_ARGUMENTS; i++) {
        const qn_view view = *argument_of(&before, &arguments[i]);
        const size_t bytes = view.data && view.count <= arguments[i].count ? view.count * 2 : 0;
        assert_memory_equal(copies[i], view.data ? view.data : "", bytes);
        free(copies[i]);
    }
}

static void refused_by_all(const qn_gdn_shape *shape, const char *text)
{
    call c = sound();
    c.shape = *shape;
    for (size_t f = 0; f < N_FUNCTIONS; f++)
        refuses(&c, functions[f], text);
    release(&c);
}

TEST(shapes)
{
    call c = sound();
    const qn_gdn_shape right = c.shape;
    for (size_t f = 0; f < N_FUNCTIONS; f++)
        assert_ok(functions[f](&c));
    release(&c);
    struct {
        qn_gdn_shape shape;
        const char *text;
    } cases[] = {
        { right, "batch: 0, expected at least 1" },
        { right, "tokens: 0, expected at least 1" },
        { right, "do not fit in memory" },
        { right, "k_heads: 0, expected at least 1" },
        { right, "v_heads: 0, expected a multiple of k_heads 2" },
        { right, "v_heads: 5, expected a multiple of k_heads 2" },
        { right, "head_k: 0, expected a multiple of 16 from 16 to 256" },
        { right, "head_k: 40, expected a multiple of 16 from 16 to 256" },
        { right, "head_k: 272, expected a multiple of 16 from 16 to 256" },
        { right, "head_v: 0, expected a multiple of 16 from 16 to 256" },
        { right, "head_v: 272, expected a multiple of 16 from 16 to 256" },
        { right, "mapping: 2, expected 0 or 1" },
        { right, "do not fit in memory" },
    };
    size_t i = 0;
    cases[i++].shape.batch = 0;
    cases[i++].shape.tokens = 0;
    cases[i++].shape.batch = SIZE_MAX / 2;
    cases[i++].shape.k_heads = 0;
    cases[i++].shape.v_heads = 0;
    cases[i++].shape.v_heads = 5;
    cases[i++].shape.head_k = 0;
    cases[i++].shape.head_k = 40;
    cases[i++].shape.head_k = 272;
    cases[i++].shape.head_v = 0;
    cases[i++].shape.head_v = 272;
    cases[i++].shape.mapping = (qn_gdn_mapping)2;
    cases[i++].shape.v_heads = SIZE_MAX - 1;
    assert_int_equal(i, COUNT(cases));
    for (i = 0; i < COUNT(cases); i++)
        refused_by_all(&cases[i].shape, cases[i].text);
    assert_int_equal(qn_gdn_cumsum(NULL, (qn_view){ 0 }, (qn_view){ 0 }), QN_ERR_INVALID);
}

TEST(cumulative_lengths)
{
    static const struct {
        uint32_t ends[4];
        const char *text;
    } cases[] = {
        { { 1, 20, 30, 70 }, "cu_seqlens: element 0 is 1, expected 0" },
        { { 0, 20, 19, 70 }, "cu_seqlens: element 2 is 19, expected from 20 to 70 tokens" },
        { { 0, 20, 30, 71 }, "cu_seqlens: element 3 is 71, expected from 30 to 70 tokens" },
    };
    call c = sound();
    uint32_t ends[4];
    c.shape.n_sequences = 3;
    for (size_t i = 0; i < COUNT(cases); i++) {
        memcpy(ends, cases[i].ends, sizeof ends);
        c.shape.cu_seqlens = (qn_view){ ends, QN_DTYPE_U32, 4 };
        refused_by_all(&c.shape, cases[i].text);
    }
    c.shape.cu_seqlens = (qn_view){ ends, QN_DTYPE_U32, 3 };
    refused_by_all(&c.shape, "cu_seqlens: 3 elements, expected at least 4");
    c.shape.cu_seqlens = (qn_view){ ends, QN_DTYPE_F32, 4 };
    refused_by_all(&c.shape, "cu_seqlens: type f32 (0), expected u32");
    c.shape.cu_seqlens = (qn_view){ NULL, QN_DTYPE_U32, 4 };
    refused_by_all(&c.shape, "cu_seqlens: NULL");
    c.shape.n_sequences = SIZE_MAX;
    refused_by_all(&c.shape, "n_sequences: ");
    c.shape.n_sequences = 3;
    c.shape.batch = 2;
    refused_by_all(&c.shape, "batch: 2, expected 1 with 3 packed sequences");
    release(&c);
}

/* For each argument of each function: one element too few, another type, a NULL pointer. */
TEST(views)
{
    static const char *const taken[N_FUNCTIONS] = {
        "",
        "g gc",
        "k beta gc a",
        "a inverse",
        "k v beta gc inverse w u",
        "k w u gc initial h v_new final",
        "q k v_new h gc o",
        "q k v g beta initial final o",
        "q k v g beta final o",
    };
    for (size_t f = 0; f < N_FUNCTIONS; f++) {
        char names[100], *next = names;
        strcpy(names, taken[f]);
        for (char *name; (name = strtok_r(next, " ", &next));) {
            size_t i = 0;
            while (strcmp(arguments[i].name, name) != 0)
                i++;
            call c = sound();
            qn_view *view = argument_of(&c, &arguments[i]);
            const qn_view right = *view;
            char text[200];
            const char *shown = functions[f] == call_step && !strcmp(name, "final") ? "state" : name;
            view->count--;
            snprintf(text, sizeof text, "%s: %zu elements, expected at least %zu", shown, right.count - 1, right.count);
            refuses(&c, functions[f], text);
            *view = right;
            view->dtype = QN_DTYPE_Q8_0;
            const bool decides = arguments[i].typed && !strncmp(taken[f], name, strlen(name));
            snprintf(text, sizeof text, "%s: type q8_0 (8), expected %s", shown,
                     decides              ? "f32, f16 or bf16"
                     : arguments[i].typed ? "bf16"
                                          : "f32");
            refuses(&c, functions[f], text);
            *view = right;
            view->data = NULL;
            snprintf(text, sizeof text, "%s: NULL, expected %zu elements", shown, right.count);
            refuses(&c, functions[f], text);
            *view = right;
            release(&c);
        }
    }
}

/* Invalid log decays and cumulative sums, at an element in the middle. Elements past the last sequence are not
 * checked. */
TEST(decays)
{
    static const struct {
        float g;
        const char *text;
    } cases[] = { { 1e-7f, "is 1e-07, expected finite and at most 0" },
                  { NAN, "nan, expected finite and at most 0" },
                  { -INFINITY, "is -inf, expected finite and at most 0" },
                  { INFINITY, "is inf, expected finite and at most 0" } };
    call c = sound();
    uint32_t ends[] = { 0, 66, 69 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ((float *)c.g.data)[67 * V_HEADS + 3] = cases[i].g;
        ((float *)c.gc.data)[67 * V_HEADS + 3] = cases[i].g;
        for (size_t f = 1; f < N_FUNCTIONS; f++) {
            if (functions[f] == call_inverse)
                continue;
            refuses(&c, functions[f], cases[i].text);
            refuses(&c, functions[f], ": element 271 (token 67, head 3)");
        }
    }
    c.shape.n_sequences = 2;
    c.shape.cu_seqlens = (qn_view){ ends, QN_DTYPE_U32, 3 };
    ends[2] = 67;
    for (size_t f = 1; f < N_FUNCTIONS; f++)
        if (functions[f] != call_state_pass && functions[f] != call_output && functions[f] != call_chunk &&
            functions[f] != call_step && functions[f] != call_cumsum)
            assert_ok(functions[f](&c));
    release(&c);
}

TEST(scales)
{
    static const float bad[] = { NAN, INFINITY };
    for (size_t i = 0; i < 2; i++) {
        call c = sound();
        c.shape.scale = bad[i];
        refuses(&c, call_output, "scale: ");
        refuses(&c, call_chunk, "expected a finite value");
        refuses(&c, call_step, "scale: ");
        release(&c);
    }
}

TEST(convolutions)
{
    const qn_conv_shape right = { .batch = 2, .tokens = 3, .channels = 5, .taps = 4 };
    float x[30] = { 0 }, weights[45] = { 0 }, bias[5] = { 0 }, state[70] = { 0 }, y[30];
    const qn_view none = { 0 }, xs = { x, QN_DTYPE_F32, 30 }, ws = { weights, QN_DTYPE_F32, 45 },
                  bs = { bias, QN_DTYPE_F32, 5 };
    const qn_view ss = { state, QN_DTYPE_F32, 70 }, ys = { y, QN_DTYPE_F32, 30 };
    memset(y, GDN_POISON, sizeof y);
#define REFUSES(call, part) assert_fails(call, QN_ERR_INVALID, part)
    qn_conv_shape s = right;
    s.channels = 0;
    REFUSES(qn_conv_scan(&s, xs, ws, none, none, none, ys), "channels: 0");
    s = right;
    s.taps = 0;
    REFUSES(qn_conv_scan(&s, xs, ws, none, none, none, ys), "taps: 0, expected 1 to 8");
    s.taps = 9;
    REFUSES(qn_conv_scan(&s, xs, ws, none, none, none, ys), "taps: 9, expected 1 to 8");
    s.taps = 8;
    REFUSES(qn_conv_scan(&s, xs, ws, bs, none, none, ys), "taps: 8, expected 1 to 7 with a bias");
    s = right;
    s.channels = SIZE_MAX / 2;
    REFUSES(qn_conv_scan(&s, xs, ws, none, none, none, ys), "do not fit in memory");
    s = right;
    REFUSES(qn_conv_scan(NULL, xs, ws, none, none, none, ys), "shape: NULL");
    REFUSES(qn_conv_scan(&s, (qn_view){ x, QN_DTYPE_U32, 30 }, ws, none, none, none, ys), "x: type u32");
    REFUSES(qn_conv_scan(&s, (qn_view){ x, QN_DTYPE_F32, 29 }, ws, none, none, none, ys),
            "x: 29 elements, expected at least 30");
    REFUSES(qn_conv_scan(&s, xs, (qn_view){ weights, QN_DTYPE_F32, 19 }, none, none, none, ys), "weights: 19 elements");
    REFUSES(qn_conv_scan(&s, xs, ws, (qn_view){ bias, QN_DTYPE_F32, 4 }, none, none, ys), "bias: 4 elements");
    REFUSES(qn_conv_scan(&s, xs, ws, none, (qn_view){ state, QN_DTYPE_F32, 29 }, none, ys), "initial: 29 elements");
    REFUSES(qn_conv_scan(&s, xs, ws, none, none, (qn_view){ state, QN_DTYPE_F16, 30 }, ys),
            "final: type f16 (1), expected f32");
    REFUSES(qn_conv_scan(&s, xs, ws, none, none, none, (qn_view){ NULL, QN_DTYPE_F32, 30 }), "y: NULL");
    REFUSES(qn_conv_step(&s, xs, ws, none, ss, ys), "tokens, n_sequences: 3, 0, expected 1 and 0");
    s.tokens = 1;
    REFUSES(qn_conv_step(&s, xs, ws, none, none, ys), "state: 0 elements, expected at least 30");
    REFUSES(qn_l2_norm(xs, 3, 5, 0, ys), "eps: 0, expected finite and more than 0");
    REFUSES(qn_l2_norm(xs, 7, 5, 1e-6f, ys), "x: 30 elements, expected at least 35");
    REFUSES(qn_l2_norm(xs, 3, 5, 1e-6f, (qn_view){ y, QN_DTYPE_BF16, 30 }), "out: type bf16 (30), expected f32");
    REFUSES(qn_gated_rms_norm(xs, xs, bs, 3, 5, NAN, ys), "eps: ");
    REFUSES(qn_gated_rms_norm(xs, (qn_view){ x, QN_DTYPE_F32, 14 }, bs, 3, 5, 1e-6f, ys), "gate: 14 elements");
    REFUSES(qn_gated_rms_norm(xs, xs, (qn_view){ bias, QN_DTYPE_F16, 5 }, 3, 5, 1e-6f, ys), "weight: type f16");
    REFUSES(qn_gated_rms_norm(xs, xs, bs, 3, 5, 1e-6f, (qn_view){ NULL, QN_DTYPE_F32, 15 }), "out: NULL");
    for (size_t i = 0; i < 30; i++)
        assert_true(isnan(y[i]));
}
