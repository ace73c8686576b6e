/* The index of n-grams. Tokens are numbered from 0 in the order in which they were added, modulo 2^32; the last
 * `capacity` of them are kept in a ring. For n-grams of 2 and of 4 tokens, a table of hashes has the number of the
 * token that followed the last n-gram with that hash, and a list links it to those before, as in the LZ77 matcher of
 * DEFLATE (RFC 1951, section 4). Matches are compared token by token, so a hash that several n-grams share costs time
 * only. */
#include "engine/spec/ngram.h"

#include "base/memory.h"

#include <string.h>

/* STEPS: places of a list that are looked at. SEPARATOR is between texts, and equals no token. */
enum { LISTS = 2, MOST_GRAM = 4, FIRST_CAPACITY = 1024, STEPS = 48, SEPARATOR = -1 };
static const size_t grams[LISTS] = { MOST_GRAM, QN_NGRAM_SHORTEST };

struct qn_ngrams {
    size_t limit;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t n;        /* tokens that were added, modulo 2^32 */
    uint32_t held;     /* of these, the last ones, which are kept */
    uint32_t run;      /* tokens of the last text that are kept */
    qn_token *tokens;  /* [capacity] a token by its number modulo the capacity; the same for the lists */
    uint32_t *owners;
    uint32_t *previous[LISTS]; /* [capacity] number of the token after the n-gram before with the same hash */
    uint32_t *last[LISTS];     /* [capacity] by hash */
};

qn_status qn_ngrams_create(size_t limit, qn_ngrams **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "index of n-grams"));
    (*out)->limit = limit;
    return QN_OK;
}

static void free_arrays(qn_ngrams *g)
{
    qn_free(g->tokens);
    qn_free(g->owners);
    for (size_t i = 0; i < LISTS; i++) {
        qn_free(g->previous[i]);
        qn_free(g->last[i]);
    }
}

void qn_ngrams_free(qn_ngrams *g)
{
    if (g)
        free_arrays(g);
    qn_free(g);
}

size_t qn_ngrams_bytes(const qn_ngrams *g)
{
    const size_t each = sizeof *g->tokens + sizeof *g->owners + LISTS * 2 * sizeof(uint32_t);
    return sizeof *g + g->capacity * each;
}

/* ---- Adding ---- */

static uint32_t slot_of(const qn_ngrams *g, uint32_t number)
{
    return number & (g->capacity - 1);
}

/* The hash of the n-gram whose tokens end before `end`. */
static uint32_t hash_of(const qn_ngrams *g, uint32_t owner, const qn_token *end, size_t n)
{
    uint64_t hash = owner + 1;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ (uint32_t) * --end) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return (uint32_t)hash & (g->capacity - 1);
}

/* Copies the tokens before token `number` to `out` [n]. */
static void read_before(const qn_ngrams *g, uint32_t number, size_t n, qn_token *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = g->tokens[slot_of(g, number - (uint32_t)(n - i))];
}

/* Puts a token, of whose text `run` tokens precede it, into the lists of the n-grams that it follows. Separators are in
 * no list: nothing follows there. */
static void list(qn_ngrams *g, uint32_t number, uint32_t run)
{
    const uint32_t slot = slot_of(g, number);
    qn_token before[MOST_GRAM];
    for (size_t i = 0; i < LISTS; i++) {
        if (run < grams[i] || g->tokens[slot] == SEPARATOR)
            continue;
        read_before(g, number, grams[i], before);
        uint32_t *last = &g->last[i][hash_of(g, g->owners[slot], before + grams[i], grams[i])];
        g->previous[i][slot] = *last;
        *last = number;
    }
}

/* An entry that no list has: a token number that is never among those kept when it is looked up. */
static void clear_lists(qn_ngrams *g)
{
    for (size_t i = 0; i < LISTS; i++)
        for (size_t slot = 0; slot < g->capacity; slot++)
            g->last[i][slot] = g->previous[i][slot] = g->n - g->held - 1;
}

static qn_status alloc_arrays(qn_ngrams *g, size_t capacity)
{
    g->capacity = (uint32_t)capacity;
    QN_TRY(qn_alloc(&g->tokens, capacity, sizeof *g->tokens, "index of n-grams"));
    QN_TRY(qn_alloc(&g->owners, capacity, sizeof *g->owners, "index of n-grams"));
    for (size_t i = 0; i < LISTS; i++) {
        QN_TRY(qn_alloc(&g->previous[i], capacity, sizeof(uint32_t), "index of n-grams"));
        QN_TRY(qn_alloc(&g->last[i], capacity, sizeof(uint32_t), "index of n-grams"));
    }
    return QN_OK;
}

/* Moves all tokens, none of which was dropped yet, to larger arrays. */
static qn_status grow(qn_ngrams *g, size_t capacity)
{
    qn_ngrams larger = { .limit = g->limit, .n = g->n, .held = g->held, .run = g->run };
    const qn_status status = alloc_arrays(&larger, capacity);
    if (status != QN_OK) {
        free_arrays(&larger);
        return status;
    }
    clear_lists(&larger);
    uint32_t run = 0;
    for (uint32_t number = 0; number < g->n; number++) {
        larger.tokens[number] = g->tokens[number];
        larger.owners[number] = g->owners[number];
        list(&larger, number, run);
        run = larger.tokens[number] == SEPARATOR ? 0 : run + 1;
    }
    free_arrays(g);
    *g = larger;
    return QN_OK;
}

/* Makes room for n more tokens, or for as many as the limit allows. */
static qn_status reserve(qn_ngrams *g, size_t n)
{
    size_t capacity = g->capacity ? g->capacity : FIRST_CAPACITY;
    const size_t need = n < g->limit - g->held ? g->held + n : g->limit;
    while (capacity < need)
        capacity *= 2;
    capacity = capacity < g->limit ? capacity : g->limit;
    return capacity > g->capacity ? grow(g, capacity) : QN_OK;
}

static void add(qn_ngrams *g, uint32_t owner, qn_token token)
{
    const uint32_t slot = slot_of(g, g->n);
    g->tokens[slot] = token;
    g->owners[slot] = owner;
    list(g, g->n, g->run);
    g->n++;
    g->held += g->held < g->capacity;
    g->run = token == SEPARATOR ? 0 : g->run + (g->run < g->capacity);
}

qn_status qn_ngrams_add(qn_ngrams *g, uint32_t owner, const qn_token *tokens, size_t n)
{
    QN_TRY(reserve(g, n + 1)); /* and its end */
    for (size_t i = 0; i < n; i++)
        add(g, owner, tokens[i]);
    return QN_OK;
}

void qn_ngrams_end(qn_ngrams *g)
{
    if (g->run)
        add(g, 0, SEPARATOR);
}

/* ---- Looking up ---- */

/* Whether a token of this number is kept. */
static bool is_held(const qn_ngrams *g, uint32_t number)
{
    return g->n - number - 1 < g->held;
}

/* Whether a token is kept, is of this owner, and equals `token`. */
static bool equals(const qn_ngrams *g, uint32_t number, uint32_t owner, qn_token token)
{
    const uint32_t slot = slot_of(g, number);
    return is_held(g, number) && g->owners[slot] == owner && g->tokens[slot] == token;
}

/* The number of tokens before token `end` that equal those at the end of the text. */
static size_t match_length(const qn_ngrams *g, uint32_t end, uint32_t owner, const qn_token *text, size_t n)
{
    size_t length = 0;
    const size_t most = n < QN_NGRAM_LONGEST ? n : QN_NGRAM_LONGEST;
    while (length < most && equals(g, end - (uint32_t)length - 1, owner, text[n - 1 - length]))
        length++;
    return length;
}

/* The longest match in the list of n-grams of one length. */
static qn_ngram_match find_in(const qn_ngrams *g, size_t which, uint32_t owner, const qn_token *text, size_t n)
{
    qn_ngram_match best = { 0 };
    uint32_t number = g->last[which][hash_of(g, owner, text + n, grams[which])];
    for (size_t i = 0; i < STEPS && is_held(g, number); i++) {
        const size_t length = g->owners[slot_of(g, number)] == owner ? match_length(g, number, owner, text, n) : 0;
        if (length > best.length)
            best = (qn_ngram_match){ length, number };
        if (length == QN_NGRAM_LONGEST)
            break;
        const uint32_t before = g->previous[which][slot_of(g, number)];
        if (g->n - before <= g->n - number) /* its slot was used again */
            break;
        number = before;
    }
    return best;
}

qn_ngram_match qn_ngrams_find(const qn_ngrams *g, uint32_t owner, const qn_token *text, size_t n)
{
    qn_ngram_match best = { 0 };
    for (size_t i = 0; i < LISTS && g->held && best.length < grams[i]; i++)
        if (n >= grams[i])
            best = find_in(g, i, owner, text, n);
    return best.length < QN_NGRAM_SHORTEST ? (qn_ngram_match){ 0 } : best;
}

size_t qn_ngrams_read(const qn_ngrams *g, qn_ngram_match match, size_t k, qn_token *out)
{
    const uint32_t left = g->n - match.end, owner = g->owners[slot_of(g, match.end)];
    for (size_t i = 0; i < k; i++) {
        const uint32_t slot = slot_of(g, match.end + (uint32_t)i);
        if (i < left && (g->tokens[slot] == SEPARATOR || g->owners[slot] != owner))
            return i;
        out[i] = i < left ? g->tokens[slot] : out[i - left];
    }
    return k;
}
