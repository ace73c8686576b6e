/* Checks headers as libmicrohttpd has parsed them: that they say where the request ends, and that no bytes are hidden
 * between them.
 *
 * Requests over plain TCP were read before (gate.c). Only libmicrohttpd sees requests by TLS, requests that arrived
 * before the end of the last one, and header blocks too long for the gate. It drops a zero byte and the rest of its
 * line, joins folded lines wrongly, and takes a bare LF for the end of a line. But it leaves the block in place and
 * only writes zeros at the ends of the texts that it cuts out. So names and values that are not in the block one after
 * the other, two bytes apart, show that a proxy may have read other headers. Then the connection is closed after the
 * answer: no later bytes on it are read as a request. */
#include "serve/http.h"

#include "http/framing.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

/* Positions are integers: pointer differences would be defined only if all texts are in one block. */
typedef struct block {
    qn_framing framing;
    const char *why; /* what is wrong with a header */
    uintptr_t begin, end;
    uintptr_t at; /* the end of the last text found in the block */
    bool is_exact;
    bool has_hidden; /* bytes between texts: more zeros than libmicrohttpd writes, or no spaces */
} block;

static uintptr_t address_of(const char *text)
{
    return (uintptr_t)text;
}

/* The next text begins at `to`, `distance` bytes after the end of the last one. */
static void expect(block *b, uintptr_t to, size_t distance)
{
    b->is_exact = b->is_exact && b->at >= b->begin && to >= b->at && to <= b->end;
    if (!b->is_exact || to - b->at == distance)
        return;
    b->is_exact = false;
    const char *const gap = (const char *)b->at; /* within the block, which lives until the request has ended */
    size_t n_zeros = 0;
    for (size_t i = 0; i < to - b->at; i++) {
        n_zeros += !gap[i];
        b->has_hidden = b->has_hidden || n_zeros > distance || !memchr("\0\r\n\t ", gap[i], 5);
    }
}

static enum MHD_Result add_header(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    block *b = user;
    (void)kind;
    const char *const text = value ? value : "";
    b->why = qn_framing_add(&b->framing, name, strlen(name), text, strlen(text));
    expect(b, address_of(name), 2);
    b->is_exact = b->is_exact && address_of(text) > address_of(name) + strlen(name);
    b->at = address_of(text) + strlen(text);
    return b->why ? MHD_NO : MHD_YES;
}

/* Places the method, the target and the version. */
static void add_first_line(block *b, const qn_http_request *r, const char *method, const char *version)
{
    b->at = b->begin + strlen(method);
    expect(b, address_of(r->target), 1);
    b->at = address_of(r->target) + r->n_target;
    expect(b, address_of(version), 1);
    b->at = address_of(version) + strlen(version);
}

bool qn_request_check_head(qn_http_request *r, struct MHD_Connection *mhd, const char *method, const char *version)
{
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    block b = { .why = r->why_invalid, .begin = address_of(method), .is_exact = size != NULL };
    b.framing.is_http_1_0 = !strcmp(version, MHD_HTTP_VERSION_1_0);
    b.end = b.begin + (size ? size->header_size : 0);
    add_first_line(&b, r, method, version);
    if (!b.why)
        b.why = qn_framing_method(method, strlen(method));
    if (!b.why)
        MHD_get_connection_values(mhd, MHD_HEADER_KIND, add_header, &b);
    if (!b.why)
        b.why = qn_framing_end(&b.framing);
    if (!b.why)
        expect(&b, b.end, 4);
    if (!b.why && b.has_hidden)
        b.why = "a line has a zero byte";
    r->closes = !b.is_exact || b.framing.n_encodings; /* libmicrohttpd reads chunks as leniently */
    return !b.why || qn_request_refuse(r, 400, "bad_request", b.why);
}
