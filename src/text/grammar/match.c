/* The match of a request: which tokens of its answer were seen, the free text before a trigger, and the callbacks of a
 * request. */
#include "text/grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TRIGGER = 255 };

/* What ends a part of the free text. */
typedef struct trigger {
    qn_token token; /* < 0: none */
    char text[MAX_TRIGGER];
    size_t n;
    uint8_t border[MAX_TRIGGER + 1]; /* of the first i bytes of the text, the longest that begins and ends them */
    int32_t *containing;             /* [n_containing] the first tokens of their bytes that contain the text */
    size_t n_containing;
} trigger;

struct qn_grammar_match {
    qn_grammar_vocab *vocab;
    qn_grammar_state *state;
    size_t n_seen;
    bool is_broken;        /* a token was seen that may not follow */
    bool is_too_ambiguous; /* with is_broken: whether it may was not found */
    qn_token opening_token;
    trigger triggers[QN_GRAMMAR_TRIGGERS];
    size_t n_triggers, phase; /* triggers that were met; at n_triggers the grammar begins */
    size_t n_matched;         /* bytes of the next trigger that were seen */
    bool repeats;             /* after an end token the grammar begins again */
};

/* ---- Triggers ---- */

static size_t match_byte(const trigger *t, size_t matched, char byte)
{
    while (matched && t->text[matched] != byte)
        matched = t->border[matched];
    return matched + (t->text[matched] == byte);
}

/* Reads text before the grammar: *phase and *matched are moved on. Returns how many bytes are before the grammar. */
static size_t find_triggers(const qn_grammar_match *m, const char *bytes, size_t length, size_t *phase, size_t *matched)
{
    size_t i = 0;
    for (; i < length && *phase < m->n_triggers; i++) {
        const trigger *t = &m->triggers[*phase];
        if (!t->n)
            return length;
        *matched = match_byte(t, *matched, bytes[i]);
        if (*matched == t->n) {
            ++*phase;
            *matched = 0;
        }
    }
    return i;
}

static qn_status prepare_trigger(const qn_grammar_vocab *v, const qn_grammar_trigger_text *given, trigger *t)
{
    t->token = given->token;
    if (!given->n)
        return QN_OK;
    if (given->n > MAX_TRIGGER)
        return qn_fail(QN_ERR_INVALID, "grammar: a trigger of %zu bytes, at most %d are allowed", given->n, MAX_TRIGGER);
    memcpy(t->text, given->text, given->n);
    for (size_t i = 1; i < given->n; i++)
        t->border[i + 1] = (uint8_t)match_byte(t, t->border[i], t->text[i]);
    t->n = given->n;
    size_t capacity = 0;
    for (size_t token = 0; token < v->n_tokens; token++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(v, (qn_token)token, &length);
        if (!bytes || length < t->n || !memmem(bytes, length, t->text, t->n))
            continue;
        QN_TRY(qn_realloc_array(&t->containing, &capacity, t->n_containing + 1, sizeof *t->containing, "trigger"));
        t->containing[t->n_containing++] = (int32_t)token;
    }
    return QN_OK;
}

static bool is_free(const qn_grammar_match *m)
{
    return m->phase < m->n_triggers;
}

/* Steps are counted to those before. */
static bool accepts_free(const qn_grammar_match *m, qn_token token)
{
    size_t length, phase = m->phase, matched = m->n_matched;
    const char *bytes = qn_grammar_vocab_bytes(m->vocab, token, &length);
    if (!bytes || token == m->triggers[phase].token)
        return true;
    const size_t end = find_triggers(m, bytes, length, &phase, &matched);
    return phase < m->n_triggers || qn_state_accepts(m->state, bytes + end, length - end);
}

static qn_status too_ambiguous(void)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "grammar: too ambiguous after the text so far");
}

static void check_free(const qn_grammar_match *m, qn_token token, uint32_t *allowed)
{
    if (!accepts_free(m, token))
        allowed[token / 32] &= ~(1u << (token % 32));
}

/* Tokens that begin with the rest of a trigger of which the first `matched` bytes were seen. */
static void check_completing(const qn_grammar_match *m, const qn_trie *trie, size_t matched, uint32_t *allowed)
{
    uint32_t first = 0, last = (uint32_t)trie->n, found = 0;
    const trigger *next = &m->triggers[m->phase];
    for (size_t i = matched; i < next->n; i++) {
        for (found = first; found < last && trie->nodes[found].byte != (uint8_t)next->text[i];)
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

/* Behind a trigger that many tokens contain, the grammar is asked about each of them. */
static qn_status mask_free(const qn_grammar_match *m, uint32_t *allowed)
{
    const trigger *t = &m->triggers[m->phase];
    qn_state_begin(m->state, QN_GRAMMAR_MASK_STEPS);
    for (size_t token = 0; token < m->vocab->n_tokens; token++)
        qn_mask_set(allowed, (uint32_t)token);
    for (size_t i = 0; i < t->n_containing; i++)
        check_free(m, t->containing[i], allowed);
    for (size_t matched = m->n_matched; matched > 0; matched = t->border[matched])
        for (int i = 0; i < QN_TRIE_CLOSING; i++)
            check_completing(m, &m->vocab->tries[i], matched, allowed);
    return m->state->failed ? too_ambiguous() : QN_OK;
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

/* Without the opening token there is no text up to the first trigger. */
static void skip_opening(qn_grammar_match *m)
{
    if (!m->n_seen && m->opening_token >= 0)
        m->phase = 1;
}

/* False if that takes more than max_steps, of which a token may have more: nothing is changed then. */
static bool advance(qn_grammar_match *m, const char *bytes, size_t length, uint64_t max_steps)
{
    if (m->is_broken || qn_state_advance(m->state, bytes, length, max_steps))
        return true;
    if (m->state->was_too_ambiguous && max_steps < QN_GRAMMAR_TOKEN_STEPS)
        return false;
    m->is_broken = true;
    m->is_too_ambiguous = m->state->was_too_ambiguous;
    return true;
}

static bool see_free(qn_grammar_match *m, const char *bytes, size_t length, uint64_t max_steps)
{
    size_t phase = m->phase, matched = bytes ? m->n_matched : 0;
    const size_t end = bytes ? find_triggers(m, bytes, length, &phase, &matched) : 0;
    if (phase == m->n_triggers && !advance(m, bytes + end, length - end, max_steps))
        return false;
    m->phase = phase;
    m->n_matched = matched;
    return true;
}

static void begin_again(qn_grammar_match *m)
{
    qn_grammar_state *state;
    if (qn_grammar_state_create(m->state->grammar, &state) != QN_OK) {
        m->is_broken = true;
        return;
    }
    qn_grammar_state_free(m->state);
    m->state = state;
}

static bool see(qn_grammar_match *m, qn_token token, uint64_t max_steps)
{
    size_t length;
    const char *bytes = qn_grammar_vocab_bytes(m->vocab, token, &length);
    if (is_opening(m, token)) {
        m->phase = 0;
    } else if (is_free(m) && token == m->triggers[m->phase].token) {
        m->phase++;
        m->n_matched = 0;
    } else if (is_free(m)) {
        return see_free(m, bytes, length, max_steps);
    } else if (bytes) {
        return advance(m, bytes, length, max_steps);
    } else if (!is_end(m->vocab, token)) {
        m->is_broken = true;
    } else if (m->repeats && !m->is_broken) {
        begin_again(m);
    }
    return true;
}

static bool see_all(qn_grammar_match *m, const qn_token *answer, size_t n, uint64_t max_steps)
{
    for (; m->n_seen < n; m->n_seen++)
        if (!see(m, answer[m->n_seen], max_steps))
            return false;
    return true;
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
    m->opening_token = start ? start->opening_token : -1;
    m->n_triggers = start ? start->n_triggers : 0;
    m->repeats = start && start->repeats;
    qn_status status = qn_grammar_state_create(grammar, &m->state);
    for (size_t i = 0; i < m->n_triggers && status == QN_OK; i++)
        status = prepare_trigger(vocab, &start->triggers[i], &m->triggers[i]);
    skip_opening(m);
    if (status == QN_OK)
        *out = m;
    else
        qn_grammar_match_free(m);
    return status;
}

size_t qn_grammar_match_bytes(const qn_grammar_match *m)
{
    size_t bytes = sizeof *m + sizeof *m->state + m->state->config_capacity * sizeof *m->state->configs +
                   m->state->frame_capacity * sizeof *m->state->frames;
    for (size_t i = 0; i < m->n_triggers; i++)
        bytes += m->triggers[i].n_containing * sizeof *m->triggers[i].containing;
    return bytes;
}

static qn_status copy_containing(const trigger *from, trigger *to)
{
    size_t capacity = 0;
    to->containing = NULL;
    if (!from->n_containing)
        return QN_OK;
    QN_TRY(qn_realloc_array(&to->containing, &capacity, from->n_containing, sizeof *to->containing, "trigger"));
    memcpy(to->containing, from->containing, from->n_containing * sizeof *to->containing);
    return QN_OK;
}

qn_status qn_grammar_match_clone(const qn_grammar_match *match, qn_grammar_match **out)
{
    qn_grammar_match *m = malloc(sizeof *m);
    *out = NULL;
    if (!m)
        return qn_fail(QN_ERR_MEMORY, "grammar: no memory for a match");
    *m = *match;
    m->state = NULL;
    qn_status status = QN_OK;
    for (size_t i = 0; i < QN_GRAMMAR_TRIGGERS; i++) {
        const qn_status copied = copy_containing(&match->triggers[i], &m->triggers[i]);
        status = status == QN_OK ? copied : status;
    }
    if (status == QN_OK)
        status = qn_grammar_state_clone(match->state, &m->state);
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
    for (size_t i = 0; i < QN_GRAMMAR_TRIGGERS; i++)
        free(m->triggers[i].containing);
    free(m);
}

bool qn_grammar_match_accepts(void *match, const qn_token *answer, size_t n, qn_token token)
{
    qn_grammar_match *m = match;
    size_t length;
    if (!see_all(m, answer, n, QN_GRAMMAR_CHECK_STEPS) || m->is_broken)
        return false;
    if (is_opening(m, token))
        return true;
    qn_state_begin(m->state, QN_GRAMMAR_CHECK_STEPS);
    if (is_free(m))
        return accepts_free(m, token);
    const char *bytes = qn_grammar_vocab_bytes(m->vocab, token, &length);
    if (bytes)
        return qn_state_accepts(m->state, bytes, length);
    return is_end(m->vocab, token) && qn_grammar_state_is_finished(m->state);
}

static bool is_empty(const uint32_t *mask, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++)
        if (mask[i])
            return false;
    return true;
}

qn_status qn_grammar_match_mask(qn_grammar_match *m, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)see_all(m, answer, n, QN_GRAMMAR_TOKEN_STEPS);
    if (m->is_too_ambiguous)
        return too_ambiguous();
    if (is_free(m) && !m->is_broken)
        QN_TRY(mask_free(m, allowed));
    else if (!m->is_broken)
        QN_TRY(qn_grammar_mask(m->vocab, m->state, allowed));
    if (!m->n_seen && m->opening_token >= 0)
        qn_mask_set(allowed, (uint32_t)m->opening_token);
    if (is_empty(allowed, m->vocab->n_words))
        return qn_fail(QN_ERR_UNSUPPORTED, "grammar: no token of the vocabulary may follow the text so far");
    return QN_OK;
}

bool qn_grammar_match_check_first(const qn_sampling *sampling)
{
    return sampling->temperature < 1e-6f || (sampling->top_k == 1 && !sampling->mirostat) ||
           (!sampling->mirostat && sampling->top_k <= 0 && sampling->top_p >= 1 && sampling->min_p <= 0 &&
            sampling->top_n_sigma <= 0 && (sampling->typical_p <= 0 || sampling->typical_p >= 1) &&
            sampling->xtc_probability <= 0);
}

bool qn_grammar_match_is_finished(const qn_grammar_match *m)
{
    return !m->is_broken && (is_free(m) || qn_grammar_state_is_finished(m->state));
}
