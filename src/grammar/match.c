/* The match of a request: the tokens of its answer that it has read, the free text before a trigger, and the
 * callbacks of a request. */
#include "grammar/vocab.h"

#include "base/memory.h"
#include "base/strings.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TRIGGER = 255 };

/* The end of a piece of free text. */
typedef struct trigger {
    qn_token token; /* < 0: none */
    char text[MAX_TRIGGER];
    size_t n;
    uint8_t border[MAX_TRIGGER + 1]; /* border[i]: length of the longest proper prefix of the text's first i bytes
                                        that is also their suffix */
    int32_t *containing;             /* [n_containing] tokens that contain the text, one for equal bytes */
    size_t n_containing;
} trigger;

struct qn_grammar_match {
    qn_grammar_vocab *vocab;
    qn_grammar_state *state;
    size_t n_seen, n_bytes; /* tokens read, and the bytes of their text up to one that may not follow */
    bool is_broken;         /* a token was read that may not follow */
    bool is_too_ambiguous;  /* with is_broken: it is unknown whether the token may follow */
    qn_token opening_token;
    trigger triggers[QN_GRAMMAR_TRIGGERS];
    size_t n_triggers, phase; /* number of triggers seen; at n_triggers the grammar begins */
    size_t n_matched;         /* bytes of the next trigger seen so far */
    bool repeats;             /* after an end token the grammar begins again */
};

/* ---- Triggers ---- */

/* Returns how many bytes of a trigger are matched after one more byte, by Knuth, Morris and Pratt's borders. */
static size_t match_byte(const trigger *t, size_t matched, char byte)
{
    while (matched && t->text[matched] != byte)
        matched = t->border[matched];
    return matched + (t->text[matched] == byte);
}

/* Reads text before the grammar and advances *phase and *matched. Returns the number of bytes before the grammar. */
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

/* Fills a trigger: its text, its borders, and the tokens that contain it. */
static qn_status prepare_trigger(const qn_grammar_vocab *v, const qn_grammar_trigger_text *given, trigger *t)
{
    t->token = given->token;
    if (!given->n)
        return QN_OK;
    if (given->n > MAX_TRIGGER)
        return qn_fail(QN_ERR_INVALID, "grammar: a trigger of %zu bytes, at most %d are allowed", given->n,
                       MAX_TRIGGER);
    memcpy(t->text, given->text, given->n);
    for (size_t i = 1; i < given->n; i++)
        t->border[i + 1] = (uint8_t)match_byte(t, t->border[i], t->text[i]);
    t->n = given->n;
    size_t capacity = 0;
    for (size_t token = 0; token < v->n_tokens; token++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(v, (qn_token)token, &length);
        if (!bytes || length < t->n || !qn_memmem(bytes, length, t->text, t->n))
            continue;
        QN_TRY(qn_realloc_array(&t->containing, &capacity, t->n_containing + 1, sizeof *t->containing, "trigger"));
        t->containing[t->n_containing++] = (int32_t)token;
    }
    return QN_OK;
}

/* Whether the next text is free: triggers are left. */
static bool is_free(const qn_grammar_match *m)
{
    return m->phase < m->n_triggers;
}

/* Whether the bytes of a token after the last trigger fit the grammar. Adds to the step counter. */
static bool accepts_free(const qn_grammar_match *m, qn_token token)
{
    size_t length, phase = m->phase, matched = m->n_matched;
    const char *bytes = qn_grammar_vocab_bytes(m->vocab, token, &length);
    if (!bytes || token == m->triggers[phase].token)
        return true;
    const size_t end = find_triggers(m, bytes, length, &phase, &matched);
    return phase < m->n_triggers || qn_state_accepts(m->state, bytes + end, length - end);
}

/* Returns the name of a rule that the state is in. */
static const char *rule_name(const qn_grammar_match *m)
{
    const qn_grammar_state *s = m->state;
    for (size_t i = 0; i < s->n_configs; i++)
        if (s->configs[i].node != QN_NODE_FINAL)
            return qn_grammar_rule_of(s->grammar, s->configs[i].node);
    return qn_grammar_rule_of(s->grammar, s->grammar->root);
}

static qn_status too_ambiguous(const qn_grammar_match *m)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "grammar: too ambiguous at byte %zu of the answer, in '%s'", m->n_bytes,
                   rule_name(m));
}

static qn_status does_not_fit(const qn_grammar_match *m)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "grammar: the answer does not fit from byte %zu on, in '%s'", m->n_bytes,
                   rule_name(m));
}

/* Whether a configuration has as many open rules as may be. */
static bool is_at_depth(const qn_grammar_state *s)
{
    for (size_t i = 0; i < s->n_configs; i++)
        if (s->frames[s->configs[i].frame].depth >= QN_GRAMMAR_DEPTH)
            return true;
    return false;
}

static qn_status nothing_follows(const qn_grammar_match *m)
{
    if (is_at_depth(m->state))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "grammar: no token of the vocabulary may follow at byte %zu of the answer, in '%s': at most %d "
                       "rules may be open, and so many are",
                       m->n_bytes, rule_name(m), QN_GRAMMAR_DEPTH);
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "grammar: no token of the vocabulary may follow at byte %zu of the answer, in '%s'", m->n_bytes,
                   rule_name(m));
}

/* Forbids a token in free text whose bytes after the last trigger do not fit. */
static void check_free(const qn_grammar_match *m, qn_token token, uint32_t *allowed)
{
    if (!accepts_free(m, token))
        allowed[token / 32] &= ~(1u << (token % 32));
}

/* Checks the tokens that begin with the rest of a trigger after its first `matched` bytes. */
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

/* Makes the mask in free text: all tokens are allowed, except that the grammar checks each one that contains a trigger
 * and more. */
static qn_status mask_free(const qn_grammar_match *m, uint32_t *allowed)
{
    const trigger *t = &m->triggers[m->phase];
    qn_state_begin(m->state, m->state->mask_steps);
    memset(allowed, 0xff, m->vocab->n_tokens / 32 * sizeof *allowed);
    for (size_t token = m->vocab->n_tokens / 32 * 32; token < m->vocab->n_tokens; token++)
        qn_mask_set(allowed, (uint32_t)token);
    for (size_t i = 0; i < t->n_containing; i++)
        check_free(m, t->containing[i], allowed);
    for (size_t matched = m->n_matched; matched > 0; matched = t->border[matched])
        for (int i = 0; i < QN_TRIE_CLOSING; i++)
            check_completing(m, &m->vocab->tries[i], matched, allowed);
    return m->state->failed ? too_ambiguous(m) : QN_OK;
}

/* ---- Tokens ---- */

static bool is_end(const qn_grammar_vocab *v, qn_token token)
{
    for (size_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == token)
            return true;
    return false;
}

/* Whether a token is the opening token, at the beginning of the answer. */
static bool is_opening(const qn_grammar_match *m, qn_token token)
{
    return !m->n_seen && m->opening_token >= 0 && token == m->opening_token;
}

/* Counts the first trigger as seen until the opening token comes: without it there is no text before that trigger. */
static void skip_opening(qn_grammar_match *m)
{
    if (!m->n_seen && m->opening_token >= 0)
        m->phase = 1;
}

/* Reads bytes of the grammar. False, and nothing is changed: it takes more than max_steps, and a token is allowed more.
 * Bytes that may not follow set is_broken. */
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

/* Reads the bytes of a token in free text; NULL: it has none. False as advance(). */
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

/* Begins the grammar again; without memory the match is broken. */
static void begin_again(qn_grammar_match *m)
{
    qn_grammar_state *state;
    if (qn_grammar_state_create(m->state->grammar, &state) != QN_OK) {
        m->is_broken = true;
        return;
    }
    state->mask_steps = m->state->mask_steps;
    qn_grammar_state_free(m->state);
    m->state = state;
}

/* Reads one token. False as advance(). */
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

/* Returns the number of bytes that a token has in the answer's text. */
static size_t text_length(const qn_grammar_vocab *v, qn_token token)
{
    size_t length;
    const char *bytes = qn_grammar_vocab_bytes(v, token, &length);
    return bytes && qn_is_mark(*bytes) ? v->mark_lengths[(uint8_t)*bytes - QN_MARK_CALL_OPEN] : length;
}

/* Reads the tokens of the answer that were not read yet; those that were must be its first. False as advance(). */
static bool see_all(qn_grammar_match *m, const qn_token *answer, size_t n, uint64_t max_steps)
{
    for (; m->n_seen < n; m->n_seen++) {
        if (!see(m, answer[m->n_seen], max_steps))
            return false;
        m->n_bytes += m->is_broken ? 0 : text_length(m->vocab, answer[m->n_seen]);
    }
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

/* Reads the answer. QN_ERR_UNSUPPORTED if it does not fit, or it is not known whether it does. */
static qn_status see_answer(qn_grammar_match *m, const qn_token *answer, size_t n)
{
    (void)see_all(m, answer, n, QN_GRAMMAR_TOKEN_STEPS);
    if (m->is_too_ambiguous)
        return too_ambiguous(m);
    return m->is_broken ? does_not_fit(m) : QN_OK;
}

static qn_status mask_grammar(qn_grammar_match *m, uint32_t *allowed)
{
    const qn_status status = qn_grammar_mask(m->vocab, m->state, allowed);
    return status == QN_ERR_UNSUPPORTED ? too_ambiguous(m) : status;
}

qn_status qn_grammar_match_mask(qn_grammar_match *m, const qn_token *answer, size_t n, uint32_t *allowed)
{
    QN_TRY(see_answer(m, answer, n));
    if (is_free(m))
        QN_TRY(mask_free(m, allowed));
    else
        QN_TRY(mask_grammar(m, allowed));
    if (!m->n_seen && m->opening_token >= 0)
        qn_mask_set(allowed, (uint32_t)m->opening_token);
    return is_empty(allowed, m->vocab->n_words) ? nothing_follows(m) : QN_OK;
}

bool qn_grammar_match_quick_mask(qn_grammar_match *m, const qn_token *answer, size_t n, uint32_t *allowed)
{
    m->state->mask_steps = QN_GRAMMAR_QUICK_STEPS;
    const qn_status status = qn_grammar_match_mask(m, answer, n, allowed);
    m->state->mask_steps = QN_GRAMMAR_MASK_STEPS;
    return status == QN_OK;
}

size_t qn_grammar_match_masks(const qn_grammar_match *match, const qn_token *answer, size_t n, size_t n_more,
                              size_t n_words, uint32_t *masks)
{
    qn_grammar_match *m;
    uint64_t left = QN_GRAMMAR_QUICK_STEPS;
    size_t n_made = 0;
    if (qn_grammar_match_clone(match, &m) != QN_OK)
        return 0;
    while (n_made < n_more && left) {
        m->state->mask_steps = left;
        if (qn_grammar_match_mask(m, answer, n + n_made + 1, masks + n_made * n_words) != QN_OK)
            break;
        left -= m->state->steps < left ? m->state->steps : left;
        n_made++;
    }
    qn_grammar_match_free(m);
    return n_made;
}

bool qn_grammar_match_key(qn_grammar_match *m, const qn_token *answer, size_t n, qn_grammar_key *key)
{
    (void)see_all(m, answer, n, QN_GRAMMAR_TOKEN_STEPS);
    if (m->is_broken || is_free(m) || (!m->n_seen && m->opening_token >= 0))
        return false;
    const qn_hash128 hash = qn_state_hash(m->state);
    *key = (qn_grammar_key){ { hash.low, hash.high } };
    return true;
}

/* ---- Forced text ---- */

/* Finds the text that must follow. Nothing is forced in free text, nor at the beginning of an answer where the opening
 * token may come first. The caller frees forced->after. */
static qn_status find_forced(qn_grammar_match *m, const qn_token *answer, size_t n, qn_forced *forced)
{
    *forced = (qn_forced){ .length = 0 };
    (void)see_all(m, answer, n, QN_GRAMMAR_TOKEN_STEPS);
    if (m->is_broken || is_free(m) || (!m->n_seen && m->opening_token >= 0))
        return QN_OK;
    return qn_state_forced(m->state, forced);
}

qn_status qn_grammar_match_forced(qn_grammar_match *m, const qn_token *answer, size_t n, char text[QN_GRAMMAR_FORCED],
                                  size_t *length)
{
    qn_forced forced;
    const qn_status status = find_forced(m, answer, n, &forced);
    *length = status == QN_OK ? forced.length : 0;
    memcpy(text, forced.text, *length);
    qn_grammar_state_free(forced.after);
    return status;
}

qn_status qn_grammar_match_forced_tokens(qn_grammar_match *m, const qn_tokenizer *tokenizer, const qn_token *sequence,
                                         size_t n, size_t n_answer, qn_token tokens[QN_GRAMMAR_FORCED],
                                         size_t *n_tokens)
{
    qn_forced forced;
    *n_tokens = 0;
    qn_status status = find_forced(m, sequence + (n - n_answer), n_answer, &forced);
    if (status == QN_OK && forced.length)
        status = qn_forced_tokens(m->vocab, tokenizer, &forced, sequence, n, tokens, n_tokens);
    *n_tokens = status == QN_OK ? *n_tokens : 0;
    qn_grammar_state_free(forced.after);
    return status;
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
