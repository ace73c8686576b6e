/* Answers by the ends of their ids, in a hash table. Each scope also lists its answers by last use: when the table is
 * full, the scope with the most loses one, so that no scope pushes out answers of others.
 *
 * Static functions that take the table or an entry of it are called with the table's lock. A pointer to an entry or an
 * owner is valid until an entry is dropped, at most until the lock is released. */
#include "protocol/recall.h"

#include "base/memory.h"
#include "base/random.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Defaults of qn_recall_create; and the most buckets. */
enum { MAX_ANSWERS = 10000, MAX_BYTES = 64 << 20, MAX_TABLE = 1 << 24 };

typedef struct entry entry;

/* A scope that has entries. It is freed with its last one. The newest owner is the first. */
typedef struct owner {
    struct owner *next;
    entry *newest, *oldest;
    size_t n_entries, n_bytes; /* including the entry being put */
    char scope[];
} owner;

/* An answer. Its texts follow it in memory: the id with its zero, the reasoning, the content. A bucket has the newest
 * entry first. */
struct entry {
    entry *next;          /* in the bucket */
    entry *newer, *older; /* in the owner's list, by last use; NULL at its ends */
    owner *owner;
    uint64_t hash;
    size_t n_id; /* with its zero */
    size_t n_reasoning, n_content;
    uint64_t used_by; /* number of the last conversation that it was restored in */
    char texts[];
};

struct qn_recall {
    pthread_mutex_t lock; /* protects all but the limits, n_buckets and seed, which are constant */
    entry **buckets;      /* [n_buckets], a power of two */
    size_t n_buckets, n_entries, n_bytes, max_entries, max_bytes;
    owner *owners;
    uint64_t n_conversations; /* so far: the number of the last one */
    uint64_t seed;            /* clients choose ids: without a seed they could all be in one bucket */
};

/* Returns the memory of an entry, in bytes: what limits and accounts count. */
static size_t entry_bytes(const entry *e)
{
    return sizeof *e + e->n_id + e->n_reasoning + e->n_content;
}

/* The three texts of an entry. Only the id ends with a zero. */
static const char *id_of(const entry *e)
{
    return e->texts;
}

static const char *reasoning_of(const entry *e)
{
    return id_of(e) + e->n_id;
}

static const char *content_of(const entry *e)
{
    return reasoning_of(e) + e->n_reasoning;
}

/* ---- The table ---- */

qn_status qn_recall_create(size_t max_answers, size_t max_bytes, qn_recall **out)
{
    qn_recall *recall;
    *out = NULL;
    QN_TRY(qn_alloc(&recall, 1, sizeof *recall, "reasoning"));
    recall->max_entries = max_answers ? max_answers : MAX_ANSWERS;
    recall->max_bytes = max_bytes ? max_bytes : MAX_BYTES;
    recall->n_buckets = 16;
    while (recall->n_buckets < recall->max_entries && recall->n_buckets < MAX_TABLE)
        recall->n_buckets *= 2;
    qn_status status = qn_alloc(&recall->buckets, recall->n_buckets, sizeof *recall->buckets, "reasoning");
    if (!status && !qn_random_bytes(&recall->seed, sizeof recall->seed))
        status = qn_fail(QN_ERR_IO, "the system has no random numbers: %s", strerror(errno));
    if (status) {
        qn_free(recall->buckets);
        qn_free(recall);
        return status;
    }
    pthread_mutex_init(&recall->lock, NULL);
    *out = recall;
    return QN_OK;
}

static uint64_t hash_of(const qn_recall *recall, const char *scope, const char *id)
{
    return XXH3_64bits_withSeed(id, strlen(id),
                                recall->seed ^ XXH3_64bits_withSeed(scope, strlen(scope), recall->seed));
}

static entry **bucket_of(const qn_recall *recall, uint64_t hash)
{
    return &recall->buckets[hash & (recall->n_buckets - 1)];
}

/* Takes an entry out of its owner's list. */
static void unlink_use(entry *e)
{
    *(e->newer ? &e->newer->older : &e->owner->newest) = e->older;
    *(e->older ? &e->older->newer : &e->owner->oldest) = e->newer;
}

/* Puts an entry, which is in no list, into its owner's as the last used. */
static void link_newest(entry *e)
{
    e->newer = NULL;
    e->older = e->owner->newest;
    *(e->older ? &e->older->newer : &e->owner->oldest) = e;
    e->owner->newest = e;
}

/* Returns the owner of a scope, created without entries if there is none; NULL: no memory. The caller charges an entry
 * to it at once: only discharge() frees it. */
static owner *owner_of(qn_recall *recall, const char *scope)
{
    const size_t n_scope = strlen(scope) + 1;
    owner *o = recall->owners;
    while (o && strcmp(o->scope, scope) != 0)
        o = o->next;
    if (!o && (o = calloc(1, sizeof *o + n_scope))) {
        memcpy(o->scope, scope, n_scope);
        o->next = recall->owners;
        recall->owners = o;
    }
    return o;
}

/* Counts an entry of `bytes` for the table and its owner. */
static void charge(qn_recall *recall, owner *o, size_t bytes)
{
    recall->n_entries++;
    recall->n_bytes += bytes;
    o->n_entries++;
    o->n_bytes += bytes;
}

/* Undoes charge(); frees the owner with its last entry. */
static void discharge(qn_recall *recall, owner *o, size_t bytes)
{
    recall->n_entries--;
    recall->n_bytes -= bytes;
    o->n_bytes -= bytes;
    if (--o->n_entries)
        return;
    owner **at = &recall->owners;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    free(o);
}

/* Takes an entry out of the table and of its owner's list, and frees it. */
static void drop(qn_recall *recall, entry *e)
{
    entry **at = bucket_of(recall, e->hash);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    unlink_use(e);
    discharge(recall, e->owner, entry_bytes(e));
    free(e);
}

/* Returns the entry to drop: the least recently used one of the scope with the most bytes, or, without by_bytes, with
 * the most entries. NULL: there is none. An entry being put is in no list yet, and is not found. */
static entry *find_unwanted(const qn_recall *recall, bool by_bytes)
{
    const owner *most = NULL;
    for (const owner *o = recall->owners; o; o = o->next)
        if (o->oldest && (!most || (by_bytes ? o->n_bytes > most->n_bytes : o->n_entries > most->n_entries)))
            most = o;
    return most ? most->oldest : NULL;
}

/* Drops entries until the limits hold, as far as there are any to drop. */
static void make_room(qn_recall *recall)
{
    entry *e;
    while (recall->n_entries > recall->max_entries && (e = find_unwanted(recall, false)))
        drop(recall, e);
    while (recall->n_bytes > recall->max_bytes && (e = find_unwanted(recall, true)))
        drop(recall, e);
}

/* Returns the entry of an id within a scope; NULL: there is none. */
static entry *find(const qn_recall *recall, const char *scope, const char *id)
{
    const uint64_t hash = hash_of(recall, scope, id);
    entry *e = *bucket_of(recall, hash);
    while (e && (e->hash != hash || strcmp(e->owner->scope, scope) != 0 || strcmp(id_of(e), id) != 0))
        e = e->next;
    return e;
}

void qn_recall_free(qn_recall *recall)
{
    if (!recall)
        return;
    while (recall->owners)
        drop(recall, recall->owners->oldest);
    pthread_mutex_destroy(&recall->lock);
    qn_free(recall->buckets);
    qn_free(recall);
}

/* ---- Answers being received ---- */

void qn_recall_take(qn_recall_answer *answer, const qn_output_event *event)
{
    switch (event->kind) {
    case QN_OUTPUT_REASONING: qn_bytes_add(&answer->reasoning, event->text, event->length); return;
    case QN_OUTPUT_CONTENT: qn_bytes_add(&answer->content, event->text, event->length); return;
    case QN_OUTPUT_CALL_BEGIN:
    case QN_OUTPUT_ARGUMENTS: return;
    case QN_OUTPUT_CALL_END: answer->has_call = answer->has_call || event->call_end == QN_OUTPUT_COMPLETE; return;
    }
}

void qn_recall_answer_free(qn_recall_answer *answer)
{
    qn_bytes_free(&answer->reasoning);
    qn_bytes_free(&answer->content);
    *answer = (qn_recall_answer){ 0 };
}

void qn_recall_keep(qn_recall *recall, const char *scope, const qn_exchange *exchange, size_t request,
                    qn_recall_answer *answer)
{
    char id[QN_ANSWER_ID_BYTES];
    const bool has_id = answer->has_call || exchange->protocol->has_reasoning_ids;
    if (has_id && answer->reasoning.length && !answer->reasoning.has_failed && !answer->content.has_failed) {
        qn_exchange_answer_id(exchange, request, id);
        qn_recall_put(recall, scope, id, &answer->reasoning, &answer->content);
    }
    qn_recall_answer_free(answer);
}

/* Creates an entry that is in no table, with copies of the texts. NULL: no memory, or it has more than `max` bytes.
 * Needs no lock. */
static entry *create_entry(const char *id, const qn_bytes *reasoning, const qn_bytes *content, size_t max)
{
    const size_t n_id = strlen(id) + 1;
    size_t size;
    if (!qn_add_size(reasoning->length, content->length, &size) || !qn_add_size(size, sizeof(entry) + n_id, &size) ||
        size > max)
        return NULL;
    entry *e = malloc(size);
    if (!e)
        return NULL;
    *e = (entry){ .n_id = n_id, .n_reasoning = reasoning->length, .n_content = content->length };
    char *at = e->texts;
    memcpy(at, id, n_id);
    at += n_id;
    if (reasoning->length)
        memcpy(at, reasoning->data, reasoning->length);
    if (content->length)
        memcpy(at + reasoning->length, content->data, content->length);
    return e;
}

void qn_recall_put(qn_recall *recall, const char *scope, const char *id, const qn_bytes *reasoning,
                   const qn_bytes *content)
{
    entry *e = create_entry(id, reasoning, content, recall->max_bytes);
    if (!e)
        return;
    pthread_mutex_lock(&recall->lock);
    e->owner = owner_of(recall, scope);
    if (!e->owner) {
        pthread_mutex_unlock(&recall->lock);
        free(e);
        return;
    }
    charge(recall, e->owner, entry_bytes(e));
    entry *old = find(recall, scope, id);
    if (old)
        drop(recall, old);
    make_room(recall);
    e->hash = hash_of(recall, scope, id);
    entry **bucket = bucket_of(recall, e->hash);
    e->next = *bucket;
    *bucket = e;
    link_newest(e);
    pthread_mutex_unlock(&recall->lock);
}

/* ---- Conversations ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Leaves out the spaces at both ends of a text. */
static void trim(const char **text, size_t *length)
{
    for (; *length && is_space(**text); --*length)
        ++*text;
    while (*length && is_space((*text)[*length - 1]))
        --*length;
}

/* Whether the content of a message is the answer's, but for spaces at the ends, or is empty or missing. */
static bool is_content_of(const json_t *content, const entry *e)
{
    const char *kept = content_of(e), *sent = json_string_value(content);
    size_t n_kept = e->n_content, n_sent = json_string_length(content);
    if (content && !json_is_null(content) && !json_is_string(content))
        return false;
    trim(&kept, &n_kept);
    trim(&sent, &n_sent);
    return !n_sent || (n_sent == n_kept && !memcmp(sent, kept, n_kept));
}

/* Returns the answer that an id of a message belongs to, by the part after the last '_'; NULL: there is none. */
static entry *find_by_id(const qn_recall *recall, const char *scope, const json_t *id)
{
    const char *text = json_string_value(id), *end = text ? strrchr(text, '_') : NULL;
    return text ? find(recall, scope, end ? end + 1 : text) : NULL;
}

/* Returns the answer that a message of the assistant is: by the id of its reasoning, else by the first of its calls
 * whose id is known. NULL: there is none, or the message is another's. */
static entry *find_answer(const qn_recall *recall, const char *scope, const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *role = json_object_get(message, "role");
    if (!json_is_string(role) || strcmp(json_string_value(role), "assistant") != 0)
        return NULL;
    entry *e = find_by_id(recall, scope, json_object_get(message, "reasoning_id"));
    for (size_t i = 0; !e && i < json_array_size(calls); i++)
        e = find_by_id(recall, scope, json_object_get(json_array_get(calls, i), "id"));
    return e;
}

/* Sets content and reasoning_content of a message: both or none, since with only one the rendered text would differ
 * from the model's output. False: no memory. */
static bool restore(json_t *message, const entry *e)
{
    json_t *reasoning = json_stringn(reasoning_of(e), e->n_reasoning),
           *content = json_stringn(content_of(e), e->n_content);
    const bool done = reasoning && content && json_object_set(message, "content", content) == 0 &&
                      json_object_set(message, "reasoning_content", reasoning) == 0;
    json_decref(reasoning);
    json_decref(content);
    return done;
}

/* An answer is restored in one message; other messages with its ids are not changed. */
qn_recalled qn_recall_apply(qn_recall *recall, const char *scope, json_t *conversation, qn_account *account)
{
    const json_t *messages = json_object_get(conversation, "messages");
    qn_recalled result = { 0 };
    pthread_mutex_lock(&recall->lock);
    const uint64_t number = ++recall->n_conversations;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        entry *e = find_answer(recall, scope, message);
        const bool has_reasoning = json_string_length(json_object_get(message, "reasoning_content"));
        if (e && has_reasoning)
            e->used_by = number;
        if (!e || e->used_by == number || !is_content_of(json_object_get(message, "content"), e) ||
            !qn_account_take(account, entry_bytes(e)))
            continue;
        result.n_bytes += entry_bytes(e);
        if (!restore(message, e))
            continue;
        e->used_by = number;
        unlink_use(e);
        link_newest(e);
        result.n_messages++;
    }
    pthread_mutex_unlock(&recall->lock);
    return result;
}
