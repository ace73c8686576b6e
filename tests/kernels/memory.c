/* Memory of the checks: what a case allocates is registered here, is compared with the guards around it, and is freed
 * together. */
#include "check.h"

#include "base/memory.h"

enum { GUARD = 64, POISON = 0xff }; /* all ones: NaN as f32 and f16 */

static struct owned {
    void *object;
    size_t bytes;
    bool (*intact)(const void *object); /* NULL: no guards */
    void (*release)(void *object);
} * owned;
static size_t n_owned, cap_owned;

void qn_own(void *object, size_t bytes, bool (*intact)(const void *object), void (*release)(void *object))
{
    qn_assert_ok(qn_realloc_array(&owned, &cap_owned, n_owned + 1, sizeof *owned, "memory of a case"));
    owned[n_owned++] = (struct owned){ object, bytes, intact, release };
}

static void expect_guards(size_t first)
{
    for (size_t i = first; i < n_owned; i++)
        if (owned[i].intact)
            qn_expect(owned[i].intact(owned[i].object),
                      "bytes around memory %zu of the case, of %zu bytes, were written", i, owned[i].bytes);
}

void qn_expect_guards(void)
{
    expect_guards(0);
}

size_t qn_mark(void)
{
    return n_owned;
}

void qn_release_to(size_t mark)
{
    expect_guards(mark);
    while (n_owned > mark) {
        n_owned--;
        owned[n_owned].release(owned[n_owned].object);
    }
}

void qn_release(void)
{
    qn_release_to(0);
}

/* ---- Without guards ---- */

void *qn_new(size_t count, size_t size)
{
    void *memory;
    qn_assert_ok(qn_alloc(&memory, count, size, "memory of a case"));
    qn_own(memory, count * size, NULL, qn_free);
    return memory;
}

size_t qn_bytes_of(const void *memory)
{
    for (size_t i = n_owned; i-- > 0;)
        if (owned[i].object == memory)
            return owned[i].bytes;
    fprintf(stderr, "quern-check: memory of unknown size\n");
    exit(1);
}

float *qn_floats(size_t n)
{
    return qn_new(n, sizeof(float));
}

double *qn_doubles(size_t n)
{
    return qn_new(n, sizeof(double));
}

float *qn_floats_of(size_t n, float scale)
{
    float *x = qn_floats(n);
    qn_random_floats(x, n, scale);
    return x;
}

float *qn_signs_of(size_t n)
{
    float *signs = qn_floats(n);
    qn_random_signs(signs, n);
    return signs;
}

const char *qn_text(const char *format, ...)
{
    enum { BYTES = 192 };
    char *text = qn_new(BYTES, 1);
    va_list args;
    va_start(args, format);
    vsnprintf(text, BYTES, format, args);
    va_end(args);
    return text;
}

/* ---- With guards ---- */

struct guarded {
    size_t bytes, shift;
    uint8_t *block;
};

static bool is_intact(const void *object)
{
    const struct guarded *g = object;
    const uint8_t *after = g->block + GUARD + g->shift + g->bytes;
    for (size_t i = 0; i < GUARD + g->shift; i++)
        if (g->block[i] != POISON)
            return false;
    for (size_t i = 0; i < GUARD; i++)
        if (after[i] != POISON)
            return false;
    return true;
}

static void release_guarded(void *object)
{
    qn_free(((struct guarded *)object)->block);
    qn_free(object);
}

void *qn_guarded(size_t bytes, size_t shift)
{
    const size_t all = bytes + shift + 2 * GUARD;
    struct guarded *g;
    qn_assert_ok(qn_alloc(&g, 1, sizeof *g, "memory of a case"));
    *g = (struct guarded){ .bytes = bytes, .shift = shift };
    qn_assert_ok(qn_alloc(&g->block, all, 1, "memory of a case"));
    memset(g->block, POISON, all);
    qn_own(g, bytes, is_intact, release_guarded);
    return g->block + GUARD + shift;
}

float *qn_guarded_floats(size_t n)
{
    return qn_guarded(n * sizeof(float), 4 * qn_random_below(16));
}
