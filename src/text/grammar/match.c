/* The match of a request: which tokens of its answer were seen, the free text before a trigger, and the callbacks of a
 * request. */
#include "text/grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TRIGGER = 255 };

struct qn_grammar_match {
    qn_grammar_vocab *vocab;
    qn_grammar_state *state;
    size_t n_seen;
    bool is_free, is_broken; /* before the trigger; a token was seen that may not follow */
    qn_token trigger_token, opening_token;
    char trigger[MAX_TRIGGER];
    size_t n_trigger, n_matched;
    uint8_t border[MAX_TRIGGER + 1]; /* of the first i bytes of the trigger, the longest that begins and ends them */
    int32_t *containing;             /* [n_containing] the first tokens of their bytes that contain the trigger */
    size_t n_containing;
};

/* ---- The trigger ---- */

static size_t match_byte(const qn_grammar_match *m, size_t matched, char byte)
{
    while (matched && m->trigger[matched] != byte)
        matched = m->border[matched];
    return matched + (m->trigger[matched] == byte);
}

/* Reads text before the trigger: true if the trigger ends in it, at *end. */
static bool find_trigger(const qn_grammar_match *m, const char *bytes, size_t length, size_t *matched, size_t *end)
{
    if (!m->n_trigger)
        return false;
    for (size_t i = 0; i < length; i++) {
        *matched = match_byte(m, *matched, bytes[i]);
        if (*matched == m->n_trigger) {
            *end = i + 1;
            return true;
        }
    }
    return false;
}

static qn_status prepare_trigger(qn_grammar_match *m, const qn_grammar_start *start)
{
    const qn_grammar_vocab *v = m->vocab;
    m->is_free = start->opening_token < 0;
    m->trigger_token = start->trigger_token;
    m->opening_token = start->opening_token;
    if (!start->n_trigger)
        return QN_OK;
    if (start->n_trigger > MAX_TRIGGER)
        return qn_fail(QN_ERR_INVALID, "grammar: a trigger of %zu bytes, at most %d are allowed", start->n_trigger,
                       MAX_TRIGGER);
    memcpy(m->trigger, start->trigger, start->n_trigger);
    for (size_t i = 1; i < start->n_trigger; i++)
        m->border[i + 1] = (uint8_t)match_byte(m, m->border[i], m->trigger[i]);
    m->n_trigger = start->n_trigger;
    size_t capacity = 0;
    for (size_t t = 0; t < v->n_tokens; t++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(v, (qn_token)t, &length);
        if (!bytes || length < m->n_trigger || !memmem(bytes, length, m->trigger, m->n_trigger))
            continue;
        QN_TRY(qn_realloc_array(&m->containing, &capacity, m->n_containing + 1, sizeof *m->containing, "trigger"));
        m->containing[m->n_containing++] = (int32_t)t;
    }
    return QN_OK;
}

static bool accepts_free(const qn_grammar_match *m, qn_token token)
{
    size_t length, matched = m->n_matched, end;
    const char *bytes = qn_grammar_vocab_bytes(m->vocab, token, &length);
    if (!bytes || !find_trigger(m, bytes, length, &matched, &end))
        return true;
    return qn_grammar_state_accepts(m->state, bytes + end, length - end);
}

static void check_free(const qn_grammar_match *m, qn_token token, uint32_t *allowed)
{
    if (!accepts_free(m, token))
        allowed[token / 32] &= ~(1u << (token % 32));
}

/* Tokens that begin with the rest of a trigger of which the first `matched` bytes were seen. */
static void check_completing(const qn_grammar_match *m, size_t matched, uint32_t *allowed)
{
    const qn_trie *trie = &m->vocab->all;
    uint32_t first = 0, last = (uint32_t)trie->n, found = 0;
    for (size_t i = matched; i < m->n_trigger; i++) {
        for (found = first; found < last && trie->nodes[found].byte != (uint8_t)m->trigger[i];)
            found = trie->nodes[found].end;
        if (found >= last)
            return;
        first = found + 1;
        last = trie->nodes[found].end;
    }
    for (uint32_t i = found; i < last; i++)
        for (int32_t t = trie->nodes[i].token; t >= 0; t = m->vocab->same[t])
            check_free(m, t, allowed);
}

static void mask_free(const qn_grammar_match *m, uint32_t *allowed)
{
    for (size_t t = 0; t < m->vocab->n_tokens; t++)
        qn_mask_set(allowed, (uint32_t)t);
    for (size_t i = 0; i < m->n_containing; i++)
        check_free(m, m->containing[i], allowed);
    for (size_t matched = m->n_matched; matched > 0; matched = m->border[matched])
        check_completing(m, matched, allowed);
}

/* ---- Tokens ---- */

static bool is_end(const qn_grammar_vocab *v, qn_token token)
{
    for (size_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == token)
            return true;
    return false;
}

static bool is_opening(const qn_grammar_match *m, qn_token token)
{
    return !m->n_seen && m->opening_token >= 0 && token == m->opening_token;
}

static void see(qn_grammar_match *m, qn_token token)
{
    size_t length, end = 0;
    const char *bytes = qn_grammar_vocab_bytes(m->vocab, token, &length);
    if (is_opening(m, token)) {
        m->is_free = true;
    } else if (m->is_free) {
        if (!bytes)
            m->n_matched = 0;
        if (m->trigger_token >= 0 && token == m->trigger_token)
            m->is_free = false;
        else if (bytes && find_trigger(m, bytes, length, &m->n_matched, &end))
            m->is_free = false;
        m->is_broken = end && !qn_grammar_state_advance(m->state, bytes + end, length - end);
    } else if (bytes) {
        m->is_broken |= !qn_grammar_state_advance(m->state, bytes, length);
    } else if (!is_end(m->vocab, token)) {
        m->is_broken = true;
    }
}

static void see_all(qn_grammar_match *m, const qn_token *answer, size_t n)
{
    for (; m->n_seen < n; m->n_seen++)
        see(m, answer[m->n_seen]);
}

/* ---- Matches ---- */

qn_status qn_grammar_match_create(qn_grammar_vocab *vocab, const qn_grammar *grammar, const qn_grammar_start *start,
                                  qn_grammar_match **out)
{
    *out = NULL;
    qn_grammar_match *m = calloc(1, sizeof *m);
    if (!m)
        return qn_fail(QN_ERR_MEMORY, "grammar: no memory for a match");
    m->vocab = vocab;
    m->trigger_token = m->opening_token = -1;
    qn_status status = qn_grammar_state_create(grammar, &m->state);
    if (status == QN_OK && start)
        status = prepare_trigger(m, start);
    if (status == QN_OK)
        *out = m;
    else
        qn_grammar_match_free(m);
    return status;
}

void qn_grammar_match_free(qn_grammar_match *m)
{
    if (!m)
        return;
    qn_grammar_state_free(m->state);
    free(m->containing);
    free(m);
}

bool qn_grammar_match_accepts(void *match, const qn_token *answer, size_t n, qn_token token)
{
    qn_grammar_match *m = match;
    size_t length;
    see_all(m, answer, n);
    if (m->is_broken)
        return false;
    if (is_opening(m, token))
        return true;
    if (m->is_free)
        return accepts_free(m, token);
    const char *bytes = qn_grammar_vocab_bytes(m->vocab, token, &length);
    if (bytes)
        return qn_grammar_state_accepts(m->state, bytes, length);
    return is_end(m->vocab, token) && qn_grammar_state_is_finished(m->state);
}

void qn_grammar_match_mask(void *match, const qn_token *answer, size_t n, uint32_t *allowed)
{
    qn_grammar_match *m = match;
    see_all(m, answer, n);
    if (m->is_free && !m->is_broken)
        mask_free(m, allowed);
    else if (m->is_broken || qn_grammar_mask(m->vocab, m->state, allowed) != QN_OK)
        memset(allowed, 0, m->vocab->n_words * sizeof *allowed);
    if (!m->n_seen && m->opening_token >= 0)
        qn_mask_set(allowed, (uint32_t)m->opening_token);
}

bool qn_grammar_match_check_first(const qn_sampling *sampling)
{
    return sampling->temperature < 1e-6f || sampling->top_k == 1 ||
           (sampling->top_k <= 0 && sampling->top_p >= 1 && sampling->min_p <= 0);
}

bool qn_grammar_match_is_finished(const qn_grammar_match *m)
{
    return !m->is_broken && (m->is_free || qn_grammar_state_is_finished(m->state));
}
