/* Forced text: the only text that may follow, and those of its canonical tokens that stay the same whatever text
 * comes after it. */
#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_CONTEXT = 256,                               /* bytes of the preceding text */
    MOST_TEXT = MOST_CONTEXT + QN_GRAMMAR_FORCED + 1, /* and one more byte */
    MOST_LONGER = 512,                                /* tokens to check; if there are more, one is assumed to follow */
    MOST_ENDS = 64 /* last bytes where a longer token may begin; if one begins earlier, nothing is kept */
};

/* ---- The text ---- */

static bool takes(qn_grammar_state *s, size_t config, int byte)
{
    const size_t n_frames = s->n_frames, end = s->n_configs;
    const bool follows = qn_state_step(s, config, config + 1, end, (uint8_t)byte) > end;
    s->n_frames = n_frames;
    return follows;
}

/* Subtracts the counted steps from *left. */
static void spend(const qn_grammar_state *s, uint64_t *left)
{
    *left -= s->steps < *left ? s->steps : *left;
}

/* Returns the only byte that may follow. -1: none or several may, the output may end, or it takes too many steps. */
static int find_forced_byte(qn_grammar_state *s, uint64_t *left)
{
    int found = -1;
    qn_state_begin(s, *left);
    if (qn_state_has_final(s, 0, s->n_configs))
        return -1;
    for (size_t i = 0; i < s->n_configs; i++) {
        uint64_t bytes[4] = { 0 };
        qn_state_add_bytes(s, &s->configs[i], bytes);
        qn_state_pay(s, 256 / 16);
        for (int byte = 0; byte < 256 && !s->failed; byte++) {
            if (!(bytes[byte / 64] >> (byte % 64) & 1) || byte == found || !takes(s, i, byte))
                continue;
            if (found >= 0)
                return -1;
            found = byte;
        }
    }
    spend(s, left);
    return s->failed ? -1 : found;
}

qn_status qn_state_forced(qn_grammar_state *s, qn_forced *forced)
{
    uint64_t left = QN_GRAMMAR_CHECK_STEPS;
    int byte = find_forced_byte(s, &left);
    forced->length = 0;
    forced->after = NULL;
    if (byte < 0)
        return QN_OK;
    QN_TRY(qn_grammar_state_clone(s, &forced->after));
    while (byte >= 0 && forced->length < QN_GRAMMAR_FORCED) {
        forced->text[forced->length] = (char)byte;
        if (!qn_state_advance(forced->after, &forced->text[forced->length], 1, left))
            break;
        spend(forced->after, &left);
        forced->length++;
        byte = find_forced_byte(forced->after, &left);
    }
    return QN_OK;
}

/* ---- Tokens of a text ---- */

typedef struct pieces {
    qn_token tokens[MOST_TEXT];
    size_t ends[MOST_TEXT]; /* offsets in the text */
    size_t n;
} pieces;

/* Tokenises a text. p->n is 0 if the tokens do not have the text's bytes: it was normalised, or a byte has no token. */
static qn_status cut(const qn_tokenizer *tokenizer, const char *text, size_t length, pieces *p)
{
    int32_t *tokens;
    size_t count, end = 0;
    p->n = 0;
    QN_TRY(qn_tokenizer_encode_rest(tokenizer, text, length, false, &tokens, &count));
    qn_status status = QN_OK;
    bool is_equal = count <= MOST_TEXT;
    for (size_t i = 0; i < count && is_equal && status == QN_OK; i++) {
        const char *bytes;
        size_t n;
        status = qn_tokenizer_piece(tokenizer, tokens[i], &bytes, &n);
        is_equal = status == QN_OK && n <= length - end && !memcmp(text + end, bytes, n);
        end += is_equal ? n : 0;
        p->tokens[i] = tokens[i];
        p->ends[i] = end;
    }
    if (is_equal && end == length)
        p->n = count;
    free(tokens);
    return status;
}

/* Returns the first token that begins at byte `begin`; p->n if none does. */
static size_t find_begin(const pieces *p, size_t begin)
{
    for (size_t i = 0; i < p->n; i++)
        if ((i ? p->ends[i - 1] : 0) == begin)
            return i;
    return p->n;
}

/* ---- Text after the forced text ---- */

/* A forced text [begin, length), after the context [0, begin). `after` is the state after it, or NULL if a mark
 * follows. */
typedef struct part {
    const qn_grammar_vocab *v;
    const qn_tokenizer *tokenizer;
    qn_grammar_state *after;
    uint64_t next[4]; /* the bytes that may follow, and perhaps some others */
    char text[MOST_TEXT];
    size_t begin, length;
} part;

/* Whether the grammar allows a token that begins at `at`, contains the rest of the text and continues after it. */
static bool has_longer(const part *p, size_t at)
{
    const size_t n = p->length - at;
    size_t n_checked = 0;
    if (n >= QN_TOKEN_BYTES)
        return false;
    for (int which = 0; which < QN_TRIE_CLOSING; which++) {
        const qn_trie *trie = &p->v->tries[which];
        const uint32_t found = qn_trie_find(trie, p->text + at, n), end = found < trie->n ? trie->nodes[found].end : 0;
        for (uint32_t i = found + 1; i < end; i++) {
            size_t length;
            if (trie->nodes[i].token < 0)
                continue;
            const char *bytes = qn_grammar_vocab_bytes(p->v, trie->nodes[i].token, &length);
            const uint8_t next = (uint8_t)bytes[n];
            if (!(p->next[next / 64] >> (next % 64) & 1))
                continue;
            if (++n_checked > MOST_LONGER || qn_state_accepts(p->after, bytes + n, length - n))
                return true;
        }
    }
    return false;
}

/* Limits *n to the number of tokens from `first` on that the tokenisation of the text's first `length` bytes has,
 * too. */
static qn_status keep_common(const part *p, size_t length, const pieces *all, size_t first, size_t *n)
{
    pieces other;
    QN_TRY(cut(p->tokenizer, p->text, length, &other));
    const size_t begin = find_begin(&other, p->begin);
    size_t common = 0;
    while (common < *n && begin + common < other.n && other.tokens[begin + common] == all->tokens[first + common])
        common++;
    *n = common;
    return QN_OK;
}

/* Limits *n to the tokens from `first` on that stay the same whatever text follows. No token that crosses the end of
 * the text begins before `longer`. So any tokenisation of a longer text has a token border between `longer` and the
 * end, and its tokens before this border are those of the text cut off there: all these cuts are tried. The splitting
 * into words depends on the next character: several are tried. */
static qn_status keep_stable(part *p, const pieces *all, size_t first, size_t *n)
{
    static const char probes[] = "aA0\" \n.,";
    size_t longer = p->begin;
    qn_state_begin(p->after, QN_GRAMMAR_CHECK_STEPS);
    memset(p->next, 0, sizeof p->next);
    for (size_t i = 0; i < p->after->n_configs; i++)
        qn_state_add_bytes(p->after, &p->after->configs[i], p->next);
    while (longer < p->length && !has_longer(p, longer))
        longer++;
    if (p->after->failed || p->length - longer > MOST_ENDS)
        longer = p->begin;
    while (*n && all->ends[first + *n - 1] > longer)
        --*n;
    for (size_t end = longer; end < p->length && *n; end++)
        QN_TRY(keep_common(p, end, all, first, n));
    for (size_t i = 0; probes[i] && *n; i++) {
        const bool follows = qn_state_accepts(p->after, &probes[i], 1);
        if (p->after->failed)
            *n = 0;
        if (!follows)
            continue;
        p->text[p->length] = probes[i];
        QN_TRY(keep_common(p, p->length + 1, all, first, n));
    }
    return QN_OK;
}

/* Appends the tokens of a part. *is_whole: they cover its whole text. */
static qn_status add_part(part *p, qn_token *tokens, size_t *n_tokens, bool *is_whole)
{
    pieces all;
    QN_TRY(cut(p->tokenizer, p->text, p->length, &all));
    const size_t first = find_begin(&all, p->begin);
    size_t n = 0, end = p->begin;
    for (; first + n < all.n; n++) { /* only tokens of the grammar's vocabulary */
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(p->v, all.tokens[first + n], &length);
        if (!bytes || end + length != all.ends[first + n] || memcmp(bytes, p->text + end, length) != 0)
            break;
        end += length;
    }
    if (p->after)
        QN_TRY(keep_stable(p, &all, first, &n));
    memcpy(tokens + *n_tokens, all.tokens + first, n * sizeof *tokens);
    *n_tokens += n;
    *is_whole = n && all.ends[first + n - 1] == p->length;
    return QN_OK;
}

/* ---- Texts with marks ---- */

/* Takes the last bytes of the tokens' text as context: those after the last special token, at most MOST_CONTEXT. */
static qn_status find_context(part *p, const qn_token *tokens, size_t n)
{
    size_t begin = MOST_CONTEXT;
    char text[MOST_CONTEXT];
    for (; n > 0; n--) {
        const char *bytes;
        size_t length, n_bytes;
        QN_TRY(qn_tokenizer_piece(p->tokenizer, tokens[n - 1], &bytes, &length));
        (void)qn_grammar_vocab_bytes(p->v, tokens[n - 1], &n_bytes);
        if (n_bytes != length || length > begin)
            break;
        begin -= length;
        memcpy(text + begin, bytes, length);
    }
    p->begin = p->length = MOST_CONTEXT - begin;
    memcpy(p->text, text + begin, p->length);
    return QN_OK;
}

static bool find_mark_token(const qn_grammar_vocab *v, char mark, qn_token *token)
{
    const qn_trie *trie = &v->tries[QN_TRIE_OTHER];
    const uint32_t i = qn_trie_find(trie, &mark, 1);
    *token = i < trie->n ? trie->nodes[i].token : -1;
    return *token >= 0;
}

qn_status qn_forced_tokens(const qn_grammar_vocab *v, const qn_tokenizer *tokenizer, const qn_forced *forced,
                           const qn_token *before, size_t n_before, qn_token *tokens, size_t *n)
{
    part p = { .v = v, .tokenizer = tokenizer };
    bool is_whole = true;
    *n = 0;
    QN_TRY(find_context(&p, before, n_before));
    for (size_t at = 0; at < forced->length && is_whole;) {
        if (qn_is_mark(forced->text[at])) {
            if (!find_mark_token(v, forced->text[at++], &tokens[*n]))
                break;
            ++*n;
            p.begin = p.length = 0;
            continue;
        }
        while (at < forced->length && !qn_is_mark(forced->text[at]))
            p.text[p.length++] = forced->text[at++];
        p.after = at == forced->length ? forced->after : NULL;
        QN_TRY(add_part(&p, tokens, n, &is_whole));
    }
    return QN_OK;
}
