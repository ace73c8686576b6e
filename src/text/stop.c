/* An Aho-Corasick automaton over the stop strings. The depth of the current node is the number of bytes held back. */
#include "text/stop.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A node is a prefix of a stop string. Node 0 is the empty prefix; as a link, 0 means none. */
typedef struct node {
    size_t child, sibling; /* a list of children, which is short except at the root */
    size_t fail;           /* the longest proper suffix that is a node */
    size_t depth;          /* length of the prefix */
    size_t match;          /* length of the longest stop string that ends here; 0 for none */
    size_t string;         /* with match: its index */
    unsigned char byte;    /* its last byte */
} node;

struct qn_stop {
    node *nodes;
    size_t n_nodes;
    size_t at; /* the node of the longest suffix of the text so far */
    bool hit;
    size_t found; /* index of the stop string that was found last */
    char *held;   /* the bytes returned by the last call, then the last nodes[at].depth bytes of the text */
    size_t capacity;
    size_t n_out; /* bytes returned by the last call */
};

static bool is_utf8(const char *text, size_t length)
{
    size_t bytes;
    for (size_t i = 0; i < length; i += bytes) {
        uint32_t code;
        if (qn_utf8_next(text + i, length - i, &bytes, &code) != QN_UTF8_COMPLETE)
            return false;
    }
    return true;
}

static size_t find_child(const qn_stop *stop, size_t at, unsigned char byte)
{
    size_t child = stop->nodes[at].child;
    while (child && stop->nodes[child].byte != byte)
        child = stop->nodes[child].sibling;
    return child;
}

static void add_string(qn_stop *stop, const char *string, size_t index)
{
    size_t at = 0;
    for (const char *c = string; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        size_t next = find_child(stop, at, byte);
        if (!next) {
            next = stop->n_nodes++;
            stop->nodes[next] = (node){ .sibling = stop->nodes[at].child, .depth = stop->nodes[at].depth + 1, .byte = byte };
            stop->nodes[at].child = next;
        }
        at = next;
    }
    if (!stop->nodes[at].match)
        stop->nodes[at].string = index;
    stop->nodes[at].match = stop->nodes[at].depth;
}

static size_t advance(const qn_stop *stop, size_t at, unsigned char byte)
{
    for (;;) {
        const size_t next = find_child(stop, at, byte);
        if (next || !at)
            return next;
        at = stop->nodes[at].fail;
    }
}

/* Breadth first, so that the links of shorter suffixes are set before. */
static void link_suffixes(qn_stop *stop, size_t *queue)
{
    size_t n = 0;
    queue[n++] = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t parent = queue[i];
        for (size_t child = stop->nodes[parent].child; child; child = stop->nodes[child].sibling) {
            node *c = &stop->nodes[child];
            c->fail = parent ? advance(stop, stop->nodes[parent].fail, c->byte) : 0;
            if (!c->match) {
                c->match = stop->nodes[c->fail].match;
                c->string = stop->nodes[c->fail].string;
            }
            queue[n++] = child;
        }
    }
}

qn_status qn_stop_create(const char *const *strings, size_t n, qn_stop **out)
{
    *out = NULL;
    size_t n_nodes = 1;
    for (size_t i = 0; i < n; i++) {
        const size_t length = strings[i] ? strlen(strings[i]) : 0;
        if (!length || !is_utf8(strings[i], length))
            return qn_fail(QN_ERR_INVALID, "stop string %zu is %s", i, length ? "not UTF-8" : "empty");
        if (!qn_add_size(n_nodes, length, &n_nodes))
            return qn_fail(QN_ERR_MEMORY, "stop strings: they do not fit in memory");
    }
    qn_stop *stop;
    size_t *queue = NULL;
    QN_TRY(qn_alloc(&stop, 1, sizeof *stop, "stop strings"));
    qn_status status = qn_alloc(&stop->nodes, n_nodes, sizeof *stop->nodes, "stop strings");
    if (status == QN_OK)
        status = qn_alloc(&queue, n_nodes, sizeof *queue, "stop strings");
    if (status != QN_OK) {
        qn_stop_free(stop);
        return status;
    }
    stop->n_nodes = 1;
    for (size_t i = 0; i < n; i++)
        add_string(stop, strings[i], i);
    link_suffixes(stop, queue);
    qn_free(queue);
    *out = stop;
    return QN_OK;
}

void qn_stop_free(qn_stop *stop)
{
    if (!stop)
        return;
    qn_free(stop->nodes);
    free(stop->held);
    qn_free(stop);
}

qn_status qn_stop_feed(qn_stop *stop, const char *text, size_t length, const char **safe, size_t *n_safe, bool *hit)
{
    *safe = "";
    *n_safe = 0;
    *hit = stop->hit;
    if (stop->hit)
        return QN_OK;
    size_t n_held = stop->nodes[stop->at].depth, need;
    if (!qn_add_size(n_held, length, &need))
        return qn_fail(QN_ERR_MEMORY, "text: a piece of %zu bytes does not fit in memory", length);
    QN_TRY(qn_realloc_array(&stop->held, &stop->capacity, stop->n_out + need, 1, "text"));
    if (n_held)
        memmove(stop->held, stop->held + stop->n_out, n_held);
    stop->n_out = 0;
    for (size_t i = 0; i < length; i++) {
        stop->held[n_held++] = text[i];
        stop->at = advance(stop, stop->at, (unsigned char)text[i]);
        const size_t match = stop->nodes[stop->at].match;
        if (match) {
            *hit = stop->hit = true;
            stop->found = stop->nodes[stop->at].string;
            *safe = stop->held;
            *n_safe = n_held - match;
            stop->at = 0;
            return QN_OK;
        }
    }
    stop->n_out = n_held - stop->nodes[stop->at].depth;
    if (stop->n_out) {
        *safe = stop->held;
        *n_safe = stop->n_out;
    }
    return QN_OK;
}

qn_status qn_stop_flush(qn_stop *stop, const char **safe, size_t *n_safe)
{
    *n_safe = stop->nodes[stop->at].depth;
    *safe = *n_safe ? stop->held + stop->n_out : "";
    stop->at = 0;
    stop->n_out = 0;
    stop->hit = false;
    return QN_OK;
}

size_t qn_stop_found(const qn_stop *stop)
{
    return stop->found;
}
