/* The drafter "ngram", and the answers of other requests that it reads. */
#include "engine/spec/ngram.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* OWN_TOKENS, WRITTEN_TOKENS: most tokens of a request's text, and of all answers, that are kept; each needs 24 bytes.
 * SCOPES: most scopes with answers. */
enum { OWN_TOKENS = 1 << 16, WRITTEN_TOKENS = 1 << 17, SCOPES = 64 };

struct scope {
    char *name;
    uint32_t owner;
    uint64_t used; /* counts additions */
};

struct qn_written {
    qn_ngrams *texts;
    struct scope scopes[SCOPES];
    size_t n_scopes;
    uint32_t last_owner;
    uint64_t n_added, version; /* version: changes with the scopes */
};

struct ngram {
    qn_drafter base;
    qn_ngrams *own;
    size_t n_own; /* tokens of the text in `own` */
    const qn_written *written;
    const char *scope;
    uint64_t version; /* of `written`, when its scope was looked up */
    uint32_t owner;   /* of its scope's answers; 0: there are none */
};

/* ---- Answers ---- */

qn_status qn_written_create(qn_written **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "answers for drafts"));
    const qn_status status = qn_ngrams_create(WRITTEN_TOKENS, &(*out)->texts);
    if (status != QN_OK) {
        qn_written_free(*out);
        *out = NULL;
    }
    return status;
}

void qn_written_free(qn_written *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_scopes; i++)
        free(w->scopes[i].name);
    qn_ngrams_free(w->texts);
    qn_free(w);
}

/* The scope "" may be that of many clients. One that sees whether a token was drafted could ask with a stretch of
 * another's answer, and a candidate for the next token, and so read the answer. */
static bool is_private(const char *scope)
{
    return scope && *scope;
}

static const struct scope *find_scope(const qn_written *w, const char *name)
{
    for (size_t i = 0; i < w->n_scopes; i++)
        if (!strcmp(w->scopes[i].name, name))
            return &w->scopes[i];
    return NULL;
}

/* Adds a scope, in the place of the one that was not used for longest if there are too many. The answers of that one
 * stay until they are overwritten, and are not found. */
static struct scope *add_scope(qn_written *w, const char *name)
{
    struct scope *to = &w->scopes[w->n_scopes < SCOPES ? w->n_scopes : 0];
    char *copy = strdup(name);
    if (!copy)
        return NULL;
    for (size_t i = 0; w->n_scopes == SCOPES && i < SCOPES; i++)
        to = w->scopes[i].used < to->used ? &w->scopes[i] : to;
    w->n_scopes += w->n_scopes < SCOPES;
    free(to->name);
    *to = (struct scope){ .name = copy, .owner = ++w->last_owner };
    w->version++;
    return to;
}

void qn_written_add(qn_written *w, const char *scope, const qn_token *tokens, size_t n)
{
    const size_t skipped = n > WRITTEN_TOKENS / 8 ? n - WRITTEN_TOKENS / 8 : 0; /* so that others stay */
    if (n < QN_NGRAM_SHORTEST || !is_private(scope))
        return;
    struct scope *of = (struct scope *)find_scope(w, scope);
    of = of ? of : add_scope(w, scope);
    if (!of)
        return;
    of->used = ++w->n_added;
    if (qn_ngrams_add(w->texts, of->owner, tokens + skipped, n - skipped) == QN_OK)
        qn_ngrams_end(w->texts);
}

/* ---- The drafter ---- */

/* Of matches of 2, 3, 4 to 5, 6 to 8, 9 to 15, 16 to 31, and more tokens. */
const float qn_ngram_chances[QN_DRAFT_CLASSES] = { 0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.9f, 0.95f, 0 };

static uint8_t class_of(size_t length)
{
    static const size_t most[] = { 2, 3, 5, 8, 15, 31 };
    uint8_t class = 0;
    while (class < sizeof most / sizeof *most && length > most[class])
        class ++;
    return class;
}

static void find_owner(struct ngram *d)
{
    const struct scope *of = find_scope(d->written, d->scope);
    d->owner = of ? of->owner : 0;
    d->version = d->written->version;
}

/* Tokens accepted on the way make a match longer. */
static void propose(qn_drafter *drafter, const qn_token *tokens, size_t n, size_t k, qn_proposal *out)
{
    struct ngram *d = (struct ngram *)drafter;
    const qn_ngrams *from = d->own;
    out->n = 0;
    const size_t first = n > OWN_TOKENS && n - OWN_TOKENS > d->n_own ? n - OWN_TOKENS : d->n_own;
    if (first > d->n_own) /* tokens that would not stay are left out */
        qn_ngrams_end(d->own);
    if (qn_ngrams_add(d->own, 0, tokens + first, n - first) != QN_OK)
        return;
    d->n_own = n;
    qn_ngram_match match = qn_ngrams_find(d->own, 0, tokens, n);
    if (d->written && d->version != d->written->version)
        find_owner(d);
    if (d->owner) {
        const qn_ngram_match other = qn_ngrams_find(d->written->texts, d->owner, tokens, n);
        from = other.length > match.length ? d->written->texts : from;
        match = other.length > match.length ? other : match;
    }
    if (match.length)
        out->n = qn_ngrams_read(from, match, k < QN_DRAFT_TOKENS ? k : QN_DRAFT_TOKENS, out->tokens);
    for (size_t i = 0; i < out->n; i++)
        out->classes[i] = class_of(match.length + i);
}

static void drafter_free(qn_drafter *drafter)
{
    qn_ngrams_free(((struct ngram *)drafter)->own);
    qn_free(drafter);
}

static size_t drafter_bytes(const qn_drafter *drafter)
{
    return sizeof(struct ngram) + qn_ngrams_bytes(((const struct ngram *)drafter)->own);
}

static const qn_drafter_vtable vtable = {
    .name = "ngram", .free = drafter_free, .propose = propose, .bytes = drafter_bytes
};

size_t qn_ngram_bytes(size_t n)
{
    size_t capacity = 1024;
    while (capacity <= n && capacity < OWN_TOKENS)
        capacity *= 2;
    return capacity * QN_NGRAM_TOKEN_BYTES;
}

qn_status qn_ngram_create(const qn_written *written, const char *scope, qn_drafter **out)
{
    struct ngram *d;
    *out = NULL;
    QN_TRY(qn_alloc(&d, 1, sizeof *d, "drafter"));
    *d = (struct ngram){ .base = { &vtable }, .written = is_private(scope) ? written : NULL, .scope = scope };
    if (d->written)
        find_owner(d);
    const qn_status status = qn_ngrams_create(OWN_TOKENS, &d->own);
    if (status != QN_OK) {
        qn_free(d);
        return status;
    }
    *out = &d->base;
    return QN_OK;
}
