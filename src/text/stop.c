/* An Aho-Corasick automaton over the stop strings. The depth of the current node is the number of bytes held back. */
#include "text/stop.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A node is a prefix of a stop string. Node 0 is the empty prefix; as a link, 0 means none. */
typedef struct node {
    uint32_t child, sibling; /* a list of children, short except at the root */
    uint32_t fail;           /* the longest proper suffix that is a node */
    uint32_t depth;          /* length of the prefix */
    uint32_t match;          /* length of the longest stop string that ends here; 0 for none */
    uint32_t string;         /* with match: its index */
    unsigned char byte;      /* its last byte */
} node;

struct qn_stop_strings {
    node *nodes;
    uint32_t n_nodes;
    size_t bytes;
};

struct qn_stop {
    const node *nodes;
    uint32_t at; /* the node of the longest suffix of the text so far */
    bool hit, holds;
    size_t found; /* index of the stop string that was found last */
    char *held;   /* the bytes returned by the last call, then the held ones, nodes[at].depth */
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

static uint32_t find_child(const node *nodes, uint32_t at, unsigned char byte)
{
    uint32_t child = nodes[at].child;
    while (child && nodes[child].byte != byte)
        child = nodes[child].sibling;
    return child;
}

static void add_string(qn_stop_strings *strings, const char *string, uint32_t index)
{
    node *nodes = strings->nodes;
    uint32_t at = 0;
    for (const char *c = string; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        uint32_t next = find_child(nodes, at, byte);
        if (!next) {
            next = strings->n_nodes++;
            nodes[next] = (node){ .sibling = nodes[at].child, .depth = nodes[at].depth + 1, .byte = byte };
            nodes[at].child = next;
        }
        at = next;
    }
    if (!nodes[at].match)
        nodes[at].string = index;
    nodes[at].match = nodes[at].depth;
}

static uint32_t advance(const node *nodes, uint32_t at, unsigned char byte)
{
    for (;;) {
        const uint32_t next = find_child(nodes, at, byte);
        if (next || !at)
            return next;
        at = nodes[at].fail;
    }
}

/* Links each node to its longest suffix, breadth first, so that the links of shorter suffixes are set first. */
static void link_suffixes(node *nodes, uint32_t *queue)
{
    size_t n = 0;
    queue[n++] = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t parent = queue[i];
        for (uint32_t child = nodes[parent].child; child; child = nodes[child].sibling) {
            node *c = &nodes[child];
            c->fail = parent ? advance(nodes, nodes[parent].fail, c->byte) : 0;
            if (!c->match) {
                c->match = nodes[c->fail].match;
                c->string = nodes[c->fail].string;
            }
            queue[n++] = child;
        }
    }
}

/* Counts the nodes: an upper bound of their number. */
static qn_status count_nodes(const char *const *strings, size_t n, size_t *n_nodes)
{
    *n_nodes = 1;
    for (size_t i = 0; i < n; i++) {
        const size_t length = strings[i] ? strlen(strings[i]) : 0;
        if (!length || !is_utf8(strings[i], length))
            return qn_fail(QN_ERR_INVALID, "stop string %zu is %s", i, length ? "not UTF-8" : "empty");
        if (!qn_add_size(*n_nodes, length, n_nodes) || *n_nodes > UINT32_MAX)
            return qn_fail(QN_ERR_MEMORY, "stop strings: they do not fit in memory");
    }
    return QN_OK;
}

qn_status qn_stop_strings_create(const char *const *strings, size_t n, qn_stop_strings **out)
{
    qn_stop_strings *made;
    uint32_t *queue = NULL;
    size_t n_nodes;
    *out = NULL;
    QN_TRY(count_nodes(strings, n, &n_nodes));
    QN_TRY(qn_alloc(&made, 1, sizeof *made, "stop strings"));
    qn_status status = qn_alloc(&made->nodes, n_nodes, sizeof *made->nodes, "stop strings");
    if (status == QN_OK)
        status = qn_alloc(&queue, n_nodes, sizeof *queue, "stop strings");
    if (status != QN_OK) {
        qn_stop_strings_free(made);
        return status;
    }
    made->n_nodes = 1;
    made->bytes = sizeof *made + n_nodes * sizeof *made->nodes;
    for (size_t i = 0; i < n; i++)
        add_string(made, strings[i], (uint32_t)i);
    link_suffixes(made->nodes, queue);
    qn_free(queue);
    *out = made;
    return QN_OK;
}

void qn_stop_strings_free(qn_stop_strings *strings)
{
    if (!strings)
        return;
    qn_free(strings->nodes);
    qn_free(strings);
}

size_t qn_stop_strings_bytes(const qn_stop_strings *strings)
{
    return strings->bytes;
}

qn_status qn_stop_create(const qn_stop_strings *strings, qn_stop **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "stop strings"));
    (*out)->nodes = strings->nodes;
    return QN_OK;
}

void qn_stop_free(qn_stop *stop)
{
    if (!stop)
        return;
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
        stop->at = advance(stop->nodes, stop->at, (unsigned char)text[i]);
        const uint32_t match = stop->nodes[stop->at].match;
        if (match && !stop->holds) {
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

void qn_stop_hold(qn_stop *stop, bool holds)
{
    stop->holds = holds;
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
