/* DFAs while they are made: states by their sets, which a hash table finds, and the states that lead nowhere. */
#include "grammar/dfa.h"

#include "base/keyed_hash.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 64, MAX_STATES = 1 << 15, MAX_TABLE = 1 << 22 };

qn_status qn_nfa_count(const qn_nfa *m, uint64_t n)
{
    *m->steps += n;
    return *m->steps > m->limit ? qn_nfa_too_large(m->what) : QN_OK;
}

void qn_subsets_free(qn_subsets *b)
{
    free(b->bounds);
    free(b->sets);
    free(b->set_of);
    free(b->slots);
    free(b->marks);
    free(b->stack);
    free(b->targets);
    free(b->target_of);
    qn_dfa_free(&b->dfa);
}

static size_t slot_of(const qn_subsets *b, const uint32_t *set, size_t count)
{
    return qn_keyed_hash(set, count * sizeof *set) & b->slot_mask;
}

/* Doubles the hash table, which is at most half full. */
static qn_status grow_slots(qn_subsets *b)
{
    const size_t n = b->slots ? 2 * (b->slot_mask + 1) : FIRST_SLOTS;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %zu states", n);
    free(b->slots);
    b->slots = slots;
    b->slot_mask = n - 1;
    for (uint32_t state = 1; state < b->dfa.n_states; state++) {
        size_t slot = slot_of(b, b->sets + b->set_of[state], b->set_of[state + 1] - b->set_of[state]);
        while (slots[slot])
            slot = (slot + 1) & b->slot_mask;
        slots[slot] = state;
    }
    return QN_OK;
}

qn_status qn_subsets_add(qn_subsets *b, size_t end, uint32_t element)
{
    const size_t at = b->set_of[b->dfa.n_states] + end;
    QN_TRY(qn_realloc_array(&b->sets, &b->set_capacity, at + 1, sizeof *b->sets, "DFA"));
    b->sets[at] = element;
    return QN_OK;
}

qn_status qn_subsets_intern(qn_subsets *b, size_t count, uint32_t *state, bool *is_new)
{
    *state = 0;
    *is_new = false;
    if (!count)
        return QN_OK;
    if (2 * (size_t)b->dfa.n_states > b->slot_mask)
        QN_TRY(grow_slots(b));
    const uint32_t *set = b->sets + b->set_of[b->dfa.n_states];
    size_t slot = slot_of(b, set, count);
    for (; b->slots[slot]; slot = (slot + 1) & b->slot_mask) {
        ++*b->m->steps;
        const uint32_t other = b->slots[slot], length = b->set_of[other + 1] - b->set_of[other];
        if (length == count && !memcmp(b->sets + b->set_of[other], set, count * sizeof *set)) {
            *state = other;
            return QN_OK;
        }
    }
    const uint32_t id = b->dfa.n_states;
    if (id >= MAX_STATES || (size_t)(id + 1) * b->dfa.n_classes > MAX_TABLE)
        return qn_nfa_too_large(b->m->what);
    QN_TRY(qn_realloc_array(&b->set_of, &b->set_of_capacity, id + 2, sizeof *b->set_of, "DFA"));
    QN_TRY(qn_realloc_array(&b->dfa.accept, &b->accept_capacity, id + 1, 1, "DFA"));
    QN_TRY(qn_realloc_array(&b->dfa.next, &b->next_capacity, (size_t)(id + 1) * b->dfa.n_classes, sizeof *b->dfa.next,
                            "DFA"));
    memset(b->dfa.next + (size_t)id * b->dfa.n_classes, 0, b->dfa.n_classes * sizeof *b->dfa.next);
    b->set_of[id + 1] = b->set_of[id] + (uint32_t)count;
    b->dfa.accept[id] = false;
    b->slots[slot] = id;
    b->dfa.n_states++;
    *state = id;
    *is_new = true;
    return QN_OK;
}

qn_status qn_dfa_trim(qn_dfa *d, const char *what, uint64_t *steps)
{
    uint8_t *alive = calloc(d->n_states, 1);
    if (!alive)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %u states", d->n_states);
    qn_status status = QN_OK;
    for (bool is_changed = true; is_changed && status == QN_OK;) {
        is_changed = false;
        for (uint32_t s = d->n_states; s-- > 1;) {
            bool lives = alive[s] || d->accept[s];
            for (uint32_t c = 0; !lives && c < d->n_classes; c++)
                lives = alive[d->next[(size_t)s * d->n_classes + c]];
            is_changed |= lives != alive[s];
            alive[s] = lives;
        }
        *steps += (uint64_t)d->n_states * d->n_classes / 4;
        if (*steps > QN_GRAMMAR_STEPS)
            status = qn_nfa_too_large(what);
    }
    for (size_t i = 0; i < (size_t)d->n_states * d->n_classes; i++)
        if (!alive[d->next[i]])
            d->next[i] = 0;
    if (status == QN_OK && !alive[1])
        status = qn_fail(QN_ERR_INVALID, "%s: matches nothing", what);
    free(alive);
    return status;
}

void qn_dfa_free(qn_dfa *dfa)
{
    free(dfa->next);
    free(dfa->accept);
    free(dfa->alike);
    *dfa = (qn_dfa){ 0 };
}
