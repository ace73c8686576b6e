/* All accounts are in one table of clients, under one lock. */
#include "http/budget.h"

#include "base/heap.h"
#include "base/memory.h"
#include "base/share.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A client has an entry as long as it has accounts, so there are at most as many as connections and abandoned streams.
 * Under the budget's lock. */
typedef struct client {
    struct client *next;
    size_t n_accounts, used;
    char name[];
} client;

struct qn_budget {
    pthread_mutex_t lock; /* protects the members below, and accounts */
    qn_budget_limits limits;
    client *clients;
    size_t n_clients, used;
    size_t n_given; /* bytes given back since memory was returned to the system */
};

/* The budget's lock protects all members but `budget`, and `client`, which is constant until the account is freed. */
struct qn_account {
    qn_budget *budget;
    client *client;
    size_t references, most, used;
    qn_account_limit refused;
};

/* ---- Budgets ---- */

qn_budget_limits qn_budget_limits_for(size_t max_body)
{
    enum { LARGEST_OF_CLIENT = 2, LARGEST_OF_ALL = 8 };
    size_t largest, of_client, of_server;
    if (!qn_mul_size(max_body, QN_REQUEST_FACTOR, &largest) || !qn_add_size(largest, QN_REQUEST_MEMORY, &largest) ||
        !qn_mul_size(largest, LARGEST_OF_CLIENT, &of_client) || !qn_mul_size(largest, LARGEST_OF_ALL, &of_server))
        return (qn_budget_limits){ SIZE_MAX, SIZE_MAX };
    return (qn_budget_limits){ of_client, of_server };
}

qn_status qn_budget_create(const qn_budget_limits *limits, qn_budget **out)
{
    qn_budget *budget = calloc(1, sizeof *budget);
    *out = NULL;
    if (!budget || pthread_mutex_init(&budget->lock, NULL)) {
        free(budget);
        return qn_fail(QN_ERR_MEMORY, "no memory for a budget");
    }
    budget->limits = *limits;
    *out = budget;
    return QN_OK;
}

void qn_budget_free(qn_budget *budget)
{
    if (!budget)
        return;
    pthread_mutex_destroy(&budget->lock);
    free(budget);
}

size_t qn_budget_used(qn_budget *budget)
{
    pthread_mutex_lock(&budget->lock);
    const size_t used = budget->used;
    pthread_mutex_unlock(&budget->lock);
    return used;
}

/* ---- Accounts ---- */

/* The client's entry, created if it has none. The caller holds the lock. NULL: no memory. */
static client *client_of(qn_budget *budget, const char *name)
{
    client *c = budget->clients;
    while (c && strcmp(c->name, name) != 0)
        c = c->next;
    const size_t length = strlen(name) + 1;
    if (!c && (c = calloc(1, sizeof *c + length))) {
        memcpy(c->name, name, length);
        c->next = budget->clients;
        budget->clients = c;
        budget->n_clients++;
    }
    return c;
}

/* Counts an account less; frees the client's entry with its last. The caller holds the lock. */
static void leave_client(qn_budget *budget, client *c)
{
    if (--c->n_accounts)
        return;
    client **at = &budget->clients;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    budget->n_clients--;
    free(c);
}

qn_account *qn_account_open(qn_budget *budget, const char *name)
{
    qn_account *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    *a = (qn_account){ .budget = budget, .references = 1, .most = QN_REQUEST_MEMORY };
    pthread_mutex_lock(&budget->lock);
    a->client = client_of(budget, name);
    if (a->client)
        a->client->n_accounts++;
    pthread_mutex_unlock(&budget->lock);
    if (a->client)
        return a;
    free(a);
    return NULL;
}

void qn_account_hold(qn_account *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->budget->lock);
    a->references++;
    pthread_mutex_unlock(&a->budget->lock);
}

/* Gives bytes of an account back. The caller holds the lock. True: enough was given back to call qn_heap_return(),
 * without the lock. */
static bool give(qn_account *a, size_t bytes)
{
    enum { KEPT = 8 << 20 };
    qn_budget *budget = a->budget;
    a->used -= bytes;
    a->client->used -= bytes;
    budget->used -= bytes;
    budget->n_given += bytes;
    if (budget->n_given < KEPT)
        return false;
    budget->n_given = 0;
    return true;
}

void qn_account_release(qn_account *a)
{
    if (!a)
        return;
    qn_budget *budget = a->budget;
    pthread_mutex_lock(&budget->lock);
    const bool is_last = !--a->references;
    const bool is_much = is_last && give(a, a->used);
    if (is_last)
        leave_client(budget, a->client);
    pthread_mutex_unlock(&budget->lock);
    if (is_last)
        free(a);
    if (is_much)
        qn_heap_return();
}

void qn_account_raise(qn_account *a, size_t body_bytes)
{
    size_t more;
    if (!a)
        return;
    pthread_mutex_lock(&a->budget->lock);
    if (!qn_mul_size(body_bytes, QN_REQUEST_FACTOR, &more) || !qn_add_size(a->most, more, &a->most))
        a->most = SIZE_MAX;
    pthread_mutex_unlock(&a->budget->lock);
}

/* The limit that `bytes` more would pass. The caller holds the lock. */
static qn_account_limit limit_of(const qn_account *a, size_t bytes)
{
    enum { MOST_OF_ALL = 2 };
    const qn_budget *budget = a->budget;
    if (bytes > a->most - a->used)
        return QN_LIMIT_REQUEST;
    if (bytes > budget->limits.client - a->client->used)
        return QN_LIMIT_CLIENT;
    const qn_share share = { .most = budget->limits.server,
                             .factor = MOST_OF_ALL,
                             .used = budget->used,
                             .own = a->client->used,
                             .n_clients = budget->n_clients };
    return qn_share_allows(&share, bytes) ? QN_LIMIT_NONE : QN_LIMIT_SERVER;
}

bool qn_account_take(qn_account *a, size_t bytes)
{
    if (!a)
        return true;
    pthread_mutex_lock(&a->budget->lock);
    const qn_account_limit limit = limit_of(a, bytes);
    if (limit == QN_LIMIT_NONE) {
        a->used += bytes;
        a->client->used += bytes;
        a->budget->used += bytes;
    } else {
        a->refused = limit;
    }
    pthread_mutex_unlock(&a->budget->lock);
    return limit == QN_LIMIT_NONE;
}

void qn_account_give(qn_account *a, size_t bytes)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->budget->lock);
    const bool is_much = give(a, bytes);
    pthread_mutex_unlock(&a->budget->lock);
    if (is_much)
        qn_heap_return();
}

qn_account_limit qn_account_refused(qn_account *a)
{
    if (!a)
        return QN_LIMIT_NONE;
    pthread_mutex_lock(&a->budget->lock);
    const qn_account_limit refused = a->refused;
    pthread_mutex_unlock(&a->budget->lock);
    return refused;
}
